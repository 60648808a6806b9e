// SPDX-License-Identifier: GPL-2.0

//! What a link group remembers: elements, the peer's buffers, link numbers.

use crate::facts::{
    element,
    token, //
};
use smc_proto::{
    group::{
        Claim,
        LinkIx,
        LinkNums,
        PeerRmb,
        PeerTable,
        Role,
        TableError,
        Tokens,
        MAX_LINKS,
        MAX_PEER_RMBS, //
    },
    rmb::Elements,
    wire::{
        RKey,
        RToken,
        RmbeIndex,
        RmbeSize, //
    },
};

#[test]
fn elements_are_handed_out_once() {
    let mut elements = Elements::new(RmbeSize::MIN, 255);
    assert!(elements.is_idle());
    for expected in 1..=255u8 {
        let index = elements.alloc().unwrap();
        assert_eq!(index.get(), expected);
        assert_eq!(
            elements.offset(index),
            Some(u64::from(expected - 1) * 16384)
        );
    }
    assert_eq!(elements.alloc(), None);
    assert_eq!((elements.in_use(), elements.available()), (255, 0));
    let middle = RmbeIndex::new(64).unwrap();
    assert!(elements.free(middle));
    assert!(!elements.free(middle), "freed twice");
    assert_eq!(elements.alloc(), Some(middle));
    for index in 1..=255 {
        assert!(elements.free(RmbeIndex::new(index).unwrap()));
    }
    assert!(elements.is_idle());
    assert_eq!(elements.available(), 255);
}

#[test]
fn retired_elements_do_not_come_back() {
    let mut elements = Elements::new(RmbeSize::MIN, 3);
    let first = elements.alloc().unwrap();
    let second = elements.alloc().unwrap();
    assert!(elements.retire(first));
    assert!(!elements.retire(first), "retired twice");
    assert!(!elements.free(first), "a retired element must not be freed");
    assert_eq!((elements.in_use(), elements.available()), (1, 1));
    assert!(elements.free(second));
    assert!(elements.is_idle() && !elements.is_spent());
    for _ in 0..2 {
        let index = elements.alloc().unwrap();
        assert_ne!(index, first);
        assert!(elements.retire(index));
    }
    assert!(elements.is_spent());
    assert!(!elements.retire(RmbeIndex::new(200).unwrap()));
    assert_eq!(elements.offset(RmbeIndex::new(4).unwrap()), None);
}

#[test]
fn an_rmb_without_elements_is_always_full() {
    let mut elements = Elements::new(RmbeSize::MAX_SEND, 0);
    assert_eq!(elements.alloc(), None);
    assert_eq!(elements.size().bytes(), 512 * 1024);
}

#[test]
fn a_buffer_is_stored_once() {
    let mut slots = vec![PeerRmb::EMPTY; 4];
    let mut table = PeerTable::new(&mut slots);
    let link = LinkIx::FIRST;
    let slot = table.add(link, token(1)).unwrap();
    assert_eq!(table.add(link, token(1)), Ok(slot));
    assert_eq!(table.len(), 1);
    assert_eq!(table.token(slot, link), Some(token(1)));
    assert_eq!(table.find(link, RKey(1)), Some(slot));
    assert_eq!(table.find(link, RKey(2)), None);
    // On another link the same RKey is another buffer.
    let other = LinkIx::new(1).unwrap();
    assert_eq!(table.find(other, RKey(1)), None);
    assert_ne!(table.add(other, token(1)).unwrap(), slot);
}

#[test]
fn the_table_is_bounded() {
    let mut slots = vec![PeerRmb::EMPTY; 300];
    let mut table = PeerTable::new(&mut slots);
    assert_eq!(table.room(), MAX_PEER_RMBS);
    for rkey in 0..255 {
        table.add(LinkIx::FIRST, token(rkey)).unwrap();
    }
    assert_eq!(table.add(LinkIx::FIRST, token(999)), Err(TableError::Full));
    // What is known already is still fine.
    assert!(table.add(LinkIx::FIRST, token(254)).is_ok());
    assert!(!table.remove(LinkIx::FIRST, RKey(7)).unwrap().1);
    assert!(table.add(LinkIx::FIRST, token(999)).is_ok());
    assert!(PeerTable::new(&mut [])
        .add(LinkIx::FIRST, token(1))
        .is_err());
}

/// A buffer is announced with a key that belongs to another one, which a connection uses: nothing is left of it, and what
/// was known before is as it was.
#[test]
fn a_buffer_with_a_key_in_use_leaves_nothing_behind() {
    let links = [0, 1, 2].map(|place| LinkIx::new(place).unwrap());
    for taken in 1..3 {
        for known in [false, true] {
            let mut slots = vec![PeerRmb::EMPTY; 4];
            let mut table = PeerTable::new(&mut slots);
            let used = element(Role::Client);
            table.claim(links[taken], &used).unwrap();
            // One that nobody uses, with the key on the other link.
            let idle = table.add(links[3 - taken], token(7)).unwrap();
            let before = known.then(|| table.add(links[0], token(8)).unwrap());
            let mut tokens = Tokens::EMPTY;
            tokens.set(links[0], token(8));
            tokens.set(links[taken], used.token);
            tokens.set(links[3 - taken], token(7));
            let refused = table.add_all(links[0], &tokens);
            assert_eq!(refused, Err(TableError::RKeyInUse));
            assert_eq!(table.len(), 2 + usize::from(known));
            assert_eq!(table.find(links[0], RKey(8)), before);
            assert_eq!(table.find(links[3 - taken], RKey(7)), Some(idle));
            assert!(table.has(links[taken], used.token));
            // With another key there, it is taken, and the unused one has lost its own.
            tokens.set(links[taken], token(9));
            let slot = table.add_all(links[0], &tokens).unwrap();
            assert_eq!(table.token(slot, links[taken]), Some(token(9)));
            assert_eq!(table.token(slot, links[3 - taken]), Some(token(7)));
            assert_eq!(table.len(), 2);
        }
    }
}

/// A place is another buffer's as soon as the last connection of the one before has left it. Whoever hears late that that
/// one is gone sees that it has keys.
#[test]
fn a_place_that_is_taken_again_is_not_that_of_a_buffer_that_is_gone() {
    let mut slots = vec![PeerRmb::EMPTY; 1];
    let mut table = PeerTable::new(&mut slots);
    let link = LinkIx::FIRST;
    let used = element(Role::Client);
    let place = table.claim(link, &used).unwrap().element();
    assert!(!table.is_gone(place.slot));
    let gone = table.remove(link, used.token.rkey);
    assert_eq!(gone, Some((place.slot, true)));
    assert!(table.is_gone(place.slot));
    assert_eq!(table.add(link, token(5)), Err(TableError::Full));
    assert!(table.release(place));
    assert_eq!(table.add(link, token(5)), Ok(place.slot));
    assert!(!table.is_gone(place.slot));
}

#[test]
fn an_rkey_moves_only_from_an_unused_buffer() {
    let mut slots = vec![PeerRmb::EMPTY; 4];
    let mut table = PeerTable::new(&mut slots);
    let link = LinkIx::FIRST;
    let moved = RToken {
        addr: 0x7777_0000,
        ..token(5)
    };
    table.add(link, token(5)).unwrap();
    let slot = table.add(link, moved).unwrap();
    assert_eq!((table.len(), table.token(slot, link)), (1, Some(moved)));

    let element = element(Role::Client);
    let claim = table.claim(link, &element).unwrap();
    let clash = RToken {
        addr: 0x8888_0000,
        ..element.token
    };
    assert_eq!(table.add(link, clash), Err(TableError::RKeyInUse));
    assert!(table.release(claim.element()));
    assert!(table.add(link, clash).is_ok());
}

#[test]
fn a_buffer_gets_keys_on_further_links_before_it_has_connections() {
    let mut slots = vec![PeerRmb::EMPTY; 4];
    let mut table = PeerTable::new(&mut slots);
    let (first, second) = (LinkIx::FIRST, LinkIx::new(1).unwrap());
    let element = element(Role::Server);
    // As a driver does on the first contact: the second link is there before the connection is.
    let slot = table.add(first, element.token).unwrap();
    table
        .extend(first, element.token.rkey, second, token(7))
        .unwrap();
    // What nobody has named is not known by a key on a further link alone.
    table
        .extend(first, token(8).rkey, second, token(9))
        .unwrap();
    assert_eq!(table.len(), 1);
    let held = table.claim(first, &element).unwrap().element();
    assert_eq!(held.slot, slot);
    let mut neighbour = element;
    neighbour.token = token(7);
    neighbour.index = RmbeIndex::new(2).unwrap();
    let other = table.claim(second, &neighbour).unwrap().element();
    assert_eq!(other.slot, slot, "one buffer, whichever link CLC names");
    assert_eq!(table.token(held.slot, second), Some(token(7)));
    assert_eq!(table.token(other.slot, first), Some(element.token));
}

#[test]
fn a_reused_element_is_noticed() {
    let mut slots = vec![PeerRmb::EMPTY; 4];
    let mut table = PeerTable::new(&mut slots);
    let link = LinkIx::FIRST;
    let element = element(Role::Server);
    let Claim::New(held) = table.claim(link, &element).unwrap() else {
        panic!("nobody had it before");
    };
    assert!(table.is_claimed(held));
    assert_eq!(table.claim(link, &element), Ok(Claim::TakenOver(held)));
    let mut neighbour = element;
    neighbour.index = RmbeIndex::new(255).unwrap();
    assert!(matches!(table.claim(link, &neighbour), Ok(Claim::New(_))));
    assert!(table.release(held));
    assert!(!table.release(held), "released twice");
}

#[test]
fn a_deleted_buffer_keeps_its_place_until_it_is_released() {
    let mut slots = vec![PeerRmb::EMPTY; 1];
    let mut table = PeerTable::new(&mut slots);
    let link = LinkIx::FIRST;
    let element = element(Role::Server);
    let held = table.claim(link, &element).unwrap().element();
    assert_eq!(
        table.remove(link, element.token.rkey),
        Some((held.slot, true))
    );
    assert_eq!(table.token(held.slot, link), None, "no writing any more");
    assert_eq!(table.remove(link, element.token.rkey), None);
    // The slot number still means the old buffer.
    assert_eq!(table.add(link, token(9)), Err(TableError::Full));
    assert!(table.release(held));
    assert!(table.is_empty());
    assert!(table.add(link, token(9)).is_ok());
}

#[test]
fn a_link_takes_its_tokens_along() {
    let mut slots = vec![PeerRmb::EMPTY; 3];
    let mut table = PeerTable::new(&mut slots);
    let second = LinkIx::new(1).unwrap();
    table.add(LinkIx::FIRST, token(1)).unwrap();
    table.add(second, token(2)).unwrap();
    table.forget_link(LinkIx::FIRST);
    assert_eq!(table.find(LinkIx::FIRST, RKey(1)), None);
    assert!(table.find(second, RKey(2)).is_some());
    assert_eq!(LinkIx::new(MAX_LINKS), None);
}

#[test]
fn link_numbers_wrap_and_skip() {
    let mut numbers = LinkNums::new();
    for expected in 1..=255u8 {
        assert_eq!(numbers.next(|_| false).unwrap().get(), expected);
    }
    assert_eq!(numbers.next(|number| number.get() < 3).unwrap().get(), 3);
    assert_eq!(numbers.next(|_| true), None);
}

#[test]
fn an_element_has_to_end_inside_the_address_space() {
    let mut element = element(Role::Client);
    element.token.addr = 0x1_0000;
    element.index = RmbeIndex::new(3).unwrap();
    element.size = RmbeSize::new(1).unwrap();
    assert_eq!(element.address(), Some(0x1_0000 + 2 * 32768));
    element.token.addr = u64::MAX - 3 * 32768;
    assert_eq!(element.address(), Some(u64::MAX - 32768));
    element.token.addr += 1;
    assert_eq!(element.address(), None);
}

#[test]
fn machines_stay_small() {
    use core::mem::size_of;
    fn fits<T>(most: usize) {
        let size = size_of::<T>();
        assert!(
            size <= most,
            "{}: {size} bytes, {most} at most",
            core::any::type_name::<T>()
        );
    }
    fits::<smc_proto::llc_flow::Flow>(6144);
    fits::<smc_proto::handshake::Client>(3072);
    fits::<smc_proto::handshake::Server>(3584);
    fits::<PeerRmb>(144);
}

// SPDX-License-Identifier: GPL-2.0

//! Urgent data, both directions.

use smc_proto::{
    cdc::ProdFlags,
    conn::{
        SendFlags,
        UrgentError, //
    },
};

use crate::Rig;

const URGENT: SendFlags = SendFlags {
    urgent: true,
    more: false,
    partial: false,
};

/// The peer wrote `n` bytes, the last one urgent.
fn urgent(rig: &mut Rig, n: u32) -> smc_proto::conn::Events {
    rig.produced += u64::from(n);
    rig.flags(ProdFlags {
        urgent_pending: true,
        urgent_present: true,
        ..ProdFlags::default()
    })
}

#[test]
fn sender_waits_until_the_peer_consumed_it() {
    let mut rig = Rig::new(64, 0);
    assert_eq!(rig.send_with(5, URGENT), 5);
    let t = rig.post();
    assert_eq!(t.data_len(), 5);
    let p = t.cdc.prod_flags;
    assert!(p.urgent_pending && p.urgent_present && t.signal);
    let _ = rig.sent(&t);
    // More is accepted and not written.
    assert_eq!(rig.send(3), 3);
    rig.nothing_due();
    let _ = rig.took(4);
    rig.nothing_due();
    let _ = rig.took(1);
    let t = rig.post();
    assert_eq!(t.data_len(), 3);
    let p = t.cdc.prod_flags;
    assert!(!p.urgent_pending && !p.urgent_present);
}

#[test]
fn urgent_overtakes_cork_and_coalescing() {
    let mut rig = Rig::new(1024, 0);
    rig.conn.set_cork(true);
    rig.send(3);
    rig.nothing_due();
    rig.send_with(1, URGENT);
    let t = rig.post();
    assert_eq!(t.data_len(), 4);
    assert!(t.cdc.prod_flags.urgent_present);
}

#[test]
fn closed_window_announces() {
    let mut rig = Rig::with(64, 16, 0);
    rig.send(16);
    for t in rig.posts() {
        let _ = rig.sent(&t);
    }
    rig.send_with(2, URGENT);
    let t = rig.post();
    assert_eq!(t.data_len(), 0);
    let p = t.cdc.prod_flags;
    assert!(p.urgent_pending && !p.urgent_present && p.blocked);
    // Once is enough.
    let _ = rig.sent(&t);
    rig.nothing_due();
    // The part that fits keeps announcing the rest.
    let _ = rig.took(1);
    let t = rig.post();
    assert_eq!(t.data_len(), 1);
    assert!(t.cdc.prod_flags.urgent_pending && !t.cdc.prod_flags.urgent_present);
    let _ = rig.sent(&t);
    let _ = rig.took(5);
    let t = rig.post();
    assert_eq!(t.data_len(), 1);
    assert!(t.cdc.prod_flags.urgent_pending && t.cdc.prod_flags.urgent_present);
}

#[test]
fn only_the_last_urgent_byte_counts() {
    let mut rig = Rig::with(64, 16, 0);
    rig.send(16);
    for t in rig.posts() {
        let _ = rig.sent(&t);
    }
    rig.send_with(2, URGENT);
    rig.send_with(2, URGENT);
    for t in rig.posts() {
        assert!(!t.cdc.prod_flags.urgent_present);
        let _ = rig.sent(&t);
    }
    let _ = rig.took(16);
    let t = rig.post();
    assert_eq!(t.data_len(), 4);
    assert!(t.cdc.prod_flags.urgent_present);
}

#[test]
fn out_of_line() {
    let mut rig = Rig::new(64, 0);
    let events = urgent(&mut rig, 5);
    assert!(events.urgent && events.readable);
    assert_eq!(rig.conn.readable(), 4, "the urgent byte does not count");
    assert!(rig.conn.urgent_ready() && !rig.conn.at_mark());
    assert_eq!(rig.conn.recv_urgent(true), Ok(4));
    assert_eq!(rig.conn.recv_urgent(true), Ok(4));
    rig.nothing_due();
    // A read stops at the mark.
    assert_eq!(rig.recv(100), 4);
    assert!(rig.conn.at_mark());
    // The byte is out of the stream, and the peer hears that it may go on.
    let t = rig.post();
    assert_eq!(t.cdc.cons.count, 5);
    let _ = rig.sent(&t);
    assert_eq!(rig.conn.recv_urgent(false), Ok(4));
    assert_eq!(rig.conn.recv_urgent(false), Err(UrgentError::Invalid));
    assert!(rig.conn.at_mark() && !rig.conn.urgent_ready());
    // What follows is behind the mark.
    let _ = rig.data(3);
    assert!(rig.conn.at_mark());
    assert_eq!(rig.recv(1), 1);
    assert!(!rig.conn.at_mark());
}

/// Whoever waits for more than there is in front of an urgent byte would wait for ever.
#[test]
fn a_reader_is_told_that_no_more_comes_before_it_reads() {
    for inline in [false, true] {
        let mut rig = Rig::new(64, 0);
        rig.conn.set_oob_inline(inline);
        let _ = rig.data(3);
        assert!(!rig.conn.is_held_up());
        let _ = urgent(&mut rig, 5);
        assert!(rig.conn.is_held_up());
        assert_eq!(rig.recv(7), 7);
        // The byte itself is the next one, out of the way or not.
        assert_eq!(rig.conn.is_held_up(), inline);
        assert_eq!(rig.recv(1), u32::from(inline));
        assert!(!rig.conn.is_held_up());
        let _ = rig.data(3);
        assert!(!rig.conn.is_held_up());
    }
}

#[test]
fn application_that_ignores_it_does_not_hold_up_the_peer() {
    let mut rig = Rig::new(1024, 4);
    let _ = urgent(&mut rig, 1);
    assert_eq!(rig.conn.readable(), 0);
    let t = rig.post();
    assert_eq!(t.cdc.cons.count, 5);
    // Reading on makes the byte unreachable, as with TCP.
    let _ = rig.data(2);
    assert_eq!(rig.recv(10), 2);
    assert_eq!(rig.conn.recv_urgent(false), Err(UrgentError::Invalid));
}

#[test]
fn in_line() {
    let mut rig = Rig::new(64, 0);
    rig.conn.set_oob_inline(true);
    let _ = urgent(&mut rig, 5);
    assert_eq!(rig.conn.readable(), 5);
    assert_eq!(rig.conn.recv_urgent(false), Err(UrgentError::Invalid));
    assert_eq!(rig.recv(100), 4);
    assert!(rig.conn.at_mark());
    rig.nothing_due();
    assert_eq!(rig.recv(100), 1);
    assert!(!rig.conn.at_mark());
    assert_eq!(rig.post().cdc.cons.count, 5);
}

#[test]
fn peek_stops_at_the_mark_too() {
    let mut rig = Rig::new(64, 0);
    let _ = urgent(&mut rig, 5);
    let spans = rig.conn.recv_spans(1, 100);
    assert_eq!((spans.first().offset, spans.len()), (1, 3));
    rig.conn.recv_commit(0);
    assert!(rig.conn.recv_spans(4, 100).is_empty());
    assert_eq!(rig.conn.readable(), 4);
}

#[test]
fn announced_first() {
    let mut rig = Rig::new(64, 0);
    let p = ProdFlags {
        urgent_pending: true,
        ..ProdFlags::default()
    };
    assert!(rig.flags(p).urgent);
    assert_eq!(rig.conn.recv_urgent(false), Err(UrgentError::NotYet));
    // One signal for both messages, but readers wake.
    assert!(!rig.flags(p).urgent);
    let events = urgent(&mut rig, 2);
    assert!(!events.urgent && events.readable);
    assert_eq!(rig.conn.recv_urgent(false), Ok(1));
    // The next one is announced anew.
    let _ = rig.flags(ProdFlags::default());
    assert!(rig.flags(p).urgent);
    let _ = rig.done();
    assert_eq!(
        rig.conn.recv_urgent(false),
        Err(UrgentError::Invalid),
        "the old one is read"
    );
}

#[test]
fn announced_and_never_sent() {
    let mut rig = Rig::new(64, 0);
    let _ = rig.flags(ProdFlags {
        urgent_pending: true,
        ..ProdFlags::default()
    });
    let _ = rig.done();
    assert_eq!(rig.conn.recv_urgent(false), Err(UrgentError::End));
}

#[test]
fn repeated_message_is_no_second_urgent_byte() {
    let mut rig = Rig::new(64, 0);
    let _ = urgent(&mut rig, 2);
    assert_eq!(rig.conn.recv_urgent(false), Ok(1));
    let events = urgent(&mut rig, 0);
    assert!(!events.urgent);
    assert_eq!(rig.conn.recv_urgent(false), Err(UrgentError::Invalid));
}

#[test]
fn byte_at_the_end_of_the_element() {
    for base in [0, 4] {
        let mut rig = Rig::new(64, base);
        let capacity = 64 - base;
        let _ = urgent(&mut rig, capacity);
        // The byte's value is its offset in this test.
        assert_eq!(rig.conn.recv_urgent(false), Ok(63));
        assert_eq!(rig.recv(100), capacity - 1);
        let _ = urgent(&mut rig, 1);
        assert_eq!(rig.conn.recv_urgent(false), Ok(base as u8));
    }
}

#[test]
fn byte_under_the_eyes_of_a_reader_stays() {
    let mut rig = Rig::new(64, 0);
    let _ = rig.data(3);
    assert_eq!(rig.recv(2), 2);
    let spans = rig.conn.recv_spans(0, 10);
    assert_eq!(spans.len(), 1);
    // Only now the byte is declared urgent: the reader has it already.
    let _ = urgent(&mut rig, 0);
    rig.nothing_due();
    rig.conn.recv_commit(1);
    assert_eq!(rig.conn.readable(), 0);
    assert_eq!(rig.post().cdc.cons.count, 3);
    let _ = rig.data(2);
    assert_eq!(rig.recv(10), 2);
}

#[test]
fn urgent_byte_already_read() {
    // Announced as ordinary data, declared urgent afterwards.
    let mut rig = Rig::new(64, 0);
    let _ = rig.data(3);
    assert_eq!(rig.recv(3), 3);
    rig.nothing_due();
    let events = urgent(&mut rig, 0);
    assert!(!events.urgent);
    assert!(!rig.conn.urgent_ready());
    // The peer waits for the consumer cursor all the same.
    assert_eq!(rig.post().cdc.cons.count, 3);
}

#[test]
fn urgent_byte_outlives_an_abort() {
    let mut rig = Rig::new(64, 0);
    let _ = urgent(&mut rig, 5);
    let _ = rig.data(3);
    let _ = rig.aborted();
    for t in rig.posts() {
        assert!(t.cdc.state_flags.aborted && t.writes().is_empty());
        let _ = rig.sent(&t);
    }
    let _ = rig.conn.handle_link_failed();
    assert_eq!(rig.conn.readable(), 7);
    assert!(rig.conn.urgent_ready() && !rig.conn.at_mark());
    assert_eq!(rig.recv(100), 4);
    assert!(rig.conn.at_mark() && rig.conn.urgent_ready());
    assert_eq!(rig.conn.recv_urgent(false), Ok(4));
    assert!(!rig.conn.is_done());
    assert_eq!(rig.recv(100), 3);
    assert!(!rig.conn.at_mark() && rig.conn.eof() && rig.conn.is_done());
    rig.nothing_due();

    // In line.
    let mut rig = Rig::new(64, 0);
    rig.conn.set_oob_inline(true);
    let _ = urgent(&mut rig, 5);
    let _ = rig.aborted();
    assert_eq!(rig.conn.readable(), 5);
    assert_eq!(rig.recv(100), 4);
    assert!(rig.conn.at_mark());
    assert_eq!(rig.recv(100), 1);
    assert!(!rig.conn.at_mark() && rig.conn.eof());
}

#[test]
fn connection_stays_for_the_urgent_byte() {
    let mut rig = Rig::new(64, 0);
    let _ = urgent(&mut rig, 1);
    let _ = rig.conn.handle_link_failed();
    assert!(rig.conn.eof() && rig.conn.at_mark() && !rig.conn.is_done());
    assert_eq!(rig.conn.recv_urgent(false), Ok(0));
    assert!(rig.conn.is_done());

    // Nobody is left to read it.
    let mut rig = Rig::new(64, 0);
    let _ = urgent(&mut rig, 1);
    let _ = rig.conn.handle_link_failed();
    let _ = rig.conn.abort();
    assert!(!rig.conn.urgent_ready());
    assert_eq!(rig.conn.recv_urgent(false), Err(UrgentError::Invalid));
    assert!(rig.conn.is_done());
}

#[test]
fn announced_and_aborted() {
    let mut rig = Rig::new(64, 0);
    let _ = rig.flags(ProdFlags {
        urgent_pending: true,
        ..ProdFlags::default()
    });
    assert_eq!(rig.conn.recv_urgent(false), Err(UrgentError::NotYet));
    let _ = rig.aborted();
    // No end of the stream in place of the error.
    assert_eq!(rig.conn.recv_urgent(false), Err(UrgentError::Invalid));
}

/// A reader who peeks waits for more than he has seen. He must not do so in vain: either there is
/// some, or he has come to the mark.
fn peeks_on(rig: &mut Rig, seen: u32) -> u32 {
    let n = rig.conn.recv_spans(seen, 100).len();
    rig.conn.recv_commit(0);
    // Who is told that there is more, and gets nothing, asks again for ever.
    assert_eq!(
        n != 0,
        rig.conn.has_behind(seen),
        "{seen} seen of {}",
        rig.conn.readable()
    );
    n
}

#[test]
fn peeking_ends_at_the_mark() {
    for inline in [false, true] {
        let mut rig = Rig::new(64, 0);
        rig.conn.set_oob_inline(inline);
        let _ = urgent(&mut rig, 4);
        assert_eq!(peeks_on(&mut rig, 0), 3);
        // In line, who begins at the mark gets past it.
        assert_eq!(peeks_on(&mut rig, 3), u32::from(inline));
        assert!(rig.conn.ends_at(3) && !rig.conn.ends_at(2));
        // What the peer writes behind it, against the rules, is behind the mark as well.
        let _ = rig.data(5);
        assert_eq!(peeks_on(&mut rig, 3), if inline { 6 } else { 0 });
        assert!(rig.conn.ends_at(3));
    }
}

#[test]
fn a_mark_in_what_was_peeked_at() {
    for inline in [false, true] {
        let mut rig = Rig::new(64, 0);
        rig.conn.set_oob_inline(inline);
        let _ = rig.data(5);
        assert_eq!(peeks_on(&mut rig, 0), 5);
        // The last byte that has come is urgent, says the peer afterwards.
        let _ = urgent(&mut rig, 0);
        let _ = rig.data(3);
        for seen in 5..9 {
            peeks_on(&mut rig, seen);
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! When what is sent: windows, coalescing, completions, consumer updates.

use smc_proto::{
    cdc::ProdFlags,
    conn::{
        SendFlags,
        Timer,
        Write,
        MAX_IN_FLIGHT, //
    },
};

use crate::{Rig, BLOCKED};

#[test]
fn ping_pong() {
    let mut rig = Rig::new(65536, 0);
    let mut signals = 0;
    for i in 0..1000 {
        // A byte goes out at once, in one transmit.
        assert_eq!(rig.send(1), 1);
        let t = rig.post();
        assert_eq!(t.data_len(), 1);
        assert_eq!(t.cdc.seq, i * 2 / 2 + 1);
        if t.signal {
            signals += 1;
            let _ = rig.sent(&t);
        }
        // The answer takes what we sent, and needs no update of its own.
        rig.consumed += 1;
        let _ = rig.data(1);
        assert_eq!(rig.recv(1), 1);
        rig.nothing_due();
    }
    assert_eq!(signals, 125, "one completion for eight messages");
}

#[test]
fn small_pieces_wait_for_the_completion() {
    let mut rig = Rig::new(4096, 0);
    let _ = rig.data(0);
    rig.send(10);
    assert!(!rig.post().signal);
    rig.send(10);
    let second = rig.post();
    assert!(second.signal, "the peer has not answered");
    for _ in 0..5 {
        rig.send(10);
        rig.nothing_due();
    }
    let _ = rig.sent(&second);
    assert_eq!(rig.post().data_len(), 50);
}

#[test]
fn nodelay_waits_for_nothing() {
    let mut rig = Rig::new(4096, 0);
    rig.conn.set_nodelay(true);
    for _ in 0..MAX_IN_FLIGHT {
        rig.send(10);
        assert_eq!(rig.post().data_len(), 10);
    }
    rig.send(10);
    rig.nothing_due();
}

#[test]
fn small_data_is_gathered_up_to_a_limit() {
    let mut rig = Rig::new(4096, 0);
    let _ = rig.data(0);
    rig.conn.set_gather(100);
    rig.send(10);
    assert!(!rig.post().signal);
    rig.send(10);
    assert!(rig.post().signal);
    // Now it waits for the completion, but not for ever.
    rig.send(99);
    rig.nothing_due();
    rig.send(1);
    let gathered = rig.post();
    assert_eq!(gathered.data_len(), 100);
    rig.conn.set_gather(0);
    rig.send(1);
    assert_eq!(rig.post().data_len(), 1);
    // Who asks for it gets a cork.
    let _ = rig.sent(&gathered);
    rig.conn.set_cork(true);
    rig.send(5);
    rig.nothing_due();
    rig.conn.set_cork(false);
    assert_eq!(rig.post().data_len(), 5);
}

#[test]
fn bulk_keeps_the_pipe_full() {
    let mut rig = Rig::new(131_072, 0);
    assert_eq!(rig.send(131_072), 131_072);
    let posts = rig.posts();
    let sizes: Vec<u32> = posts.iter().map(|t| t.data_len()).collect();
    assert_eq!(sizes, [65536; 2]);
    // B tells that the window is used up.
    assert!(posts[1].cdc.prod_flags.blocked && !posts[0].cdc.prod_flags.blocked);
    assert_eq!(rig.conn.send_space(), 0);
    let _ = rig.took(32768);
    let events = rig.sent(&posts[0]);
    assert!(events.writable);
    // A quarter goes out while a half is in flight.
    assert_eq!(rig.send(131_072), 65536);
    assert_eq!(rig.post().data_len(), 32768);
    rig.nothing_due();
}

#[test]
fn small_rings_are_filled_at_once() {
    let mut rig = Rig::new(65536, 0);
    assert_eq!(rig.send(65536), 65536);
    let t = rig.post();
    assert!(t.data_len() == 65536 && t.cdc.prod_flags.blocked);
}

/// A call that found no room for all of its bytes goes on: what it left in the ring waits for the rest.
#[test]
fn the_rest_of_a_call_goes_along() {
    let mut rig = Rig::new(65536, 0);
    rig.conn.set_nodelay(true);
    let partial = SendFlags {
        partial: true,
        ..SendFlags::default()
    };
    assert_eq!(rig.send(65528), 65528);
    let t = rig.post();
    assert_eq!(rig.send_with(65536, partial), 8);
    let _ = rig.took(65528);
    // There is no room for more: they go.
    let mut other = rig.conn.clone();
    assert_eq!(other.poll_transmit().map(|t| t.data_len()), Some(8));
    // There is, and the call knows.
    assert!(rig.sent(&t).writable);
    rig.nothing_due();
    let mut other = rig.conn.clone();
    other.send_given_up();
    assert_eq!(other.poll_transmit().map(|t| t.data_len()), Some(8));
    let mut other = rig.conn.clone();
    let _ = other.shutdown_write();
    assert_eq!(other.poll_transmit().map(|t| t.data_len()), Some(8));
    assert_eq!(rig.send(65528), 65528);
    assert_eq!(rig.post().data_len(), 65536);
}

#[test]
fn writes_are_cut_at_both_ends() {
    let mut rig = Rig::with(40, 34, 4);
    for (n, expected) in [
        (25, &[(0, 4, 25)][..]),
        (9, &[(25, 29, 5), (30, 4, 4)]),
        (12, &[(34, 8, 6), (0, 14, 6)]),
    ] {
        assert_eq!(rig.send(n), n);
        let mut pieces: Vec<Write> = Vec::new();
        while rig.conn.send_unsent() > 0 {
            for t in rig.posts() {
                for &w in t.writes() {
                    match pieces.last_mut() {
                        Some(p) if p.from + p.len == w.from && p.to + p.len == w.to => {
                            p.len += w.len;
                        }
                        _ => pieces.push(w),
                    }
                }
                let _ = rig.sent(&t);
            }
        }
        let expected: Vec<Write> = expected
            .iter()
            .map(|&(from, to, len)| Write { from, to, len })
            .collect();
        assert_eq!(pieces, expected);
        let _ = rig.took(n);
    }
}

#[test]
fn window_is_never_exceeded() {
    let mut rig = Rig::with(1000, 16, 4);
    assert_eq!(rig.send(1000), 1000);
    let mut total = 0;
    for round in 0..2000 {
        for t in rig.posts() {
            total += u64::from(t.data_len());
            let _ = rig.sent(&t);
        }
        assert!(total - rig.consumed <= 12);
        if total == 1000 {
            return;
        }
        if round % 2 == 0 && rig.consumed < total {
            let _ = rig.took(1);
        }
    }
    panic!("stuck at {total}");
}

#[test]
fn limit_of_a_transmit() {
    let mut rig = Rig::new(4096, 0);
    rig.conn = smc_proto::conn::Conn::new(&smc_proto::conn::Params {
        send_ring: 4096,
        element: 4096,
        peer_element: 4096,
        base: 0,
        peer_token: crate::TOKEN,
        max_transmit: 100,
    })
    .unwrap();
    rig.send(1000);
    assert!(rig.posts().iter().all(|t| t.data_len() == 100));
}

#[test]
fn cork_and_more() {
    let mut rig = Rig::new(4096, 0);
    let more = SendFlags {
        more: true,
        ..SendFlags::default()
    };
    rig.send_with(10, more);
    rig.nothing_due();
    assert_eq!(rig.conn.timer(), Some(Timer::Cork));
    // The last part of what belongs together takes the rest along.
    rig.send(1);
    assert_eq!(rig.post().data_len(), 11);
    assert_eq!(rig.conn.timer(), None);

    // A cork gives way to a quarter of the ring, the timer, and its end.
    rig.conn.set_cork(true);
    rig.send(1023);
    rig.nothing_due();
    rig.send(1);
    assert_eq!(rig.post().data_len(), 1024);
    rig.conn.set_nodelay(true);
    rig.send(5);
    rig.nothing_due();
    let _ = rig.conn.handle_timeout(Timer::Cork);
    assert_eq!(rig.post().data_len(), 5);
    rig.send(6);
    rig.nothing_due();
    rig.conn.set_cork(false);
    assert_eq!(rig.post().data_len(), 6);

    // So it does to a shutdown.
    let mut rig = Rig::new(4096, 0);
    rig.conn.set_cork(true);
    rig.send(5);
    rig.nothing_due();
    let _ = rig.conn.shutdown_write();
    let t = rig.post();
    assert!(t.data_len() == 5 && t.cdc.state_flags.done && !t.cdc.state_flags.closed);
}

#[test]
fn cork_gives_way_to_a_full_ring() {
    let mut rig = Rig::with(100, 1000, 0);
    for _ in 0..99 {
        rig.send(10);
        let t = rig.post();
        let _ = rig.sent(&t);
    }
    let _ = rig.took(90);
    rig.conn.set_cork(true);
    assert_eq!(rig.send(24), 24);
    rig.nothing_due();
    // The application cannot go on.
    assert_eq!(rig.send(99), 76);
    assert_eq!(rig.post().data_len(), 100);
}

#[test]
fn update_when_the_window_is_small_and_it_is_worth_it() {
    let mut rig = Rig::new(1000, 0);
    // Half of the window used: wide enough.
    let _ = rig.data(500);
    rig.recv(400);
    rig.nothing_due();
    // More than half used, but little read since: not yet.
    let mut rig = Rig::new(1000, 0);
    let _ = rig.data(501);
    rig.recv(99);
    rig.nothing_due();
    rig.recv(1);
    let t = rig.post();
    assert_eq!((t.cdc.cons.count, t.data_len()), (100, 0));
    assert!(t.signal);
    // The next one waits for the completion, unless half of the element was read.
    let _ = rig.data(500);
    rig.recv(499);
    rig.nothing_due();
    rig.recv(1);
    assert_eq!(rig.post().cdc.cons.count, 600);
    rig.recv(200);
    rig.nothing_due();
    let _ = rig.sent(&t);
}

#[test]
fn update_for_a_blocked_writer() {
    let mut rig = Rig::new(1000, 0);
    let _ = rig.data(300);
    let _ = rig.flags(BLOCKED);
    rig.nothing_due();
    // There is more to read: crumbs wait.
    rig.recv(99);
    rig.nothing_due();
    rig.recv(1);
    let t = rig.post();
    assert_eq!(t.cdc.cons.count, 100);
    // Further ones come together once the first is through.
    rig.recv(60);
    rig.recv(60);
    rig.nothing_due();
    let _ = rig.sent(&t);
    let t = rig.post();
    assert_eq!(t.cdc.cons.count, 220);
    let _ = rig.sent(&t);
    // All is read: no crumb is too small.
    rig.recv(79);
    rig.nothing_due();
    rig.recv(1);
    let t = rig.post();
    assert_eq!(t.cdc.cons.count, 300);
    let _ = rig.sent(&t);
    // The flag holds until a message comes without it.
    let _ = rig.data(1);
    rig.recv(1);
    rig.nothing_due();
}

/// What was read before the peer filled the element is not worth an answer that makes room for a crumb.
#[test]
fn a_blocked_writer_is_not_fed_with_crumbs() {
    let mut rig = Rig::new(65536, 0);
    let _ = rig.data(8);
    rig.recv(8);
    rig.nothing_due();
    let _ = rig.data(65528);
    let _ = rig.flags(BLOCKED);
    rig.nothing_due();
    rig.recv(65528);
    assert_eq!(rig.post().cdc.cons.count, 0);
}

#[test]
fn update_on_request() {
    let requested = ProdFlags {
        update_requested: true,
        ..ProdFlags::default()
    };
    // What was last told is stale: at once.
    let mut rig = Rig::new(1000, 0);
    let _ = rig.data(100);
    rig.recv(3);
    let _ = rig.flags(requested);
    assert_eq!(rig.post().cdc.cons.count, 3);
    rig.nothing_due();
    // It is not: as soon as something is consumed.
    let mut rig = Rig::new(1000, 0);
    let _ = rig.data(100);
    let _ = rig.flags(requested);
    rig.nothing_due();
    rig.recv(1);
    assert_eq!(rig.post().cdc.cons.count, 1);
    rig.recv(1);
    rig.nothing_due();
}

#[test]
fn no_update_for_a_peer_that_closed() {
    let mut rig = Rig::new(1000, 0);
    let _ = rig.data(900);
    let _ = rig.closed();
    rig.recv(900);
    rig.nothing_due();
}

#[test]
fn updates_ride_on_data() {
    let mut rig = Rig::new(1000, 0);
    let _ = rig.data(600);
    let spans = rig.conn.recv_spans(0, 600);
    rig.conn.recv_commit(spans.len());
    rig.send(7);
    let t = rig.post();
    assert_eq!((t.data_len(), t.cdc.cons.count), (7, 600));
}

/// A Linux receiver that saw B holds its update back until more than a tenth, and more than about
/// 2 KiB, was read.
#[test]
fn receiver_that_holds_back_updates() {
    let size = 16384;
    let limit = 2304;
    let mut rig = Rig::with(100_000, size, 0);
    let (mut given, mut written, mut read, mut told) = (0u64, 0u64, 0u64, 0u64);
    for _ in 0..100_000 {
        given += u64::from(rig.send(5000));
        for t in rig.posts() {
            written += u64::from(t.data_len());
            let _ = rig.sent(&t);
        }
        // The application takes 700 bytes at a time.
        read += (written - read).min(700);
        if read - told > limit {
            rig.consumed = read;
            told = read;
            let _ = rig.took(0);
        }
        if written > 10_000_000 {
            assert!(given >= written);
            return;
        }
    }
    panic!("stuck: {given} given, {written} written, {read} read, {told} told");
}

#[test]
fn who_measures_time_gets_completions() {
    let mut rig = Rig::new(4096, 0);
    rig.conn.set_timed(true);
    rig.send(10);
    let t = rig.post();
    assert!(t.signal);
    let _ = rig.sent(&t);
    rig.conn.set_timed(false);
    // What was posted before is asked for.
    let _ = rig.data(1);
    rig.conn.recv_commit(1);
    rig.send(10);
    assert!(!rig.post().signal);
    rig.conn.set_timed(true);
    let s = rig.post();
    assert!(s.signal && s.data_len() == 0);
}

#[test]
fn exact_figure_of_what_is_queued() {
    let mut rig = Rig::new(4096, 0);
    let _ = rig.data(0);
    rig.send(10);
    let t = rig.post();
    assert!(!t.signal);
    assert_eq!((rig.conn.send_queued(), rig.conn.send_unsent()), (10, 0));
    rig.conn.sync_sent();
    let s = rig.post();
    assert!(s.signal && s.data_len() == 0);
    let _ = rig.sent(&s);
    assert_eq!(rig.conn.send_queued(), 0);
    assert!(rig.conn.is_drained());
    // Nothing in flight: nothing to do.
    rig.conn.sync_sent();
    rig.nothing_due();
}

#[test]
fn a_ring_is_free_when_all_of_it_is_confirmed() {
    let mut rig = Rig::new(4096, 0);
    assert_eq!(rig.conn.ring_size(), 4096);
    assert!(rig.conn.is_ring_free());
    // Somebody is about to write to it.
    assert_eq!(rig.conn.send_spans(10).len(), 10);
    assert!(!rig.conn.is_ring_free());
    rig.conn.send_commit(0, SendFlags::default());
    assert!(rig.conn.is_ring_free());
    // Posted, and no completion is to come.
    let _ = rig.data(0);
    rig.send(10);
    assert!(!rig.conn.is_ring_free());
    assert!(!rig.post().signal);
    assert!(!rig.conn.is_ring_free());
    rig.conn.sync_sent();
    let s = rig.post();
    let _ = rig.sent(&s);
    assert!(rig.conn.is_ring_free());
}

#[test]
fn a_free_ring_may_get_another_size() {
    let mut rig = Rig::new(4096, 0);
    let _ = rig.data(0);
    rig.send(10);
    let t = rig.post();
    assert!(!rig.conn.set_ring_size(1024), "it is not free");
    rig.conn.sync_sent();
    let s = rig.post();
    let _ = rig.sent(&s);
    assert_eq!((t.signal, rig.conn.ring_size()), (false, 4096));
    assert!(!rig.conn.set_ring_size(0), "no size");
    assert!(rig.conn.set_ring_size(1024));
    assert_eq!((rig.conn.ring_size(), rig.conn.send_space()), (1024, 1024));
    // The first byte of the new ring goes behind the last one in the peer's element.
    rig.send(20);
    let t = rig.post();
    let write = t.writes()[0];
    assert_eq!((write.from, write.to, write.len), (0, 10, 20));
    rig.conn.sync_sent();
    if !t.signal {
        let s = rig.post();
        let _ = rig.sent(&s);
    } else {
        let _ = rig.sent(&t);
    }
    // What a program has limited stays so when the ring is large again.
    let _ = rig.conn.set_send_limit(2000);
    assert_eq!(rig.conn.send_space(), 1024);
    assert!(rig.conn.set_ring_size(4096));
    assert_eq!(rig.conn.send_space(), 2000);
}

/// One who asks and hears, and has nothing to say for a while, has posted things of which nobody
/// learns that they are done, unless he asks.
#[test]
fn a_dialogue_that_pauses_moves() {
    for asked in 1..=2 * MAX_IN_FLIGHT {
        let mut rig = Rig::new(4096, 0);
        let mut waits = false;
        for _ in 0..asked {
            rig.send(10);
            let t = rig.post();
            waits = !t.signal;
            if t.signal {
                let _ = rig.sent(&t);
            }
            let _ = rig.data(10);
            assert_eq!(rig.recv(10), 10);
            rig.nothing_due();
        }
        // A second link comes. What asks for a completion is all that is posted.
        assert_eq!(rig.conn.may_move(), !waits);
        if waits {
            let t = rig.conn.poll_before_move().unwrap();
            assert!(t.signal && t.data_len() == 0);
            assert_eq!(rig.conn.poll_before_move(), None);
            rig.send(10);
            assert!(!rig.conn.may_move());
            assert_eq!(rig.conn.poll_before_move(), None);
            let _ = rig.sent(&t);
            assert!(rig.conn.may_move());
        }
        // It goes on over there, without a word about the move, which nobody has to be told of.
        assert_eq!(rig.conn.send_unsent() > 0, waits);
        if !waits {
            rig.send(10);
        }
        let t = rig.post();
        assert!(t.data_len() == 10 && !t.cdc.prod_flags.failover);
        let _ = rig.data(10);
        assert_eq!(rig.recv(10), 10);
        rig.nothing_due();
        assert_eq!(rig.conn.error(), None);
    }
}

/// An urgent mark has arrived before the connection goes on elsewhere: whether the peer has taken the data does not matter.
#[test]
fn urgent_data_moves() {
    let mut rig = Rig::new(4096, 0);
    let urgent = SendFlags {
        urgent: true,
        ..SendFlags::default()
    };
    rig.send_with(10, urgent);
    let t = rig.post();
    assert!(t.signal && t.cdc.prod_flags.urgent_present);
    assert!(!rig.conn.may_move());
    let _ = rig.sent(&t);
    assert!(rig.conn.may_move());
    // Until it goes, messages are one behind the other.
    let _ = rig.data(3000);
    assert_eq!(rig.recv(2000), 2000);
    let update = rig.conn.poll_before_move().unwrap();
    assert!(update.signal && update.data_len() == 0);
    assert_eq!(rig.recv(1000), 1000);
    assert_eq!(rig.conn.poll_before_move(), None);
    assert!(!rig.conn.may_move());
    let _ = rig.sent(&update);
    assert!(rig.conn.may_move());
}

#[test]
fn tiny_rings_do_not_wait_for_completions_that_do_not_come() {
    for ring in 1..10 {
        let mut rig = Rig::with(ring, 64, 0);
        for _ in 0..100 {
            // The peer answers every time, so that completions are asked for sparingly.
            let n = rig.send(ring);
            assert!(n > 0, "stuck with a ring of {ring}");
            for t in rig.posts() {
                if t.signal {
                    let _ = rig.sent(&t);
                }
            }
            let unsent = rig.conn.send_unsent();
            let _ = rig.took(n - unsent);
            for t in rig.posts() {
                if t.signal {
                    let _ = rig.sent(&t);
                }
            }
            let _ = rig.took(unsent);
        }
    }
}

#[test]
fn taken_back() {
    let mut rig = Rig::new(64, 0);
    let _ = rig.data(40);
    rig.recv(40);
    rig.send(10);
    let _ = rig.conn.shutdown_write();
    let state = rig.conn.state();
    let before = rig.conn.diag();
    let t = rig.post();
    assert_ne!(rig.conn.state(), state);
    rig.conn.unpost(t.ticket);
    assert_eq!(rig.conn.state(), state);
    assert_eq!(rig.conn.diag(), before);
    assert_eq!(rig.conn.send_unsent(), 10);
    let again = rig.post();
    assert_eq!(again.cdc, t.cdc);
    assert_eq!(again.writes(), t.writes());
    // Too late, or not the last one: no effect.
    let _ = rig.data(0);
    let after = rig.conn.diag();
    rig.conn.unpost(again.ticket);
    rig.conn.unpost(t.ticket);
    assert_eq!(rig.conn.diag(), after);
}

#[test]
fn one_completion_speaks_for_all_before() {
    let mut rig = Rig::new(64, 0);
    let posts = [16; 4].map(|n| {
        rig.send(n);
        rig.post()
    });
    let _ = rig.sent(&posts[2]);
    assert_eq!(rig.conn.send_space(), 48);
    // Nor does an old one take anything back.
    let _ = rig.sent(&posts[0]);
    assert_eq!(rig.conn.send_space(), 48);
    let _ = rig.sent(&posts[3]);
    assert_eq!(rig.conn.send_space(), 64);
}

#[test]
fn less_of_the_ring_may_be_used() {
    let mut rig = Rig::new(64, 0);
    rig.send(16);
    let first = rig.post();
    rig.send(24);
    assert!(!rig.conn.set_send_limit(32).writable);
    assert_eq!(rig.conn.send_space(), 0);
    assert_eq!(rig.send(1), 0);
    // What is there already leaves.
    let rest = rig.posts();
    let events = rig.sent(&first);
    assert_eq!(rig.conn.send_space(), 8);
    assert!(events.writable, "a quarter of the limit is free");
    for t in rest {
        let _ = rig.sent(&t);
    }
    let _ = rig.took(40);
    assert_eq!(rig.conn.send_space(), 32);
    assert_eq!(rig.send(64), 32);
    // Never above the ring, nor nothing at all.
    assert!(rig.conn.set_send_limit(1000).writable);
    assert_eq!(rig.conn.send_space(), 32);
    let _ = rig.conn.set_send_limit(0);
    while let [.., last] = rig.posts().as_slice() {
        let _ = rig.sent(last);
    }
    assert_eq!(rig.conn.send_space(), 1);
}

#[test]
fn a_smaller_limit_asks_for_completions() {
    let mut rig = Rig::new(64, 0);
    let _ = rig.data(0);
    rig.send(4);
    let t = rig.post();
    assert!(!t.signal);
    let _ = rig.conn.set_send_limit(4);
    assert_eq!(rig.conn.send_space(), 0);
    // Without this, nobody would ever tell that there is room.
    let more = rig.post();
    assert!(more.signal && more.data_len() == 0);
    assert!(rig.sent(&more).writable);
}

/// What the peer may have unread at our side, as far as we have told it.
fn allowance(rig: &Rig, told: u64) -> u64 {
    told + u64::from(rig.size - rig.base)
}

#[test]
fn less_of_the_element_may_be_unread() {
    let mut rig = Rig::new(4096, 0);
    let _ = rig.data(4096);
    rig.conn.set_receive_limit(1024);
    // The peer may not write more before there is less than that.
    assert_eq!(rig.recv(3072), 3072);
    rig.nothing_due();
    assert_eq!(rig.recv(1024), 1024);
    let told = rig.post();
    assert_eq!(told.cdc.cons, rig.cursor(1024));
    assert_eq!(rig.conn.traffic().room, 1024);
    let _ = rig.sent(&told);
    rig.nothing_due();
    // It uses that up.
    rig.produced = allowance(&rig, 1024);
    let _ = rig.flags(BLOCKED);
    rig.nothing_due();
    assert_eq!(rig.recv(102), 102);
    rig.nothing_due();
    assert_eq!(rig.recv(1), 1);
    let told = rig.post();
    assert_eq!(told.cdc.cons, rig.cursor(1127));
    let _ = rig.sent(&told);
    // A higher limit acts at once.
    rig.conn.set_receive_limit(u32::MAX);
    assert_eq!(rig.conn.receive_limit(), 4096);
    let told = rig.post();
    assert_eq!(told.cdc.cons, rig.cursor(4199));
    let _ = rig.sent(&told);
    rig.nothing_due();
    // Never nothing at all.
    rig.conn.set_receive_limit(0);
    assert_eq!(rig.conn.receive_limit(), 1);
}

#[test]
fn messages_keep_the_limit() {
    let mut rig = Rig::new(4096, 0);
    rig.conn.set_receive_limit(1000);
    let _ = rig.data(4000);
    assert_eq!(rig.recv(3000), 3000);
    // Data of our own takes along what may be told, and no more.
    rig.send(10);
    assert_eq!(rig.post().cdc.cons, rig.cursor(0));
    assert_eq!(rig.recv(1000), 1000);
    rig.send(10);
    let all = rig.posts();
    assert_eq!(all.last().unwrap().cdc.cons, rig.cursor(904));
    // Asked for the cursor, we tell it.
    let _ = rig.flags(ProdFlags {
        update_requested: true,
        ..ProdFlags::default()
    });
    assert_eq!(rig.post().cdc.cons, rig.cursor(4000));
    // So we do with the end, from which the peer sees whether all was read.
    let _ = rig.data(500);
    assert_eq!(rig.recv(500), 500);
    for t in all {
        let _ = rig.sent(&t);
    }
    let _ = rig.conn.close();
    let end = rig.post();
    assert!(end.cdc.state_flags.closed);
    assert_eq!(end.cdc.cons, rig.cursor(4500));
}

#[test]
fn urgent_data_is_not_held_up_by_the_limit() {
    let mut rig = Rig::new(4096, 0);
    rig.conn.set_receive_limit(100);
    rig.produced += 11;
    let _ = rig.flags(ProdFlags {
        urgent_pending: true,
        urgent_present: true,
        ..ProdFlags::default()
    });
    assert_eq!(rig.recv(10), 10);
    assert_eq!(rig.conn.recv_urgent(false), Ok(10));
    // The peer waits until the byte is consumed.
    assert_eq!(rig.posts().last().unwrap().cdc.cons, rig.cursor(11));
}

/// Whatever the limit: the peer gets on, and never may have more unread than the limit, once that acts.
#[test]
fn a_transfer_within_a_limit() {
    for (size, base) in [(64, 0), (1000, 4), (65536, 0)] {
        let capacity = u64::from(size - base);
        for limit in [1, 2, 7, capacity / 3, capacity - 1, capacity] {
            let mut rig = Rig::new(size, base);
            rig.conn.set_receive_limit(limit as u32);
            let (mut told, mut read, mut blocked) = (0, 0, false);
            let end = 20 * capacity.max(100);
            for round in 0.. {
                assert!(round < 20 * end, "stuck: {read} read, limit {limit}");
                // The peer writes what it may, in pieces.
                let piece = (allowance(&rig, told) - rig.produced).min(1 + round * 7 % 100);
                rig.produced += piece;
                blocked |= allowance(&rig, told) == rig.produced;
                let _ = rig.flags(ProdFlags {
                    blocked,
                    ..ProdFlags::default()
                });
                if read >= capacity {
                    assert!(rig.produced - read <= limit, "more than the limit");
                }
                read += u64::from(rig.recv((1 + round * 11 % 90) as u32));
                for t in rig.posts() {
                    let before = told;
                    while rig.cursor(told) != t.cdc.cons {
                        told += 1;
                        assert!(told <= read, "told what was not read");
                    }
                    blocked &= told == before;
                    let _ = rig.sent(&t);
                }
                if read >= end {
                    break;
                }
            }
        }
    }
}

/// The peer keeps its window below what is worth a transmit.
#[test]
fn a_cork_gives_way_to_a_small_window() {
    let mut rig = Rig::new(4096, 0);
    assert_eq!(rig.send(4096), 4096);
    let t = rig.post();
    rig.conn.set_cork(true);
    let _ = rig.sent(&t);
    assert_eq!(rig.send(4000), 4000);
    rig.nothing_due();
    let _ = rig.took(100);
    assert_eq!(rig.post().data_len(), 100);
}

#[test]
fn less_may_wait_to_be_sent() {
    let mut rig = Rig::new(4096, 0);
    assert!(!rig.conn.has_unsent_limit());
    rig.conn.set_unsent_limit(2000);
    assert!(rig.conn.has_unsent_limit());
    // What has left does not count.
    assert_eq!(rig.send(4096), 2000);
    assert_eq!(rig.conn.send_space(), 0);
    assert_eq!(rig.post().data_len(), 2000);
    assert_eq!(rig.send(4096), 2000);
    assert_eq!(rig.post().data_len(), 2000);
    assert_eq!(rig.send(4096), 96);
    for low in [0, 1, 100] {
        let mut rig = Rig::new(4096, 0);
        rig.conn.set_unsent_limit(low);
        // In pieces that are worth it, whatever the limit.
        assert_eq!(rig.send(4096), 1024);
        assert_eq!(rig.conn.send_space(), 0);
        let _ = rig.posts();
        assert_eq!(rig.send(4096), 1024);
    }
}

#[test]
fn a_cork_gives_way_to_what_may_wait() {
    let mut rig = Rig::new(4096, 0);
    rig.conn.set_unsent_limit(100);
    rig.conn.set_cork(true);
    assert_eq!(rig.send(99), 99);
    rig.nothing_due();
    assert_eq!(rig.send(1), 1);
    assert_eq!(rig.post().data_len(), 100);
}

#[test]
fn rings_without_room() {
    let params = smc_proto::conn::Params {
        send_ring: 64,
        element: 64,
        peer_element: 64,
        base: 4,
        peer_token: crate::TOKEN,
        max_transmit: 0,
    };
    for bad in [
        smc_proto::conn::Params {
            send_ring: 0,
            ..params
        },
        smc_proto::conn::Params {
            element: 4,
            ..params
        },
        smc_proto::conn::Params {
            peer_element: 3,
            ..params
        },
    ] {
        assert!(smc_proto::conn::Conn::new(&bad).is_none());
    }
    assert!(smc_proto::conn::Conn::new(&params).is_some());
}

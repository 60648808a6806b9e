// SPDX-License-Identifier: GPL-2.0

//! Messages of a peer that is wrong, late, or moves to another link.

use smc_proto::{
    cdc::{
        Cdc,
        ProdFlags,
        RawCursor,
        StateFlags, //
    },
    conn::{
        ConnError,
        Early,
        State,
        Violation, //
    },
    cursor::CursorError,
    group::{LinkIx, MAX_LINKS},
    wire::AlertToken, //
};

use crate::Rig;

const F: ProdFlags = ProdFlags {
    blocked: false,
    urgent_pending: false,
    urgent_present: false,
    update_requested: false,
    failover: true,
};

/// The annotated vectors of CDC messages: 1000 bytes, then 66000 in all with B.
fn first() -> Cdc {
    Cdc {
        seq: 1,
        token: AlertToken(7),
        prod: RawCursor {
            wrap: 0,
            count: 1000,
        },
        ..Cdc::default()
    }
}

fn blocked() -> Cdc {
    Cdc {
        seq: 17,
        token: AlertToken(7),
        prod: RawCursor {
            wrap: 1,
            count: 464,
        },
        cons: RawCursor {
            wrap: 0,
            count: 60000,
        },
        prod_flags: ProdFlags {
            blocked: true,
            ..ProdFlags::default()
        },
        state_flags: StateFlags::default(),
    }
}

/// Both directions have moved 60000 bytes.
fn busy_rig() -> Rig {
    let mut rig = Rig::new(65536, 0);
    while rig.produced < 60000 {
        let _ = rig.data(1000);
        assert_eq!(rig.recv(1000), 1000);
        assert_eq!(rig.send(1000), 1000);
        for t in rig.posts() {
            let _ = rig.sent(&t);
        }
        let _ = rig.took(1000);
    }
    rig
}

#[track_caller]
fn refused(rig: &mut Rig, cdc: &Cdc, violation: Violation) {
    let readable = rig.conn.readable();
    let events = rig.handle(cdc);
    assert_eq!(events.violation, Some(violation));
    assert!(events.changed);
    assert_eq!(
        rig.conn.error(),
        Some(ConnError::ProtocolViolation(violation))
    );
    assert_eq!(rig.conn.state(), State::PeerAbortWait);
    assert!(rig.conn.reset_tcp());
    assert!(rig.post().cdc.state_flags.aborted);
    assert_eq!(rig.conn.readable(), readable);
}

#[test]
fn producer_outside_of_the_element() {
    let beyond = Violation::Producer(CursorError::BeyondEnd);
    for count in [65536, 65537, u32::MAX] {
        let mut cdc = first();
        cdc.prod.count = count;
        refused(&mut Rig::new(65536, 0), &cdc, beyond);
        cdc.prod.wrap = 1;
        refused(&mut Rig::new(65536, 4), &cdc, beyond);
    }
    for count in 0..4 {
        let mut cdc = first();
        cdc.cons.count = 4;
        cdc.prod.count = count;
        let below = Violation::Producer(CursorError::BelowBase);
        refused(&mut Rig::new(65536, 4), &cdc, below);
    }
}

#[test]
fn producer_overruns_unread_data() {
    let mut rig = Rig::new(64, 0);
    let _ = rig.data(64);
    assert_eq!(rig.recv(10), 10);
    let mut cdc = rig.message();
    cdc.prod = rig.cursor(64 + 10);
    assert_eq!(rig.handle(&cdc).violation, None);
    cdc = rig.message();
    cdc.prod = rig.cursor(64 + 11);
    refused(&mut rig, &cdc, Violation::ProducerOverrun);
}

#[test]
fn producer_leaps() {
    let far = Violation::Producer(CursorError::TooFar);
    for wrap in [1, 2, 3, 0x7fff] {
        let mut rig = Rig::new(64, 0);
        let mut cdc = rig.message();
        cdc.prod = RawCursor { wrap, count: 1 };
        refused(&mut rig, &cdc, far);
    }
}

#[test]
fn consumer_of_nothing() {
    let mut rig = Rig::new(64, 0);
    rig.send(10);
    let mut cdc = rig.message();
    cdc.cons.count = 1;
    // Accepted from the application, but not written yet.
    refused(&mut rig, &cdc, Violation::ConsumerAhead);

    let mut rig = Rig::new(64, 0);
    rig.send(10);
    rig.posts();
    let mut cdc = rig.message();
    cdc.cons.count = 10;
    assert_eq!(rig.handle(&cdc).violation, None);
    let mut cdc = rig.message();
    cdc.cons.count = 11;
    let events = rig.handle(&cdc);
    assert_eq!(events.violation, Some(Violation::ConsumerAhead));

    let mut rig = Rig::new(64, 0);
    let mut cdc = rig.message();
    cdc.cons.count = 64;
    let beyond = Violation::Consumer(CursorError::BeyondEnd);
    refused(&mut rig, &cdc, beyond);
}

#[test]
fn nothing_of_a_bad_message_counts() {
    let mut rig = Rig::new(64, 0);
    rig.send(10);
    rig.posts();
    let mut cdc = rig.message();
    cdc.prod.count = 5;
    cdc.cons.count = 11;
    let events = rig.handle(&cdc);
    assert_eq!(events.violation, Some(Violation::ConsumerAhead));
    assert_eq!(rig.conn.diag().rx_producer.offset(), 0);
    assert_eq!(rig.conn.diag().rx_consumer.offset(), 0);
}

#[test]
fn old_message_is_dropped() {
    let mut rig = busy_rig();
    let mut cdc = blocked();
    cdc.seq = rig.seq + 10;
    let events = rig.handle(&cdc);
    assert_eq!((events.violation, events.dropped), (None, false));
    assert_eq!(rig.conn.readable(), 6000);
    let before = rig.conn.diag();
    let events = rig.handle(&first());
    assert!(
        events.dropped && !events.late,
        "nothing overtakes on a link"
    );
    // Half of the numbers ahead is behind, too.
    cdc.seq = cdc.seq.wrapping_add(0x8000);
    let events = rig.handle(&cdc);
    assert!(events.dropped && !events.late);
    assert_eq!(rig.conn.diag(), before);
}

/// What another link's message has overtaken has no effect, which is nobody's fault; what is older than the one before
/// on its own link is the peer's.
#[test]
fn a_message_of_another_link_may_be_late() {
    let mut rig = Rig::new(64, 0);
    let at = |rig: &mut Rig, seq, count| Cdc {
        seq,
        prod: rig.cursor(count),
        ..rig.message()
    };
    let [first, second, third, fourth] =
        [(1, 10), (2, 20), (3, 30), (4, 40)].map(|(seq, count)| at(&mut rig, seq, count));
    assert!(!rig.handle_over(0, &first).dropped);
    assert!(!rig.handle_over(1, &third).dropped);
    let events = rig.handle_over(0, &second);
    assert!(events.dropped && events.late);
    for _ in 0..2 {
        let events = rig.handle_over(1, &second);
        assert!(events.dropped && !events.late, "the third one was before");
    }
    let events = rig.handle_over(0, &first);
    assert!(
        events.dropped && !events.late,
        "it came after the second one"
    );
    assert_eq!(rig.conn.readable(), 30);
    // The peer does not know yet that the connection is over.
    let _ = rig.conn.abort();
    let events = rig.handle_over(0, &fourth);
    assert!(events.dropped && events.late);
}

#[test]
fn sequence_numbers_wrap() {
    let mut rig = Rig::new(64, 0);
    for i in 0..200_000u32 {
        let events = rig.data(1);
        assert!(!events.dropped, "message {i}");
        assert_eq!(rig.recv(10), 1);
        for t in rig.posts() {
            let _ = rig.sent(&t);
        }
    }
    // As old as can be, and as new as can be.
    let seq = rig.seq;
    for (back, dropped) in [(1, true), (0x8000, true), (0x7fff, true), (0, false)] {
        let cdc = Cdc {
            seq: seq.wrapping_sub(back),
            ..rig.message()
        };
        assert_eq!(rig.handle(&cdc).dropped, dropped, "{back}");
    }
}

#[test]
fn equal_sequence_is_processed() {
    let mut rig = Rig::new(64, 0);
    let _ = rig.data(5);
    let cdc = Cdc {
        seq: rig.seq,
        prod: rig.cursor(7),
        ..rig.message()
    };
    let events = rig.handle(&cdc);
    assert!(!events.dropped && events.readable);
    assert_eq!(rig.conn.readable(), 7);
}

#[test]
fn producer_steps_back_after_failover() {
    let mut rig = Rig::new(64, 0);
    let _ = rig.data(60);
    rig.recv(60);
    let _ = rig.data(10);
    assert_eq!(rig.conn.readable(), 10);
    // The peer starts again from an earlier place, around the end of the ring.
    let mut cdc = rig.message();
    cdc.prod = rig.cursor(62);
    cdc.state_flags.done = true;
    let events = rig.handle(&cdc);
    assert_eq!(events.violation, None);
    assert_eq!(rig.conn.readable(), 10, "the cursor is ignored");
    assert!(rig.conn.read_shut(), "the flags are not");
}

#[test]
fn failover_validation() {
    let run = |last: u16, said: u16| {
        let mut rig = Rig::new(64, 0);
        // Not more than half of the numbers at a time.
        let mut seq = 0u16;
        while seq != last {
            let ahead = last.wrapping_sub(seq).min(0x7000);
            seq = seq.wrapping_add(ahead);
            let cdc = Cdc {
                seq,
                ..rig.message()
            };
            assert!(!rig.handle(&cdc).dropped);
        }
        let before = rig.conn.diag();
        let cdc = Cdc {
            seq: said,
            prod_flags: F,
            ..Cdc::default()
        };
        let events = rig.handle(&cdc);
        if events.violation.is_none() {
            assert_eq!(rig.conn.diag(), before);
        }
        events.violation
    };
    assert_eq!(run(17, 18), Some(Violation::DataLost));
    assert_eq!(run(18, 18), None);
    assert_eq!(run(19, 18), None);
    assert_eq!(run(2, 0xffff), None);
    assert_eq!(run(0xffff, 2), Some(Violation::DataLost));
    assert_eq!(run(0, 0), None);
    assert_eq!(run(0, 1), Some(Violation::DataLost));
}

/// Two messages of the old link, the validation, and the first one of the new link.
fn crossing(rig: &mut Rig) -> [Cdc; 4] {
    let mut at = |seq, count| {
        let mut cdc = rig.message();
        cdc.seq = seq;
        cdc.prod.count = count;
        cdc
    };
    let validation = Cdc {
        seq: 2,
        prod_flags: F,
        ..Cdc::default()
    };
    [at(1, 10), at(2, 20), validation, at(3, 30)]
}

#[test]
fn late_messages_of_the_old_link_are_waited_for() {
    let mut rig = Rig::new(64, 0);
    rig.conn.set_several_links(true);
    let [first, second, validation, third] = crossing(&mut rig);
    for cdc in [validation, third] {
        let events = rig.handle(&cdc);
        assert_eq!((events.violation, events.readable), (None, false));
        assert_eq!(events.held, cdc == third);
        assert_eq!(rig.conn.readable(), 0);
    }
    assert!(rig.conn.is_awaiting());
    assert!(rig.handle(&first).readable);
    assert_eq!(rig.conn.readable(), 10);
    let events = rig.handle(&second);
    assert!(events.readable && !rig.conn.is_awaiting());
    assert_eq!(rig.conn.readable(), 30, "and what was held");
    assert_eq!(rig.conn.handle_drained().violation, None);
    assert!(rig.handle(&first).dropped);
}

#[test]
fn what_never_comes_is_lost() {
    let mut rig = Rig::new(64, 0);
    rig.conn.set_several_links(true);
    let [first, _, validation, third] = crossing(&mut rig);
    for cdc in [first, validation, third] {
        assert_eq!(rig.handle(&cdc).violation, None);
    }
    let events = rig.conn.handle_drained();
    assert_eq!(events.violation, Some(Violation::DataLost));
    assert_eq!(
        rig.conn.error(),
        Some(ConnError::ProtocolViolation(Violation::DataLost))
    );
    assert_eq!(rig.conn.readable(), 10, "what had come stays readable");
}

#[test]
fn urgent_data_is_not_forgotten_while_it_is_held() {
    let mut rig = Rig::new(64, 0);
    rig.conn.set_several_links(true);
    let [first, second, validation, mut third] = crossing(&mut rig);
    third.prod_flags.urgent_present = true;
    third.prod_flags.urgent_pending = true;
    let mut fourth = third;
    fourth.seq = 4;
    fourth.prod_flags = Default::default();
    for cdc in [validation, third, fourth, first] {
        assert!(!rig.handle(&cdc).urgent);
    }
    assert!(rig.handle(&second).urgent);
    assert!(rig.conn.urgent_ready());
}

/// The next link fails too, before what came over the first one was handed over.
#[test]
fn links_that_fail_one_after_the_other() {
    let validations = |rig: &mut Rig, numbers: &[u16]| {
        for &seq in numbers {
            assert_eq!(rig.handle(&validation(seq)).violation, None);
        }
    };
    // What a second validation names has come already, and is held.
    let mut rig = Rig::new(64, 0);
    rig.conn.set_several_links(true);
    let [first, second, validation, third] = crossing(&mut rig);
    for cdc in [first, validation, third] {
        let _ = rig.handle(&cdc);
    }
    validations(&mut rig, &[3]);
    assert!(rig.conn.is_awaiting() && rig.conn.is_holding());
    assert_eq!(rig.conn.readable(), 10);
    assert!(rig.handle(&second).readable);
    assert!(!rig.conn.is_awaiting() && !rig.conn.is_holding());
    assert_eq!(rig.conn.readable(), 30);
    assert_eq!(rig.conn.handle_drained().violation, None);

    // What it names comes before what the first one named, and is held for that.
    for numbers in [[2, 3], [3, 2]] {
        let mut rig = Rig::new(64, 0);
        rig.conn.set_several_links(true);
        validations(&mut rig, &numbers);
        let mut marked = second;
        marked.prod_flags.urgent_present = true;
        let mut update = third;
        update.prod = second.prod;
        assert!(rig.handle(&first).readable);
        assert!(rig.handle(&update).held);
        assert!(
            rig.handle(&marked).urgent,
            "the mark is in one message only"
        );
        assert!(!rig.conn.is_awaiting() && !rig.conn.is_holding());
    }

    // One is held behind both, with the mark of one that was between them.
    let mut rig = Rig::new(64, 0);
    rig.conn.set_several_links(true);
    let at = |seq| Cdc { seq, ..third };
    let mut marked = third;
    marked.prod_flags.urgent_present = true;
    validations(&mut rig, &[2]);
    assert!(rig.handle(&marked).held);
    validations(&mut rig, &[4]);
    assert!(rig.handle(&at(5)).held);
    assert!(!rig.handle(&second).urgent);
    assert!(rig.conn.is_holding());
    assert!(rig.handle(&at(4)).urgent, "not without its mark");
    assert!(!rig.conn.is_awaiting() && !rig.conn.is_holding());
}

/// A validation of the message with this number.
fn validation(seq: u16) -> Cdc {
    Cdc {
        seq,
        prod_flags: F,
        ..Cdc::default()
    }
}

/// Each failure gives the messages of its link their time anew; to say it twice does not.
#[test]
fn each_failure_is_awaited_on_its_own() {
    let mut rig = Rig::new(64, 0);
    rig.conn.set_several_links(true);
    let [first, second, _, third] = crossing(&mut rig);
    assert!(!rig.handle(&first).awaits);
    assert!(!rig.handle(&validation(1)).awaits, "that one has come");
    assert!(rig.handle(&validation(2)).awaits);
    assert!(!rig.handle(&validation(2)).awaits);
    assert!(rig.handle(&validation(3)).awaits);
    let events = rig.handle(&third);
    assert!(events.held && !events.awaits);
    assert!(!rig.handle(&validation(3)).awaits, "that one is held");
    let events = rig.handle(&second);
    assert!(events.readable && !events.awaits);
    assert!(!rig.conn.is_awaiting());
}

/// Linux names the number before the last that came. If that one got lost with its link, nobody says so.
#[test]
fn what_came_later_over_an_older_link_ends_the_wait() {
    let at = |rig: &mut Rig, seq, count| {
        let mut cdc = rig.message();
        cdc.seq = seq;
        cdc.prod.count = count;
        cdc
    };
    // 2 and 3 are lost with the first link; 4 is the first on the second one, and waits to be looked at.
    let mut rig = Rig::new(64, 0);
    rig.conn.set_several_links(true);
    let [first, fourth, fifth] = [(1, 10), (4, 20), (5, 30)].map(|(s, c)| at(&mut rig, s, c));
    assert!(rig.handle_over(0, &first).readable);
    assert!(rig.handle_over(2, &validation(3)).awaits);
    assert!(rig.handle_over(2, &fifth).held);
    assert!(!rig.handle_over(1, &validation(0)).awaits);
    assert!(rig.handle_over(1, &fourth).readable);
    assert!(!rig.conn.is_awaiting() && !rig.conn.is_holding());
    assert_eq!(rig.conn.readable(), 30);

    // What comes over a link that begins with the same word may have overtaken it: whichever of the two
    // links is looked at first.
    for links in [[1, 2], [2, 1]] {
        let mut rig = Rig::new(64, 0);
        rig.conn.set_several_links(true);
        let [first, second, third, fourth] =
            [(1, 10), (2, 20), (3, 30), (4, 40)].map(|(s, c)| at(&mut rig, s, c));
        assert!(rig.handle_over(links[0], &validation(2)).awaits);
        assert!(!rig.handle_over(links[1], &validation(2)).awaits);
        assert!(rig.handle_over(1, &third).held);
        assert!(rig.handle_over(2, &fourth).held);
        assert!(rig.handle_over(0, &first).readable);
        assert_eq!(rig.conn.readable(), 10);
        assert!(rig.handle_over(0, &second).readable);
        assert_eq!(rig.conn.readable(), 40);
    }
    // The same where the later word names a later message.
    for newest_first in [false, true] {
        let mut rig = Rig::new(64, 0);
        rig.conn.set_several_links(true);
        let [first, third, fifth] = [(1, 10), (3, 30), (5, 50)].map(|(s, c)| at(&mut rig, s, c));
        if newest_first {
            assert!(rig.handle_over(2, &validation(3)).awaits);
            assert!(rig.handle_over(1, &validation(1)).awaits);
        } else {
            assert!(rig.handle_over(1, &validation(1)).awaits);
            assert!(rig.handle_over(2, &validation(3)).awaits);
        }
        assert!(rig.handle_over(2, &fifth).held);
        assert!(rig.handle_over(1, &third).held);
        assert!(rig.conn.is_awaiting());
        assert!(rig.handle_over(0, &first).readable);
        assert_eq!(rig.conn.readable(), 50);
        assert!(!rig.conn.is_awaiting() && !rig.conn.is_holding());
    }
    // A number that is later than the missing one, but was sent over the new link: no news.
    let mut rig = Rig::new(64, 0);
    rig.conn.set_several_links(true);
    let [_, _, _, third] = crossing(&mut rig);
    assert!(rig.handle_over(1, &validation(2)).awaits);
    assert!(rig.handle_over(1, &third).held);
    let events = rig.conn.handle_drained();
    assert_eq!(events.violation, Some(Violation::DataLost));
}

/// Where one message has to stand for all that came.
#[test]
fn one_message_in_place_of_all() {
    let of = |seq| Cdc {
        seq,
        ..Cdc::default()
    };
    for (new, old, takes) in [
        (of(2), of(1), true),
        (of(1), of(2), false),
        (of(2), of(2), true),
        (of(1), of(0xffff), true),
        (of(0xffff), of(1), false),
        (validation(9), of(2), false),
        (of(1), validation(2), true),
        (validation(2), validation(1), false),
    ] {
        assert_eq!(new.supersedes(&old), takes, "{new:?} {old:?}");
    }
}

/// What comes before the connection is set up: the latest message, and a validation of what has not come by then.
#[test]
fn messages_that_come_early() {
    let of = |seq| Cdc {
        seq,
        ..Cdc::default()
    };
    let place = |number| LinkIx::new(number).unwrap();
    for (messages, kept) in [
        (&[][..], &[][..]),
        (&[of(1), of(3), of(2)], &[of(3)]),
        (&[validation(0)], &[]),
        (&[of(2), validation(2), of(3)], &[of(3)]),
        (&[of(3), validation(2)], &[of(3)]),
        (&[validation(2), of(3)], &[validation(2), of(3)]),
        (&[validation(2), of(3), of(2)], &[of(3)]),
        (&[of(1), validation(2), of(2), of(3)], &[of(3)]),
        (
            &[validation(1), validation(2), of(3)],
            &[validation(2), of(3)],
        ),
        (&[validation(2), validation(1)], &[validation(2)]),
        (&[of(0xffff), validation(1), of(0)], &[validation(1), of(0)]),
    ] {
        let mut early = Early::default();
        for (number, message) in messages.iter().enumerate() {
            early.keep(place(number), message);
        }
        let found: Vec<_> = early.into_messages().collect();
        let all = || (0..).map(place).zip(messages.iter().copied());
        let expected: Vec<_> = kept
            .iter()
            .map(|message| all().find(|(_, other)| other == message).unwrap())
            .collect();
        assert_eq!(found, expected, "{messages:?}");
    }
}

/// What only the first of two says about a place is kept when the other one stands for both.
#[test]
fn urgent_data_that_comes_early() {
    let mut rig = Rig::new(64, 0);
    rig.produced = 10;
    let marked = Cdc {
        prod_flags: ProdFlags {
            urgent_present: true,
            urgent_pending: true,
            ..ProdFlags::default()
        },
        ..rig.message()
    };
    rig.state.done = true;
    let ended = rig.message();
    for messages in [[marked, ended], [ended, marked]] {
        let mut early = Early::default();
        messages
            .iter()
            .for_each(|message| early.keep(LinkIx::FIRST, message));
        let mut rig = Rig::new(64, 0);
        let mut urgent = false;
        for (_, message) in early.into_messages() {
            urgent |= rig.handle(&message).urgent;
        }
        assert!(urgent && rig.conn.urgent_ready());
        assert_eq!(rig.conn.readable(), 9);
        assert!(rig.conn.read_shut());
    }
}

/// As many links as there can be fail: all of their messages are waited for, in any order.
#[test]
fn all_links_fail() {
    let numbers = [2, 4, 6, 8, 10, 12, 14, 16, 18];
    assert_eq!(numbers.len(), MAX_LINKS);
    let awaiting = || {
        let mut rig = Rig::new(64, 0);
        rig.conn.set_several_links(true);
        for seq in numbers {
            let events = rig.handle(&validation(seq));
            assert_eq!((events.violation, events.awaits), (None, true));
        }
        assert!(!rig.handle(&validation(2)).awaits);
        rig
    };
    let mut rig = awaiting();
    let [first, second, _, third] = crossing(&mut rig);
    assert!(rig.handle(&third).held);
    assert!(rig.handle(&Cdc { seq: 19, ..third }).held);
    assert!(rig.handle(&first).readable);
    for seq in [8, 18, 4, 12, 6, 10, 16] {
        assert!(rig.handle(&Cdc { seq, ..third }).held);
    }
    assert_eq!(rig.conn.readable(), 10);
    assert!(rig.handle(&second).readable);
    assert_eq!(rig.conn.readable(), 20);
    assert!(rig.conn.is_awaiting() && rig.conn.is_holding());
    assert!(rig.handle(&Cdc { seq: 14, ..third }).readable);
    assert_eq!(rig.conn.readable(), 30);
    assert!(!rig.conn.is_awaiting() && !rig.conn.is_holding());

    // Any of them that does not come is lost, the last ones too.
    for lost in numbers {
        let mut rig = awaiting();
        for seq in numbers.into_iter().filter(|seq| *seq != lost) {
            let _ = rig.handle(&Cdc { seq, ..third });
        }
        assert!(rig.conn.is_awaiting());
        let events = rig.conn.handle_drained();
        assert_eq!(events.violation, Some(Violation::DataLost), "{lost}");
    }

    // More than there can be links: what is not remembered must not get lost silently.
    let mut rig = awaiting();
    refused(&mut rig, &validation(20), Violation::DataLost);
}

#[test]
fn a_held_connection_says_nothing_until_both_have_moved_it() {
    let moved = validation(0);
    for peer_first in [true, false] {
        let mut rig = Rig::new(64, 0);
        rig.conn.set_nodelay(true);
        rig.conn.set_held(true, true);
        rig.send(20);
        rig.nothing_due();
        if peer_first {
            assert_eq!(rig.handle(&moved).violation, None);
            rig.nothing_due();
        }
        // Where it moves itself, it says so.
        let _ = rig.conn.handle_failover();
        let mut posts = rig.posts();
        assert!(posts[0].cdc.prod_flags.failover);
        if !peer_first {
            assert_eq!(posts.len(), 1);
            assert_eq!(rig.handle(&moved).violation, None);
            posts.extend(rig.posts());
        }
        assert_eq!((posts.len(), posts[1].data_len()), (2, 20));
        rig.conn.set_held(true, false);
        rig.send(1);
        rig.nothing_due();
        rig.conn.set_held(false, false);
        assert_eq!(rig.posts().len(), 1);
        // An abort is not held back.
        rig.conn.set_held(true, true);
        let _ = rig.conn.abort();
        let posts = rig.posts();
        assert!(posts.len() == 1 && posts[0].cdc.state_flags.aborted);
    }
}

#[test]
fn moving_to_another_link() {
    let mut rig = Rig::new(64, 0);
    rig.send(4);
    let a = rig.post();
    rig.send(20);
    let b = rig.post();
    rig.send(20);
    let c = rig.post();
    assert_eq!((a.cdc.seq, b.cdc.seq, c.cdc.seq), (1, 2, 3));
    let _ = rig.sent(&a);
    let _ = rig.conn.handle_sent(b.ticket, false);
    // Nothing is posted on a link that failed.
    rig.send(2);
    rig.nothing_due();
    // Yet the second write arrived, as the peer says.
    let _ = rig.took(10);
    let _ = rig.conn.handle_failover();
    let posts = rig.posts();
    let [f, rest @ ..] = posts.as_slice() else {
        panic!("nothing due");
    };
    assert!(f.cdc.prod_flags.failover && f.writes().is_empty());
    assert_eq!(f.cdc.seq, 1, "the last message that was confirmed");
    assert_eq!((f.cdc.prod, f.cdc.cons), Default::default());
    let first = rest.first().expect("the data once more");
    assert_eq!(first.cdc.seq, 4, "numbers go on");
    assert_eq!(
        first.writes()[0].from,
        10,
        "nothing below what was consumed"
    );
    assert_eq!(first.writes()[0].to, 10);
    let total: u32 = rest.iter().map(|t| t.data_len()).sum();
    assert_eq!(total, 36, "all of the rest");
    // Late completions of the old link say nothing.
    let _ = rig.conn.handle_sent(c.ticket, true);
    assert_eq!(rig.conn.send_queued(), 36);
    for t in &posts {
        let _ = rig.sent(t);
    }
    assert_eq!(rig.conn.send_queued(), 0);
}

#[test]
fn reports_that_may_be_lost_are_asked_for() {
    let moved = validation(0);
    for ours_fails in [true, false] {
        let mut rig = Rig::new(16384, 0);
        rig.conn.set_spare(true);
        rig.send(16384);
        let posts = rig.posts();
        let total: u32 = posts.iter().map(|t| t.data_len()).sum();
        assert_eq!(total, 16376, "a few bytes stay free");
        let last = posts.last().unwrap();
        assert!(last.cdc.prod_flags.blocked && !last.cdc.prod_flags.update_requested);
        let _ = rig.sent(last);
        for n in 1..=8 {
            if ours_fails {
                let _ = rig.conn.handle_failover();
                let [first, then] = rig.posts().try_into().expect("F and a message");
                assert!(first.cdc.prod_flags.failover && then.cdc.prod_flags.update_requested);
                let _ = rig.sent(&then);
            } else {
                assert_eq!(rig.handle(&moved).violation, None);
            }
            let asks = rig.post();
            assert_eq!(asks.data_len(), 1, "{n}");
            assert!(asks.cdc.prod_flags.update_requested);
            let _ = rig.sent(&asks);
        }
        // Part of it may be old.
        let _ = rig.took(16376);
        rig.send(4);
        let asks = rig.post();
        assert_eq!(asks.data_len(), 4);
        assert!(asks.cdc.prod_flags.update_requested);
        let _ = rig.took(8);
        rig.send(16384);
        let total: u32 = rig
            .posts()
            .iter()
            .map(|t| {
                assert!(!t.cdc.prod_flags.update_requested);
                t.data_len()
            })
            .sum();
        assert_eq!(total, 16372);
    }

    // With one link, all of it is used, and nothing is in doubt.
    let mut rig = Rig::new(16384, 0);
    rig.send(16384);
    let total: u32 = rig.posts().iter().map(|t| t.data_len()).sum();
    assert_eq!(total, 16384);
}

/// A place of the stream by a cursor, as long as its round is not over.
fn total(cursor: RawCursor, size: u32) -> u64 {
    u64::from(cursor.wrap) * u64::from(size) + u64::from(cursor.count)
}

#[test]
fn no_message_names_a_place_behind_one_that_was_named() {
    // Little data beyond the end of the first round, which would wait for the completion of what opens the link; and
    // more of it than one transmit has otherwise.
    let sizes = [
        (16384, 16000, vec![500]),
        (524_288, 500_000, vec![200_000, 200_000]),
    ];
    for ((size, first, lost), aborts) in sizes.iter().flat_map(|case| [(case, false), (case, true)])
    {
        let (size, first) = (*size, *first);
        let mut rig = Rig::new(size, 0);
        rig.send(first);
        for post in rig.posts() {
            let _ = rig.sent(&post);
        }
        let _ = rig.took(first);
        let mut named = 0;
        for n in lost {
            rig.send(*n);
            for post in rig.posts() {
                named = total(post.cdc.prod, size);
            }
        }
        let all = u64::from(first) + lost.iter().map(|n| u64::from(*n)).sum::<u64>();
        assert_eq!(named, all);
        // More that is to be sent changes nothing about that, nor does the end of all.
        rig.send(3);
        if aborts {
            let _ = rig.conn.abort();
        }
        let _ = rig.conn.handle_failover();
        let posts = rig.posts();
        let [opens, again, ..] = posts.as_slice() else {
            panic!("{posts:?}");
        };
        assert!(opens.cdc.prod_flags.failover);
        assert!(total(again.cdc.prod, size) >= named, "{again:?}");
        assert_eq!(again.writes()[0].from, first % size);
        assert_eq!(again.cdc.state_flags.aborted, aborts);
    }
}

#[test]
fn close_is_repeated_on_the_new_link() {
    let mut rig = Rig::new(64, 0);
    rig.send(4);
    let _ = rig.conn.close();
    let t = rig.post();
    assert!(t.cdc.state_flags.closed);
    assert_eq!(rig.conn.state(), State::PeerCloseWait1);
    let _ = rig.conn.handle_sent(t.ticket, false);
    let _ = rig.conn.handle_failover();
    let posts = rig.posts();
    assert_eq!(posts.len(), 2);
    assert!(posts[0].cdc.prod_flags.failover && posts[0].writes().is_empty());
    assert!(!posts[1].cdc.prod_flags.failover);
    assert!(posts[1].cdc.state_flags.closed);
    assert_eq!(posts[1].data_len(), 4);
    assert_eq!(rig.conn.state(), State::PeerCloseWait1);
    let _ = rig.sent(&posts[1]);
    // Confirmed: a further move needs no word.
    let _ = rig.conn.handle_failover();
    rig.nothing_due();
}

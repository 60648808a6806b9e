// SPDX-License-Identifier: GPL-2.0

//! States and transitions at the end of a connection, one by one.

use smc_proto::{
    conn::{
        ConnError,
        Event,
        Events,
        Facts,
        State,
        Timer,
        Violation, //
    },
    cursor::CursorError,
};

use crate::{Rig, BLOCKED};
use Op::*;
use State::*;

/// Something that happens to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    /// The application closes.
    Close,
    /// The application shuts both directions, or only the sending one.
    ShutBoth,
    ShutWrite,
    /// A message with D, with C, with A.
    Done,
    Closed,
    Abort,
    /// Data arrives.
    Data,
    /// The TCP connection is reset.
    Reset,
    /// The timer that runs expires.
    Expire,
}

/// What a message says about the sender's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Nothing,
    D,
    C,
    A,
}
use Said::*;

/// Carries out `op`; what the connection says to the peer then.
fn act(rig: &mut Rig, op: Op) -> Said {
    let _ = match op {
        Close => rig.conn.close(),
        ShutBoth => rig.conn.shutdown_both(),
        ShutWrite => rig.conn.shutdown_write(),
        Op::Done => rig.done(),
        Op::Closed => rig.closed(),
        Abort => rig.aborted(),
        Data => rig.data(3),
        Reset => rig.conn.handle_tcp_reset(),
        Expire => {
            let timer = rig.conn.timer().expect("a timer");
            rig.conn.handle_timeout(timer)
        }
    };
    let posts = rig.posts();
    for t in &posts {
        let _ = rig.sent(t);
    }
    assert!(posts.len() <= 1);
    match posts.first().map(|t| t.cdc.state_flags) {
        Some(f) if f.aborted => A,
        Some(f) if f.closed => C,
        Some(f) if f.done => D,
        _ => Nothing,
    }
}

/// What leads to a state, the event, what is sent, the new state.
type Row = (&'static [Op], State, Op, Said, State);

#[rustfmt::skip]
const ROWS: &[Row] = &[
    (&[], Active, Close, C, PeerCloseWait1),
    (&[], Active, ShutBoth, C, PeerCloseWait1),
    (&[Data], Active, Close, A, PeerCloseWait1),
    (&[Data], Active, ShutBoth, D, PeerCloseWait1),
    (&[Data, ShutBoth], PeerCloseWait1, Close, A, PeerCloseWait1),
    (&[], Active, ShutWrite, D, PeerCloseWait1),
    (&[Data], Active, ShutWrite, D, PeerCloseWait1),
    (&[], Active, Op::Done, Nothing, AppCloseWait1),
    (&[], Active, Op::Closed, Nothing, AppCloseWait1),
    (&[ShutWrite], PeerCloseWait1, Op::Done, Nothing, PeerCloseWait2),
    (&[Close], PeerCloseWait1, Op::Done, Nothing, PeerCloseWait2),
    (&[Close], PeerCloseWait1, Op::Closed, Nothing, State::Closed),
    (&[Data, Close], PeerCloseWait1, Op::Closed, Nothing, State::Closed),
    (&[Close, Op::Done], PeerCloseWait2, Op::Closed, Nothing, State::Closed),
    (&[ShutWrite], PeerCloseWait1, Op::Closed, Nothing, AppFinCloseWait),
    (&[ShutBoth], PeerCloseWait1, Op::Closed, Nothing, AppFinCloseWait),
    (&[ShutWrite, Op::Done], PeerCloseWait2, Op::Closed, Nothing, AppFinCloseWait),
    (&[ShutBoth, Op::Done], PeerCloseWait2, Op::Closed, Nothing, AppFinCloseWait),
    (&[ShutWrite], PeerCloseWait1, Close, C, PeerCloseWait1),
    (&[ShutWrite, Data], PeerCloseWait1, Close, A, PeerCloseWait1),
    (&[ShutBoth], PeerCloseWait1, Close, Nothing, PeerCloseWait1),
    (&[ShutWrite, Op::Done], PeerCloseWait2, Close, C, PeerCloseWait2),
    (&[Close], PeerCloseWait1, Expire, Nothing, State::Closed),
    (&[Close, Op::Done], PeerCloseWait2, Expire, Nothing, State::Closed),
    (&[Op::Done], AppCloseWait1, ShutWrite, D, AppCloseWait2),
    (&[Op::Closed], AppCloseWait1, ShutWrite, D, AppCloseWait2),
    (&[Op::Closed], AppCloseWait1, Close, C, State::Closed),
    (&[Data, Op::Closed], AppCloseWait1, Close, A, State::Closed),
    (&[Op::Closed, ShutWrite], AppCloseWait2, Close, C, State::Closed),
    (&[Op::Done], AppCloseWait1, Close, C, PeerFinCloseWait),
    (&[Data, Op::Done], AppCloseWait1, Close, A, PeerFinCloseWait),
    (&[Op::Done, ShutWrite], AppCloseWait2, Close, C, PeerFinCloseWait),
    (&[Op::Done], AppCloseWait1, Op::Closed, Nothing, AppCloseWait1),
    (&[Op::Done, ShutWrite], AppCloseWait2, Op::Closed, Nothing, AppCloseWait2),
    (&[ShutWrite, Op::Closed], AppFinCloseWait, Close, C, State::Closed),
    (&[ShutBoth, Op::Closed], AppFinCloseWait, Close, Nothing, State::Closed),
    (&[Op::Done, Close], PeerFinCloseWait, Op::Closed, Nothing, State::Closed),
    (&[Op::Done, Close], PeerFinCloseWait, Expire, Nothing, State::Closed),
    // The peer aborts.
    (&[], Active, Abort, A, ProcessAbort),
    (&[Op::Done], AppCloseWait1, Abort, A, ProcessAbort),
    (&[Op::Closed], AppCloseWait1, Abort, A, ProcessAbort),
    (&[ShutWrite, Op::Closed], AppFinCloseWait, Abort, A, ProcessAbort),
    (&[ShutWrite], PeerCloseWait1, Abort, A, ProcessAbort),
    (&[ShutWrite, Op::Done], PeerCloseWait2, Abort, A, ProcessAbort),
    (&[Close], PeerCloseWait1, Abort, Nothing, State::Closed),
    (&[Close, Op::Done], PeerCloseWait2, Abort, Nothing, State::Closed),
    (&[Op::Done, ShutWrite], AppCloseWait2, Abort, A, State::Closed),
    (&[Op::Done, Close], PeerFinCloseWait, Abort, Nothing, State::Closed),
    (&[Abort], ProcessAbort, Close, Nothing, State::Closed),
    // We abort.
    (&[], Active, Reset, A, PeerAbortWait),
    (&[ShutWrite], PeerCloseWait1, Reset, A, PeerAbortWait),
    (&[Close], PeerCloseWait1, Reset, Nothing, PeerAbortWait),
    (&[ShutWrite, Op::Done], PeerCloseWait2, Reset, A, PeerAbortWait),
    (&[Op::Done], AppCloseWait1, Reset, A, PeerAbortWait),
    (&[Op::Done, ShutWrite], AppCloseWait2, Reset, A, PeerAbortWait),
    (&[Op::Done, Close], PeerFinCloseWait, Reset, Nothing, PeerAbortWait),
    (&[Reset], PeerAbortWait, Abort, Nothing, State::Closed),
    (&[Reset], PeerAbortWait, Expire, Nothing, State::Closed),
    // What comes afterwards changes nothing.
    (&[Op::Closed], AppCloseWait1, Reset, Nothing, AppCloseWait1),
    (&[Data, Op::Closed], AppCloseWait1, Reset, Nothing, AppCloseWait1),
    (&[Op::Closed, ShutWrite], AppCloseWait2, Reset, Nothing, AppCloseWait2),
    (&[ShutWrite, Op::Closed], AppFinCloseWait, Reset, Nothing, AppFinCloseWait),
    (&[Reset], PeerAbortWait, Data, Nothing, PeerAbortWait),
    (&[Reset], PeerAbortWait, Op::Done, Nothing, PeerAbortWait),
    (&[Reset], PeerAbortWait, Op::Closed, Nothing, PeerAbortWait),
    (&[Reset], PeerAbortWait, Close, Nothing, PeerAbortWait),
    (&[Abort], ProcessAbort, Data, Nothing, ProcessAbort),
    (&[Abort], ProcessAbort, Op::Done, Nothing, ProcessAbort),
    (&[Abort], ProcessAbort, Op::Closed, Nothing, ProcessAbort),
    (&[Close, Op::Closed], State::Closed, Data, Nothing, State::Closed),
    (&[Close, Op::Closed], State::Closed, Op::Done, Nothing, State::Closed),
    (&[Close, Op::Closed], State::Closed, Abort, Nothing, State::Closed),
    (&[Close, Op::Closed], State::Closed, Reset, Nothing, State::Closed),
];

#[test]
fn transitions() {
    for &(path, state, op, said, next) in ROWS {
        for base in [0, 4] {
            let mut rig = Rig::new(64, base);
            for &op in path {
                act(&mut rig, op);
            }
            let row = format!("{path:?} {op:?}");
            assert_eq!(rig.conn.state(), state, "{row}");
            assert_eq!(act(&mut rig, op), said, "{row}");
            assert_eq!(rig.conn.state(), next, "{row}");
        }
    }
}

#[test]
fn not_connected_yet() {
    let facts = Facts {
        peer_closed: false,
        fin_sent: false,
        app_closed: false,
    };
    assert_eq!(Init.next(Event::AppClosed, facts), State::Closed);
    assert_eq!(Listen.next(Event::AppClosed, facts), State::Closed);
    assert_eq!(Init.next(Event::PeerDone, facts), AppCloseWait1);
    assert_eq!(Init.next(Event::PeerClosed, facts), AppCloseWait1);
    assert_eq!(Init.next(Event::PeerAbort, facts), ProcessAbort);
    assert_eq!(Init.next(Event::LocalAbort, facts), State::Closed);
}

#[test]
fn numbers_of_states() {
    let numbers = [
        (Active, 1),
        (Init, 2),
        (State::Closed, 7),
        (Listen, 10),
        (PeerCloseWait1, 20),
        (PeerCloseWait2, 21),
        (AppCloseWait1, 22),
        (AppCloseWait2, 23),
        (AppFinCloseWait, 24),
        (PeerFinCloseWait, 25),
        (PeerAbortWait, 26),
        (ProcessAbort, 27),
    ];
    for (state, number) in numbers {
        assert_eq!(state.number(), number, "{state}");
    }
}

#[test]
fn spans_of_the_timers() {
    assert_eq!(Timer::Cork.millis(), 200);
    assert_eq!(Timer::Drain.millis(), 60_000);
    assert_eq!(Timer::CloseWait.millis(), 60_000);
    assert_eq!(Timer::AbortWait.millis(), 2_000);
}

#[test]
fn close_goes_with_the_last_data() {
    let mut rig = Rig::new(64, 0);
    assert_eq!(rig.send(10), 10);
    let _ = rig.conn.close();
    let t = rig.post();
    assert_eq!(t.data_len(), 10);
    assert!(t.cdc.state_flags.closed && t.cdc.state_flags.done);
    assert!(t.signal);
    assert_eq!(rig.conn.timer(), Some(Timer::CloseWait));
    let _ = rig.closed();
    assert_eq!(rig.conn.state(), State::Closed);
    // The memory is still in use.
    assert!(!rig.conn.is_done());
    assert!(rig.sent(&t).changed);
    assert!(rig.conn.is_done());
    assert!(!rig.conn.reset_tcp());
}

#[test]
fn close_waits_for_the_window() {
    let mut rig = Rig::with(64, 16, 0);
    assert_eq!(rig.send(40), 40);
    let _ = rig.conn.close();
    let mut total = 0;
    for _ in 0..100 {
        let posts = rig.posts();
        for t in &posts {
            assert_eq!(rig.conn.error(), None);
            total += t.data_len();
            assert_eq!(t.cdc.state_flags.closed, total == 40);
            let _ = rig.sent(t);
        }
        if total == 40 {
            assert_eq!(rig.conn.state(), PeerCloseWait1);
            return;
        }
        assert_eq!(rig.conn.state(), Active);
        assert_eq!(rig.conn.timer(), Some(Timer::Drain));
        assert_eq!(rig.conn.send_space(), 0);
        let _ = rig.took((total - rig.consumed as u32).min(5));
    }
    panic!("not drained");
}

/// Lets everything due arrive.
fn pump(rig: &mut Rig) {
    for t in rig.posts() {
        let _ = rig.sent(&t);
    }
}

#[test]
fn slow_reader_gets_everything() {
    let mut rig = Rig::with(4096, 16, 0);
    assert_eq!(rig.send(4096), 4096);
    let _ = rig.conn.close();
    pump(&mut rig);
    // However long it takes, as long as something is taken in each span.
    for _ in 0..4096 - 16 {
        assert_eq!(rig.conn.timer(), Some(Timer::Drain));
        let _ = rig.took(1);
        pump(&mut rig);
        let _ = rig.conn.handle_timeout(Timer::Drain);
    }
    assert_eq!(rig.conn.state(), PeerCloseWait1);
    assert!(rig.conn.diag().tx_state_flags.closed && !rig.conn.reset_tcp());
}

#[test]
fn drain_ends_without_progress() {
    let mut rig = Rig::with(64, 16, 0);
    rig.send(64);
    pump(&mut rig);
    let _ = rig.conn.close();
    let _ = rig.took(1);
    let _ = rig.conn.handle_timeout(Timer::Drain);
    // No slot was free until now: what is written is progress, too.
    pump(&mut rig);
    let _ = rig.conn.handle_timeout(Timer::Drain);
    assert_eq!(rig.conn.state(), Active);
    let _ = rig.conn.handle_timeout(Timer::Drain);
    assert_eq!(rig.conn.state(), PeerAbortWait);
    let t = rig.post();
    assert!(t.cdc.state_flags.aborted && t.writes().is_empty());
    assert!(rig.conn.reset_tcp());
    assert_eq!(rig.conn.timer(), Some(Timer::AbortWait));
}

#[test]
fn failover_hides_no_progress() {
    let mut rig = Rig::with(64, 16, 0);
    rig.send(64);
    let _ = rig.conn.close();
    rig.posts();
    // 16 bytes are written; what the timer remembers now.
    let _ = rig.conn.handle_timeout(Timer::Drain);
    assert_eq!(rig.conn.state(), Active);
    // As many bytes are taken as are to be written again.
    let _ = rig.took(8);
    let _ = rig.conn.handle_failover();
    let _ = rig.conn.handle_timeout(Timer::Drain);
    assert_eq!(rig.conn.state(), Active);
}

#[test]
fn close_ends_without_a_reset_once_all_has_arrived() {
    for both in [false, true] {
        let mut rig = Rig::new(64, 0);
        rig.send(20);
        let _ = if both {
            rig.conn.shutdown_both()
        } else {
            rig.conn.close()
        };
        pump(&mut rig);
        let events = rig.conn.handle_timeout(Timer::CloseWait);
        assert!(events.changed);
        assert_eq!(rig.conn.state(), State::Closed);
        assert!(!rig.conn.reset_tcp());
        assert_eq!(rig.conn.error(), None);
        assert!(rig.conn.is_done());
        rig.nothing_due();
    }
}

#[test]
fn close_that_was_not_confirmed_ends_with_a_reset() {
    for both in [false, true] {
        let mut rig = Rig::new(64, 0);
        rig.send(10);
        let _ = if both {
            rig.conn.shutdown_both()
        } else {
            rig.conn.close()
        };
        assert!(rig.post().cdc.state_flags.closed);
        let events = rig.conn.handle_timeout(Timer::CloseWait);
        assert!(events.changed);
        assert_eq!(rig.conn.state(), State::Closed);
        assert!(rig.conn.reset_tcp());
        let error = both.then_some(ConnError::TimedOut);
        assert_eq!(rig.conn.error(), error);
    }
}

#[test]
fn peer_closes_on_unsent_data() {
    let mut rig = Rig::with(64, 16, 0);
    rig.send(64);
    for t in rig.posts() {
        let _ = rig.sent(&t);
    }
    let events = rig.closed();
    assert!(events.changed && events.writable && events.readable);
    assert_eq!(rig.conn.error(), Some(ConnError::Reset));
    let t = rig.post();
    assert!(t.cdc.state_flags.aborted);
    assert_eq!(t.data_len(), 0);
    assert_eq!(rig.conn.state(), State::Closed);
    assert!(!rig.conn.is_done());
    let _ = rig.sent(&t);
    assert!(rig.conn.is_done());
}

/// What ends a connection before its time, and how that is reported.
type End = (fn(&mut Rig) -> Events, ConnError);

const ENDS: &[End] = &[
    (Rig::aborted, ConnError::Reset),
    (Rig::closed, ConnError::Reset),
    (|rig| rig.conn.handle_tcp_reset(), ConnError::TcpReset),
    (
        |rig| rig.conn.handle_tcp_data(),
        ConnError::ProtocolViolation(Violation::TcpData),
    ),
    (|rig| rig.conn.handle_link_failed(), ConnError::LinkFailed),
    (
        |rig| rig.took(33),
        ConnError::ProtocolViolation(Violation::Consumer(CursorError::TooFar)),
    ),
];

/// A connection with 20 bytes to read and as many unsent.
fn busy_rig() -> Rig {
    let mut rig = Rig::with(64, 32, 0);
    assert_eq!(rig.data(20).violation, None);
    pump(&mut rig);
    assert_eq!(rig.send(32 + 20), 32 + 20);
    pump(&mut rig);
    assert_eq!((rig.conn.readable(), rig.conn.send_unsent()), (20, 20));
    rig
}

#[test]
fn bytes_over_tcp_are_one_violation_however_many_come() {
    let mut rig = busy_rig();
    let events = rig.conn.handle_tcp_data();
    assert_eq!(events.violation, Some(Violation::TcpData));
    assert!(events.changed && rig.conn.reset_tcp());
    assert_eq!(rig.conn.handle_tcp_data(), Default::default());
    // What follows the peer's end is no part of the stream, and ends nothing.
    let mut rig = Rig::with(64, 32, 0);
    let _ = rig.closed();
    assert_eq!(rig.conn.handle_tcp_data(), Default::default());
    assert_eq!(rig.conn.error(), None);
}

#[test]
fn an_element_that_is_taken_away_is_a_violation_while_it_is_in_use() {
    let mut rig = busy_rig();
    let events = rig.conn.handle_element_gone();
    assert_eq!(events.violation, Some(Violation::ElementGone));
    assert!(events.changed && rig.conn.reset_tcp());
    assert_eq!(rig.conn.error(), Some(ConnError::LinkFailed));
    // There is nothing that could be written to.
    rig.nothing_due();
    assert_eq!(rig.conn.handle_element_gone(), Default::default());
    // The peer has ended it, or we have, or its link has failed: that is why it is over.
    let ends: &[fn(&mut Rig) -> Events] = &[
        Rig::aborted,
        Rig::closed,
        |rig| rig.conn.handle_link_failed(),
        |rig| rig.conn.handle_tcp_reset(),
        |rig| rig.took(33),
    ];
    for end in ends {
        let mut rig = busy_rig();
        let _ = end(&mut rig);
        let error = rig.conn.error();
        assert_eq!(rig.conn.handle_element_gone().violation, None);
        assert_eq!(rig.conn.error(), error);
        assert_eq!(rig.conn.state(), State::Closed);
    }
    // Both have said all, and the peer has C: it needs nothing any more.
    let mut rig = Rig::with(64, 32, 0);
    let _ = rig.closed();
    assert_eq!(rig.conn.handle_element_gone().violation, None);
    assert_eq!(rig.conn.error(), None);
}

#[test]
fn what_had_arrived_is_readable_before_the_error() {
    for &(end, error) in ENDS {
        let mut rig = busy_rig();
        assert_eq!(rig.recv(5), 5);
        // A reader copies at the moment.
        assert_eq!(rig.conn.recv_spans(0, 8).len(), 8);
        let _ = end(&mut rig);
        assert_eq!(rig.conn.error(), Some(error));
        let posts = rig.posts();
        assert!(posts.len() <= 1, "{posts:?}");
        for t in &posts {
            assert!(t.cdc.state_flags.aborted && t.writes().is_empty());
            let _ = rig.sent(t);
        }
        assert_eq!(rig.conn.readable(), 15);
        assert!(rig.conn.read_shut() && rig.conn.write_shut() && !rig.conn.eof());
        rig.conn.recv_commit(8);
        // Nothing is added, whatever comes in or runs out.
        let _ = rig.data(9);
        if let Some(timer) = rig.conn.timer() {
            let _ = rig.conn.handle_timeout(timer);
        }
        let _ = rig.aborted();
        let _ = rig.conn.handle_link_failed();
        assert_eq!(rig.conn.state(), State::Closed);
        assert_eq!((rig.conn.readable(), rig.conn.eof()), (7, false));
        assert!(!rig.conn.is_done(), "{error}: data is left to be read");
        // A look, then two reads.
        assert_eq!(rig.conn.recv_spans(2, 100).len(), 5);
        rig.conn.recv_commit(0);
        assert_eq!(rig.recv(6), 6);
        assert!(!rig.conn.is_done());
        assert_eq!(rig.recv(100), 1);
        assert_eq!(rig.recv(100), 0);
        assert!(rig.conn.eof() && rig.conn.is_done());
        assert_eq!(rig.conn.error(), Some(error));
        rig.nothing_due();
    }
}

#[test]
fn a_stream_with_an_end_keeps_it() {
    for (n, &(end, error)) in ENDS.iter().enumerate() {
        let mut rig = busy_rig();
        let _ = end(&mut rig);
        // The second one is the peer's close.
        assert_eq!(rig.conn.is_whole(), n == 1, "{error}");
        let mut rig = busy_rig();
        assert!(!rig.conn.is_whole());
        let _ = rig.done();
        assert!(rig.conn.is_whole());
        let _ = end(&mut rig);
        assert!(rig.conn.is_whole(), "{error}");
    }
}

/// A peer like Linux, which has filled our element, and ends its direction, or both, with some bytes left that have found
/// no room, perhaps.
fn filled_and_ended(done: bool, closed: bool) -> Rig {
    let mut rig = Rig::new(64, 0);
    rig.produced = 64;
    let _ = rig.flags(BLOCKED);
    rig.state.done = done;
    rig.state.closed = closed;
    let events = rig.flags(BLOCKED);
    assert!(!events.readable && events.changed == closed && events.writable == closed);
    assert!(!rig.conn.read_shut() && !rig.conn.is_flowing());
    rig
}

const ENDS_OF_LINUX: [(bool, bool); 3] = [(true, false), (false, true), (true, true)];

/// The program reads so much, and the peer hears of it.
fn read_and_tell(rig: &mut Rig, n: u32) {
    assert_eq!(rig.recv(n), n);
    let post = rig.post();
    assert_eq!(rig.conn.timer(), None, "the peer need not have heard of it");
    let _ = rig.sent(&post);
}

#[test]
fn an_end_with_data_left_is_put_off_until_that_has_come() {
    for (done, closed) in ENDS_OF_LINUX {
        let mut rig = filled_and_ended(done, closed);
        assert_eq!(rig.conn.timer(), None, "nothing comes before there is room");
        read_and_tell(&mut rig, 64);
        assert_eq!(rig.conn.timer(), Some(Timer::Rest));
        // Some of the rest, with which our element is full again, and then all of it.
        rig.produced += 64;
        let _ = rig.flags(BLOCKED);
        assert_eq!(rig.conn.timer(), None);
        assert_eq!(rig.conn.handle_timeout(Timer::Rest), Events::default());
        read_and_tell(&mut rig, 64);
        let events = rig.data(10);
        assert!(events.changed && rig.conn.read_shut() && rig.conn.is_whole());
        assert_eq!((rig.recv(100), rig.conn.eof()), (10, true));
        assert_eq!(rig.conn.peer_closed(), closed);
        assert_eq!(rig.conn.timer(), None);
    }
}

/// The last bytes have filled our element exactly.
#[test]
fn an_end_with_nothing_left_is_one_soon_after_all_was_read() {
    for (done, closed) in ENDS_OF_LINUX {
        let mut rig = filled_and_ended(done, closed);
        read_and_tell(&mut rig, 60);
        assert_eq!(rig.conn.timer(), None, "not all was read");
        read_and_tell(&mut rig, 4);
        assert_eq!(rig.conn.timer(), Some(Timer::Rest));
        assert!(!rig.conn.read_shut());
        let events = rig.conn.handle_timeout(Timer::Rest);
        assert!(events.changed && events.readable);
        assert!(rig.conn.eof() && !rig.conn.is_whole());
        assert_eq!((rig.conn.peer_closed(), rig.conn.error()), (closed, None));
        assert_eq!(rig.conn.timer(), None);
    }
}

/// The link fails on which the peer was told that there is room.
#[test]
fn an_end_is_put_off_as_long_as_the_peer_need_not_know_of_the_room() {
    for (done, closed) in ENDS_OF_LINUX {
        let mut rig = filled_and_ended(done, closed);
        assert_eq!(rig.recv(64), 64);
        let post = rig.post();
        let _ = rig.conn.handle_sent(post.ticket, false);
        assert_eq!(rig.conn.timer(), None);
        let _ = rig.conn.handle_failover();
        let posts = rig.posts();
        assert_eq!(posts.last().map(|t| t.cdc.cons), Some(rig.cursor(64)));
        assert_eq!(rig.conn.timer(), None);
        for post in &posts {
            let _ = rig.sent(post);
        }
        assert_eq!(rig.conn.timer(), Some(Timer::Rest));
    }
}

/// A peer that has closed reads nothing more, whatever it has left: writers do not wait for it.
#[test]
fn writers_do_not_wait_for_an_end_that_was_put_off() {
    for (done, closed) in ENDS_OF_LINUX {
        let rig = filled_and_ended(done, closed);
        assert_eq!(
            (rig.conn.write_shut(), rig.conn.is_unheard()),
            (closed, closed)
        );
        // What could not be sent to it is lost.
        let mut rig = Rig::with(128, 64, 0);
        assert_eq!(rig.send(64), 64);
        let _ = rig.posts();
        assert_eq!(rig.send(10), 10);
        assert!(rig.posts().iter().all(|t| t.writes().is_empty()));
        rig.produced = 64;
        rig.state.done = done;
        rig.state.closed = closed;
        let _ = rig.flags(BLOCKED);
        assert_eq!(rig.conn.error(), closed.then_some(ConnError::Reset));
    }
}

/// Once it has said that it ended, Linux goes over to another link without saying what it sent last.
#[test]
fn a_gap_behind_an_end_that_was_put_off_is_a_loss() {
    for (done, closed) in ENDS_OF_LINUX {
        let mut rig = filled_and_ended(done, closed);
        read_and_tell(&mut rig, 64);
        rig.seq += 1;
        rig.produced += 20;
        let cdc = rig.message();
        let events = rig.handle_over(1, &cdc);
        assert_eq!(events.violation, Some(Violation::DataLost));
        assert_eq!(rig.recv(100), 0);
        assert!(!rig.conn.is_whole());
    }
}

#[test]
fn an_end_that_was_put_off_is_one_for_who_closes() {
    for (done, closed) in ENDS_OF_LINUX {
        let after = if closed {
            State::Closed
        } else {
            State::PeerFinCloseWait
        };
        for unread in [0, 64] {
            let mut rig = filled_and_ended(done, closed);
            assert_eq!(rig.recv(64 - unread), 64 - unread);
            let _ = rig.conn.close();
            let posts = rig.posts();
            let flags = posts.last().map(|t| t.cdc.state_flags).expect("an end");
            assert_eq!((flags.aborted, flags.closed), (unread > 0, unread == 0));
            assert_eq!((rig.conn.state(), rig.conn.error()), (after, None));
        }
        let mut rig = filled_and_ended(done, closed);
        let _ = rig.conn.shutdown_both();
        assert!(rig.conn.read_shut());
        let mut rig = filled_and_ended(done, closed);
        let _ = rig.conn.abort();
        assert!(rig.conn.read_shut());
    }
}

/// The peer's TCP connection went the way of its socket, which says nothing new.
#[test]
fn a_reset_behind_a_close_that_was_put_off_is_no_news() {
    for (done, closed) in ENDS_OF_LINUX {
        let mut rig = filled_and_ended(done, closed);
        let _ = rig.conn.handle_tcp_reset();
        assert_eq!(rig.conn.error().is_none(), closed);
        let mut rig = filled_and_ended(done, closed);
        assert_eq!(rig.conn.handle_tcp_data().violation.is_none(), closed);
        // With the link, what was left is lost.
        let mut rig = filled_and_ended(done, closed);
        let _ = rig.conn.handle_link_failed();
        assert_eq!(rig.conn.error(), Some(ConnError::LinkFailed));
        assert!(!rig.conn.is_whole());
    }
}

/// What was whole once stays so.
#[test]
fn a_close_of_a_blocked_peer_that_was_done_is_one() {
    let mut rig = Rig::new(4096, 0);
    let _ = rig.done();
    rig.state.closed = true;
    let _ = rig.flags(BLOCKED);
    assert!(rig.conn.is_whole() && rig.conn.peer_closed());
}

/// The A that stood for a C may not have got through, and the connection is over by now.
#[test]
fn an_abort_for_unread_data_is_repeated_as_such() {
    let ends: [fn(&mut Rig) -> Events; 2] = [Rig::aborted, |rig| {
        rig.conn.handle_timeout(Timer::AbortWait)
    }];
    for end in ends {
        let mut rig = Rig::with(64, 32, 0);
        rig.send(5);
        let _ = rig.conn.shutdown_both();
        let _ = rig.data(5);
        let _ = rig.conn.close();
        let posts = rig.posts();
        let last = posts.last().expect("the data, and the end");
        assert!(last.cdc.state_flags.aborted, "there is unread data");
        rig.recv(5);
        let _ = end(&mut rig);
        assert_eq!(rig.conn.state(), State::Closed);
        let _ = rig.conn.handle_failover();
        let posts = rig.posts();
        assert!(posts.iter().all(|t| t.writes().is_empty()));
        let flags = posts.last().expect("the end").cdc.state_flags;
        assert!(flags.aborted && !flags.closed);
    }
}

/// Both directions were shut on unread data, which the application reads then: C follows.
#[test]
fn shutting_on_unread_data_says_d_until_it_is_read() {
    for late in [false, true] {
        let mut rig = Rig::with(64, 32, 0);
        rig.send(5);
        if !late {
            let _ = rig.data(5);
        }
        let _ = rig.conn.shutdown_both();
        if late {
            let _ = rig.data(5);
        }
        let posts = rig.posts();
        let sent: usize = posts
            .iter()
            .flat_map(|t| t.writes())
            .map(|w| w.len as usize)
            .sum();
        assert_eq!(sent, 5, "all that was taken is sent");
        for t in &posts {
            let _ = rig.sent(t);
        }
        let flags = posts.last().expect("the end").cdc.state_flags;
        assert!(
            flags.done && !flags.closed && !flags.aborted,
            "late: {late}"
        );
        rig.nothing_due();
        rig.recv(5);
        let flags = rig.post().cdc.state_flags;
        assert!(flags.closed && !flags.aborted, "late: {late}");
        assert_eq!(rig.conn.error(), None);
    }
}

#[test]
fn what_was_given_up_is_not_repeated() {
    for &(end, error) in ENDS {
        let mut rig = Rig::with(64, 32, 0);
        rig.send(5);
        let _ = rig.conn.shutdown_both();
        assert!(rig.post().cdc.state_flags.closed);
        let _ = end(&mut rig);
        let _ = rig.conn.handle_failover();
        for t in rig.posts() {
            // But for what was named before: the A names no place behind that.
            assert!(
                t.writes().is_empty() || t.cdc.state_flags.aborted,
                "{error}"
            );
            // Nothing was unsent when the peer closed: there C is repeated.
            let c = rig.conn.error().is_none();
            assert_eq!(t.cdc.state_flags.closed, c && !t.cdc.prod_flags.failover);
            let _ = rig.sent(&t);
        }
        rig.nothing_due();
    }
}

#[test]
fn a_closed_socket_leaves_unread_data() {
    for &(end, error) in ENDS {
        let mut rig = busy_rig();
        // A reader copies at the moment.
        assert_eq!(rig.conn.recv_spans(0, 8).len(), 8);
        let _ = end(&mut rig);
        pump(&mut rig);
        let _ = rig.conn.close();
        if rig.conn.timer() == Some(Timer::AbortWait) {
            let _ = rig.conn.handle_timeout(Timer::AbortWait);
        }
        assert_eq!(rig.conn.state(), State::Closed);
        assert!(!rig.conn.is_done(), "{error}: the reader is not through");
        rig.conn.recv_commit(8);
        assert!(rig.conn.is_done(), "{error}");
        rig.nothing_due();
    }
}

#[test]
fn own_abort_drops_what_was_received() {
    let mut rig = busy_rig();
    let _ = rig.conn.abort();
    assert_eq!(rig.conn.error(), Some(ConnError::Aborted));
    assert_eq!(rig.conn.readable(), 0);
    assert!(rig.conn.eof() && rig.conn.recv_spans(0, 100).is_empty());
    assert!(rig.post().cdc.state_flags.aborted);

    // The same after any other end.
    for &(end, error) in ENDS {
        let mut rig = busy_rig();
        let _ = end(&mut rig);
        let _ = rig.conn.abort();
        assert_eq!(rig.conn.error(), Some(error));
        assert_eq!(rig.conn.readable(), 0);
        assert!(rig.conn.recv_spans(0, 100).is_empty());
    }
}

#[test]
fn the_reset_follows_what_was_sent() {
    // The application gives the connection up right behind its data.
    let sent = || {
        let mut rig = busy_rig();
        let _ = rig.conn.abort();
        assert!(!rig.conn.reset_tcp());
        let abort = rig.post();
        assert!(abort.cdc.state_flags.aborted && abort.signal);
        assert!(!rig.conn.reset_tcp());
        (rig, abort)
    };
    let (mut rig, abort) = sent();
    let _ = rig.conn.handle_sent(abort.ticket, true);
    assert!(rig.conn.reset_tcp());
    // It goes over another link, and the reset behind it.
    let (mut rig, abort) = sent();
    let _ = rig.conn.handle_sent(abort.ticket, false);
    assert!(!rig.conn.reset_tcp());
    let _ = rig.conn.handle_failover();
    assert!(!rig.conn.reset_tcp());
    let posts = rig.posts();
    let [_, again] = posts.as_slice() else {
        panic!("{posts:?}");
    };
    assert!(again.cdc.state_flags.aborted);
    assert!(!rig.conn.reset_tcp());
    let _ = rig.conn.handle_sent(again.ticket, true);
    assert!(rig.conn.reset_tcp());
    // Nobody waits for what cannot arrive any more.
    let (mut rig, _) = sent();
    let _ = rig.conn.handle_link_failed();
    assert!(rig.conn.reset_tcp());
    let (mut rig, _) = sent();
    let _ = rig.conn.handle_timeout(Timer::AbortWait);
    assert!(rig.conn.reset_tcp());
}

/// A link fails while a close that lingers waits: what was on it has not arrived yet.
#[test]
fn a_link_that_fails_drains_nothing() {
    let mut rig = Rig::new(64, 0);
    rig.send(4);
    let lost = rig.post();
    let _ = rig.conn.close();
    let _ = rig.conn.handle_sent(lost.ticket, false);
    assert!(!rig.conn.is_drained());
    let _ = rig.conn.handle_failover();
    assert!(!rig.conn.is_drained());
    for post in rig.posts() {
        let _ = rig.sent(&post);
    }
    assert!(rig.conn.is_drained());
    // Where there is no other one, nobody waits.
    let mut rig = Rig::new(64, 0);
    rig.send(4);
    let lost = rig.post();
    let _ = rig.conn.close();
    let _ = rig.conn.handle_sent(lost.ticket, false);
    let _ = rig.conn.handle_link_failed();
    assert!(rig.conn.is_drained());
}

/// Who has our C may take its element back, and say so on a link that is faster than the one of its own C.
#[test]
fn the_element_of_a_peer_that_was_told_of_the_end_may_go() {
    let ends: [fn(&mut Rig) -> Events; 2] =
        [|rig| rig.conn.close(), |rig| rig.conn.shutdown_both()];
    for end in ends {
        let mut rig = Rig::new(64, 0);
        let _ = end(&mut rig);
        let post = rig.post();
        assert!(post.cdc.state_flags.closed);
        let _ = rig.sent(&post);
        let events = rig.conn.handle_element_gone();
        assert_eq!(events.violation, None);
        assert_eq!(rig.conn.error(), None);
        assert!(!rig.conn.reset_tcp());
        assert_eq!(rig.conn.state(), State::Closed);
    }
    // Before, it is none of its business.
    let mut rig = Rig::new(64, 0);
    let events = rig.conn.handle_element_gone();
    assert_eq!(events.violation, Some(Violation::ElementGone));
    assert!(rig.conn.reset_tcp());
}

#[test]
fn data_announced_with_the_abort_counts() {
    let mut rig = busy_rig();
    rig.produced += 3;
    let events = rig.aborted();
    assert!(events.readable && events.changed && events.violation.is_none());
    assert_eq!(rig.conn.error(), Some(ConnError::Reset));
    assert_eq!(rig.recv(100), 23);

    // It has to be possible, else only the abort counts.
    let mut rig = busy_rig();
    rig.produced += 13;
    let events = rig.aborted();
    assert_eq!(events.violation, None);
    assert_eq!(rig.conn.error(), Some(ConnError::Reset));
    assert_eq!(rig.recv(100), 20);

    // We had given up before.
    let mut rig = busy_rig();
    let _ = rig.conn.handle_tcp_reset();
    rig.produced += 3;
    let _ = rig.aborted();
    assert_eq!(rig.recv(100), 20);
}

#[test]
fn after_c_tcp_and_link_have_no_news() {
    for link in [false, true] {
        for shut in [false, true] {
            let mut rig = Rig::new(64, 0);
            let _ = rig.data(20);
            rig.send(5);
            pump(&mut rig);
            if shut {
                let _ = rig.conn.shutdown_write();
                pump(&mut rig);
            }
            let _ = rig.closed();
            let state = rig.conn.state();
            if link {
                let _ = rig.conn.handle_link_failed();
                assert_eq!(rig.conn.state(), State::Closed);
            } else {
                assert_eq!(rig.conn.handle_tcp_reset(), Default::default());
                assert_eq!(rig.conn.state(), state);
            }
            assert_eq!((rig.conn.error(), rig.conn.reset_tcp()), (None, false));
            assert!(!rig.conn.eof() && !rig.conn.is_done());
            assert_eq!(rig.recv(100), 20);
            assert!(rig.conn.eof());
            assert_eq!(rig.conn.error(), None);
            rig.nothing_due();
            let _ = rig.conn.close();
            pump(&mut rig);
            assert!(rig.conn.is_done() && !rig.conn.reset_tcp());
        }
    }
}

#[test]
fn data_left_at_the_end_is_readable() {
    let mut rig = Rig::new(64, 0);
    rig.produced = 20;
    let events = rig.closed();
    assert!(events.readable && events.changed);
    assert!(!rig.conn.eof() && rig.conn.read_shut() && rig.conn.write_shut());
    assert_eq!(rig.recv(100), 20);
    assert!(rig.conn.eof());
    assert_eq!(rig.conn.error(), None);
}

#[test]
fn data_after_c_is_not_part_of_the_stream() {
    let mut rig = Rig::new(64, 0);
    let _ = rig.data(5);
    let _ = rig.closed();
    let events = rig.data(5);
    assert_eq!(events.violation, None);
    assert_eq!(rig.recv(100), 5);
    assert!(rig.conn.eof());
}

#[test]
fn data_after_d_still_counts() {
    // Linux says D after a while even if data is left, and sends that afterwards.
    let mut rig = Rig::new(64, 0);
    let _ = rig.data(5);
    let _ = rig.done();
    assert_eq!(rig.recv(100), 5);
    assert!(rig.conn.eof());
    let events = rig.data(60);
    assert!(events.readable && events.violation.is_none());
    assert!(!rig.conn.eof());
    assert_eq!(rig.recv(100), 60);
    assert_eq!(
        rig.post().cdc.cons,
        rig.cursor(65),
        "the peer may wait for it"
    );
}

#[test]
fn closed_for_good_says_nothing_more() {
    let mut rig = Rig::new(64, 0);
    let _ = rig.conn.close();
    let t = rig.post();
    let _ = rig.sent(&t);
    // Neither a reset, nor data, nor a timer makes it talk again.
    let _ = rig.data(60);
    rig.nothing_due();
    let _ = rig.conn.handle_tcp_reset();
    rig.nothing_due();
    assert_eq!(rig.conn.timer(), Some(Timer::AbortWait));
    let _ = rig.conn.handle_timeout(Timer::AbortWait);
    rig.nothing_due();
    assert!(rig.conn.is_done());
    assert_eq!(rig.conn.error(), None, "the application had closed before");
}

#[test]
fn link_lost_when_all_was_said_is_no_error() {
    let mut rig = Rig::new(64, 0);
    rig.produced = 4;
    let _ = rig.done();
    let _ = rig.conn.shutdown_write();
    let t = rig.post();
    let _ = rig.sent(&t);
    let _ = rig.conn.handle_link_failed();
    assert_eq!(rig.conn.error(), None);
    assert!(!rig.conn.is_done());
    assert_eq!(rig.recv(10), 4);
    assert!(rig.conn.eof() && rig.conn.is_done());

    let mut rig = Rig::new(64, 0);
    let _ = rig.done();
    let _ = rig.conn.shutdown_write();
    let _ = rig.post();
    let _ = rig.conn.handle_link_failed();
    assert_eq!(rig.conn.error(), Some(ConnError::LinkFailed));
    assert!(rig.conn.is_done());
}

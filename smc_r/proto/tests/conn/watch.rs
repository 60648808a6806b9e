// SPDX-License-Identifier: GPL-2.0

//! Limits on how long a connection may not get on, and its figures.

use smc_proto::{
    cdc::ProdFlags,
    conn::{
        ConnError,
        Fin,
        Watch, //
    },
    timer::Time,
};

use crate::Rig;

const SIZE: u32 = 1024;

fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

/// A connection whose peer has no room, with data left to send.
fn stuck() -> Rig {
    let mut rig = Rig::with(2 * SIZE, SIZE, 0);
    rig.send(2 * SIZE);
    loop {
        let posts = rig.posts();
        let Some(last) = posts.last() else {
            return rig;
        };
        let _ = rig.sent(last);
    }
}

#[test]
fn nothing_is_watched_without_a_limit() {
    let rig = stuck();
    let mut watch = Watch::new();
    assert_eq!(watch.deadline(&rig.conn, at(5)), None);
    assert_eq!(watch.verdict(&rig.conn, at(1_000_000)), None);
}

#[test]
fn data_that_the_peer_does_not_take_has_a_limit() {
    let rig = stuck();
    let mut watch = Watch::new();
    watch.set_limit(300);
    assert_eq!(watch.deadline(&rig.conn, at(5)), Some(at(305)));
    assert_eq!(watch.deadline(&rig.conn, at(100)), Some(at(305)));
    assert_eq!(watch.verdict(&rig.conn, at(304)), None);
    assert_eq!(watch.verdict(&rig.conn, at(305)), Some(ConnError::TimedOut));
}

#[test]
fn each_byte_taken_starts_the_limit_anew() {
    let mut rig = stuck();
    let mut watch = Watch::new();
    watch.set_limit(300);
    assert_eq!(watch.deadline(&rig.conn, at(0)), Some(at(300)));
    let _ = rig.took(1);
    assert_eq!(watch.deadline(&rig.conn, at(200)), Some(at(500)));
    assert_eq!(watch.verdict(&rig.conn, at(499)), None);
    assert!(watch.verdict(&rig.conn, at(500)).is_some());
}

#[test]
fn what_has_arrived_needs_no_reader() {
    let mut rig = Rig::new(SIZE, 0);
    let mut watch = Watch::new();
    watch.set_limit(300);
    rig.send(100);
    let sent = rig.post();
    let _ = rig.sent(&sent);
    assert_eq!(watch.deadline(&rig.conn, at(0)), None);
    assert_eq!(watch.verdict(&rig.conn, at(10_000)), None);
}

#[test]
fn a_write_that_is_not_confirmed_has_a_limit() {
    let mut rig = Rig::new(SIZE, 0);
    let mut watch = Watch::new();
    watch.set_limit(300);
    let _ = rig.data(0);
    // The second piece asks for a completion.
    rig.send(100);
    let _ = rig.post();
    rig.send(100);
    let _ = rig.post();
    assert_eq!(watch.deadline(&rig.conn, at(0)), Some(at(300)));
    assert!(watch.verdict(&rig.conn, at(300)).is_some());
}

#[test]
fn giving_up_is_an_abort_with_that_error() {
    let mut rig = stuck();
    let events = rig.conn.handle_overdue(ConnError::TimedOut);
    assert!(events.readable && events.writable && events.changed);
    assert_eq!(rig.conn.error(), Some(ConnError::TimedOut));
    assert!(rig.post().cdc.state_flags.aborted);
    assert!(rig.conn.reset_tcp());
    assert!(rig.conn.traffic().over);
}

#[test]
fn after_a_fin_the_peer_has_to_say_more() {
    let mut rig = Rig::new(SIZE, 0);
    let mut watch = Watch::new();
    watch.tcp_ended();
    let first = watch.deadline(&rig.conn, at(0)).unwrap();
    assert_eq!(first, at(10_000));
    // Something comes in: it is merely slow.
    let _ = rig.data(10);
    let second = watch.deadline(&rig.conn, at(1_000)).unwrap();
    assert_eq!(second.since(first), 1_000);
    assert_eq!(watch.verdict(&rig.conn, second), Some(ConnError::Reset));
    // It has ended its direction: all is well.
    let _ = rig.done();
    assert_eq!(watch.verdict(&rig.conn, second), None);
    assert_eq!(watch.deadline(&rig.conn, second), None);
}

#[test]
fn a_fin_of_a_peer_that_waits_for_us_is_not_late() {
    let mut rig = Rig::new(SIZE, 0);
    let mut watch = Watch::new();
    watch.tcp_ended();
    let _ = rig.flags(ProdFlags {
        blocked: true,
        ..ProdFlags::default()
    });
    assert_eq!(watch.deadline(&rig.conn, at(0)), None);
}

#[test]
fn figures() {
    let mut rig = Rig::new(SIZE, 0);
    rig.send(200);
    let sent = rig.post();
    let before = rig.conn.traffic();
    assert_eq!(
        (before.accepted, before.written, before.reached),
        (200, 200, 0)
    );
    assert_eq!((before.window, before.room), (SIZE - 200, SIZE));
    assert_eq!(before.in_flight, 1);
    let _ = rig.sent(&sent);
    let _ = rig.data(70);
    rig.recv(20);
    let after = rig.conn.traffic();
    assert_eq!((after.reached, after.received, after.read), (200, 70, 20));
    assert_eq!((after.room, after.in_flight), (SIZE - 50, 0));
    assert_eq!((after.own_end, after.peer_end), (Fin::None, Fin::None));
    let _ = rig.done();
    let _ = rig.conn.shutdown_write();
    let end = rig.post();
    assert_eq!(rig.conn.traffic().own_end, Fin::Done);
    assert_eq!(rig.conn.traffic().own_end_reached, Fin::None);
    let _ = rig.sent(&end);
    let after = rig.conn.traffic();
    assert_eq!(
        (after.own_end_reached, after.peer_end),
        (Fin::Done, Fin::Done)
    );
}

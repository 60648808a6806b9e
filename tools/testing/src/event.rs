// SPDX-License-Identifier: GPL-2.0

//! Waiting for a non-blocking socket, by `poll` or by edge-triggered `epoll`.

use clap::ValueEnum;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{poll, PollFd, PollFlags, Timespec};
use socket2::Socket;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// How a program waits for its sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Io {
    /// Blocking calls, one thread per direction
    Blocking,
    /// Non-blocking calls and poll
    Poll,
    /// Non-blocking calls and edge-triggered epoll
    Epoll,
}

/// What a socket is ready for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// Receiving will not block, or will fail.
    pub input: bool,
    /// Sending will not block, or will fail.
    pub output: bool,
    /// An urgent byte is there.
    pub urgent: bool,
}

/// Waits for one socket.
#[derive(Debug)]
pub struct Waiter {
    epoll: Option<OwnedFd>,
    /// What an edge-triggered event said and no call has contradicted since.
    ready: Ready,
}

fn timespec(timeout: Duration) -> Timespec {
    Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    }
}

/// Waits by `poll`. No event within the time gives nothing ready.
pub fn poll_socket(socket: &Socket, wanted: Ready, timeout: Duration) -> io::Result<Ready> {
    let mut events = PollFlags::empty();
    events.set(PollFlags::IN | PollFlags::RDHUP, wanted.input);
    events.set(PollFlags::OUT, wanted.output);
    events.set(PollFlags::PRI, wanted.urgent);
    let mut fds = [PollFd::new(socket, events)];
    match poll(&mut fds, Some(&timespec(timeout))) {
        Ok(_) => {}
        Err(rustix::io::Errno::INTR) => return Ok(Ready::default()),
        Err(error) => return Err(error.into()),
    }
    let got = fds[0].revents();
    let ended = got.intersects(PollFlags::ERR | PollFlags::HUP);
    Ok(Ready {
        input: ended || got.intersects(PollFlags::IN | PollFlags::RDHUP),
        output: ended || got.contains(PollFlags::OUT),
        urgent: got.contains(PollFlags::PRI),
    })
}

impl Waiter {
    /// A waiter for this socket, which must be non-blocking.
    pub fn new(io: Io, socket: &Socket) -> io::Result<Waiter> {
        let mut waiter = Waiter {
            epoll: None,
            ready: Ready::default(),
        };
        if io == Io::Epoll {
            let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            let flags = EventFlags::IN
                | EventFlags::OUT
                | EventFlags::PRI
                | EventFlags::RDHUP
                | EventFlags::ET;
            epoll::add(&epoll, socket.as_fd(), EventData::new_u64(0), flags)?;
            waiter.epoll = Some(epoll);
        }
        Ok(waiter)
    }

    /// Tells that a call came back with `EAGAIN`.
    pub fn blocked(&mut self, what: Ready) {
        self.ready.input &= !what.input;
        self.ready.output &= !what.output;
        self.ready.urgent &= !what.urgent;
    }

    /// Waits until the socket is ready for something wanted, or the time is over.
    pub fn wait(&mut self, socket: &Socket, wanted: Ready, timeout: Duration) -> io::Result<Ready> {
        let Some(epoll) = &self.epoll else {
            return poll_socket(socket, wanted, timeout);
        };
        let has = |ready: Ready| {
            (ready.input && wanted.input)
                || (ready.output && wanted.output)
                || (ready.urgent && wanted.urgent)
        };
        let timeout = if has(self.ready) {
            Duration::ZERO
        } else {
            timeout
        };
        let mut events = Vec::with_capacity(4);
        let spare = rustix::buffer::spare_capacity(&mut events);
        match epoll::wait(epoll, spare, Some(&timespec(timeout))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let got = event.flags;
            let ended = got.intersects(EventFlags::ERR | EventFlags::HUP);
            self.ready.input |= ended || got.intersects(EventFlags::IN | EventFlags::RDHUP);
            self.ready.output |= ended || got.contains(EventFlags::OUT);
            self.ready.urgent |= got.contains(EventFlags::PRI);
        }
        Ok(self.ready)
    }
}

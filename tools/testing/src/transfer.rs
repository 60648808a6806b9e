// SPDX-License-Identifier: GPL-2.0

//! What happens on one connection, on either side.
//!
//! 1. The client sends a header that says what follows.
//! 2. Both send their streams at once, in writes of random size, and check what they receive.
//! 3. The server, when it has received and sent all, sends a trailer. Then the client closes.
//!
//! Variations: with *half-close* the client shuts its sending side after its stream, and the server
//! closes after the trailer; with *echo* the server's stream is the client's, never ahead of it;
//! with *urgent* the client sends an urgent byte in the middle of its stream; with *abort* the
//! client resets the connection in the middle of its stream, and the server has to see that.

use crate::event::{poll_socket, Io, Ready, Waiter};
use crate::report::{Failure, Outcome};
use crate::socket::{Family, Mode};
use crate::stream::{Sizes, Stream};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::Socket;
use std::io;
use std::net::Shutdown;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

const HEADER_MAGIC: &[u8; 8] = b"SMCXFER1";
const TRAILER_MAGIC: &[u8; 8] = b"SMCXDONE";
/// Length of the header.
pub const HEADER_LEN: usize = 48;
const TRAILER_LEN: usize = 16;
const LANE_UP: u64 = 1;
const LANE_DOWN: u64 = 2;
/// The urgent byte, which is none of the stream's.
const URGENT: u8 = 0xa5;
/// Longest wait without looking around.
const NAP: Duration = Duration::from_secs(1);

/// What is to be transferred; decided by the client, told by the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Makes the streams.
    pub seed: u64,
    /// Bytes from client to server.
    pub up: u64,
    /// Bytes from server to client.
    pub down: u64,
    /// Number of the connection.
    pub id: u32,
    /// The client shuts its sending side when it is through.
    pub half_close: bool,
    /// The server sends back what it receives; `down` is equal to `up`.
    pub echo: bool,
    /// An urgent byte goes with the client's stream.
    pub urgent: bool,
    /// The client resets the connection in the middle.
    pub abort: bool,
}

impl Plan {
    /// The header's bytes.
    pub fn emit(&self) -> [u8; HEADER_LEN] {
        let flags = [self.half_close, self.echo, self.urgent, self.abort];
        let flags = flags
            .iter()
            .rev()
            .fold(0u32, |bits, flag| (bits << 1) | u32::from(*flag));
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(HEADER_MAGIC);
        bytes[8..16].copy_from_slice(&self.seed.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.up.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.down.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.id.to_le_bytes());
        bytes[36..40].copy_from_slice(&flags.to_le_bytes());
        bytes
    }

    /// Reads a header.
    pub fn parse(bytes: &[u8]) -> Option<Plan> {
        let bytes: &[u8; HEADER_LEN] = bytes.try_into().ok()?;
        let long = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let short = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let flags = short(36)?;
        if !bytes.starts_with(HEADER_MAGIC) || flags > 15 {
            return None;
        }
        Some(Plan {
            seed: long(8)?,
            up: long(16)?,
            down: long(24)?,
            id: short(32)?,
            half_close: flags & 1 != 0,
            echo: flags & 2 != 0,
            urgent: flags & 4 != 0,
            abort: flags & 8 != 0,
        })
    }

    fn up_stream(&self) -> Stream {
        Stream::new(self.seed, LANE_UP)
    }

    fn down_stream(&self) -> Stream {
        Stream::new(self.seed, if self.echo { LANE_UP } else { LANE_DOWN })
    }

    fn urgent_at(&self) -> Option<u64> {
        self.urgent.then_some(self.up / 2)
    }
}

/// How this side goes about it.
#[derive(Clone, Debug)]
pub struct Tuning {
    /// Blocking or not.
    pub io: Io,
    /// Smallest read and write.
    pub min_chunk: usize,
    /// Largest read and write.
    pub max_chunk: usize,
    /// Bytes per second that this side reads of the stream.
    pub slow_reader: Option<u64>,
    /// Seeds the sizes.
    pub seed: u64,
}

/// How far an echo may go: as far as the receiver got.
#[derive(Debug, Default)]
struct Gate {
    open: Mutex<(u64, bool)>,
    moved: Condvar,
}

impl Gate {
    fn advance(&self, to: u64) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).0 = to;
        self.moved.notify_all();
    }

    /// Lets a waiting sender go, since nothing will come any more.
    fn give_up(&self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.moved.notify_all();
    }

    /// The position that may be sent up to, if that is past `position` or nothing more will come.
    fn limit(&self, position: u64, block: bool) -> Option<u64> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        while open.0 <= position && !open.1 {
            if !block {
                return None;
            }
            open = self
                .moved
                .wait(open)
                .unwrap_or_else(PoisonError::into_inner);
        }
        (open.0 > position).then_some(open.0)
    }
}

/// What a step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Progress,
    /// The socket is not ready.
    Blocked,
    /// Something else has to happen first, or time to pass.
    Later(Option<Instant>),
    Done,
}

enum Source {
    Stream(Stream),
    Bytes(Vec<u8>),
}

struct Tx<'a> {
    source: Source,
    position: u64,
    total: u64,
    sizes: Sizes,
    buffer: Vec<u8>,
    gate: Option<&'a Gate>,
    urgent_at: Option<u64>,
    then_shutdown: bool,
}

impl Tx<'_> {
    fn new(source: Source, total: u64, tuning: &Tuning) -> Self {
        Self {
            source,
            position: 0,
            total,
            sizes: Sizes::new(tuning.seed, tuning.min_chunk, tuning.max_chunk),
            buffer: vec![0; tuning.max_chunk],
            gate: None,
            urgent_at: None,
            then_shutdown: false,
        }
    }

    fn bytes(bytes: Vec<u8>, tuning: &Tuning) -> Self {
        let total = bytes.len() as u64;
        Self::new(Source::Bytes(bytes), total, tuning)
    }

    fn step(&mut self, socket: &Socket, block: bool) -> Result<Step, Failure> {
        if self.urgent_at == Some(self.position) {
            return match rustix::net::send(socket, &[URGENT], SendFlags::OOB | SendFlags::NOSIGNAL)
            {
                Ok(_) => {
                    self.urgent_at = None;
                    Ok(Step::Progress)
                }
                Err(error) => retry(error, block, "send urgent"),
            };
        }
        if self.position == self.total {
            if self.then_shutdown {
                self.then_shutdown = false;
                socket
                    .shutdown(Shutdown::Write)
                    .map_err(Failure::at("shutdown"))?;
            }
            return Ok(Step::Done);
        }
        let mut end = self.total;
        if let Some(gate) = self.gate {
            match gate.limit(self.position, block) {
                Some(limit) => end = end.min(limit),
                // The receiver has failed and will say so.
                None if block => return Ok(Step::Done),
                None => return Ok(Step::Later(None)),
            }
        }
        if let Some(urgent_at) = self.urgent_at {
            end = end.min(urgent_at);
        }
        let length = (self.sizes.next_size() as u64).min(end - self.position) as usize;
        let data = match &self.source {
            Source::Stream(stream) => {
                stream.fill(self.position, &mut self.buffer[..length]);
                &self.buffer[..length]
            }
            Source::Bytes(bytes) => &bytes[self.position as usize..][..length],
        };
        match rustix::net::send(socket, data, SendFlags::NOSIGNAL) {
            Ok(sent) => {
                self.position += sent as u64;
                Ok(Step::Progress)
            }
            Err(error) => retry(error, block, "send"),
        }
    }
}

fn retry(error: Errno, block: bool, step: &'static str) -> Result<Step, Failure> {
    match error {
        Errno::INTR => Ok(Step::Progress),
        Errno::AGAIN if !block => Ok(Step::Blocked),
        error => Err(Failure {
            step,
            error: error.into(),
        }),
    }
}

enum Sink {
    Check(Stream),
    Keep(Vec<u8>),
}

struct Rx<'a> {
    sink: Sink,
    position: u64,
    total: u64,
    sizes: Sizes,
    buffer: Vec<u8>,
    scratch: Vec<u8>,
    gate: Option<&'a Gate>,
    urgent: bool,
    then_end: bool,
    rate: Option<u64>,
    not_before: Option<Instant>,
}

impl Rx<'_> {
    fn new(sink: Sink, total: u64, tuning: &Tuning) -> Self {
        Self {
            sink,
            position: 0,
            total,
            sizes: Sizes::new(!tuning.seed, tuning.min_chunk, tuning.max_chunk),
            buffer: vec![0; tuning.max_chunk],
            scratch: vec![0; tuning.max_chunk],
            gate: None,
            urgent: false,
            then_end: false,
            rate: None,
            not_before: None,
        }
    }

    /// Receives so many bytes as they are.
    fn keep(total: usize, tuning: &Tuning) -> Self {
        Self::new(Sink::Keep(Vec::new()), total as u64, tuning)
    }

    fn kept(self) -> Vec<u8> {
        match self.sink {
            Sink::Keep(bytes) => bytes,
            Sink::Check(_) => Vec::new(),
        }
    }

    fn step(&mut self, socket: &Socket, block: bool) -> Result<Step, Failure> {
        if let Some(start) = self.not_before {
            let left = start.saturating_duration_since(Instant::now());
            if !left.is_zero() && !block {
                return Ok(Step::Later(Some(start)));
            }
            std::thread::sleep(left);
            self.not_before = None;
        }
        if self.urgent && self.step_urgent(socket, block)? {
            return Ok(Step::Progress);
        }
        if self.position == self.total {
            if self.urgent {
                return Err(Failure::found(
                    "receive urgent",
                    "no urgent byte came".into(),
                ));
            }
            return if self.then_end {
                self.step_end(socket, block)
            } else {
                Ok(Step::Done)
            };
        }
        let mut length = (self.sizes.next_size() as u64).min(self.total - self.position) as usize;
        if let Some(rate) = self.rate {
            length = length.min((rate / 20).max(1) as usize);
        }
        let received =
            match rustix::net::recv(socket, &mut self.buffer[..length], RecvFlags::empty()) {
                Ok((received, _)) => received,
                Err(error) => return retry(error, block, "receive"),
            };
        if received == 0 {
            let message = format!(
                "end of stream after {} of {} bytes",
                self.position, self.total
            );
            return Err(Failure::found("receive", message));
        }
        let data = &self.buffer[..received];
        match &mut self.sink {
            Sink::Keep(bytes) => bytes.extend_from_slice(data),
            Sink::Check(stream) => {
                if let Some(at) = stream.mismatch(self.position, data, &mut self.scratch) {
                    return Err(Failure::found(
                        "receive",
                        format!("wrong byte at offset {at}"),
                    ));
                }
            }
        }
        self.position += received as u64;
        if let Some(gate) = self.gate {
            gate.advance(self.position);
        }
        if let Some(rate) = self.rate {
            let pause = Duration::from_secs_f64(received as f64 / rate as f64);
            self.not_before = Some(Instant::now() + pause);
        }
        Ok(Step::Progress)
    }

    /// Takes the urgent byte if it is there. A blocking side waits for something to read first, so
    /// that it does not read past the mark.
    fn step_urgent(&mut self, socket: &Socket, block: bool) -> Result<bool, Failure> {
        if block && self.position < self.total {
            let wanted = Ready {
                input: true,
                urgent: true,
                output: false,
            };
            let ready = poll_socket(socket, wanted, NAP).map_err(Failure::at("poll"))?;
            if ready == Ready::default() {
                return Ok(true);
            }
        }
        let mut byte = [0];
        match rustix::net::recv(socket, &mut byte, RecvFlags::OOB | RecvFlags::DONTWAIT) {
            Ok((1, _)) if byte[0] == URGENT => {
                self.urgent = false;
                Ok(true)
            }
            Ok((length, _)) => {
                let message = format!("urgent data is {:02x?}", &byte[..length.min(1)]);
                Err(Failure::found("receive urgent", message))
            }
            Err(Errno::INVAL | Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(error) => Err(Failure {
                step: "receive urgent",
                error: error.into(),
            }),
        }
    }

    fn step_end(&mut self, socket: &Socket, block: bool) -> Result<Step, Failure> {
        match rustix::net::recv(socket, &mut self.buffer[..1], RecvFlags::empty()) {
            Ok((0, _)) => {
                self.then_end = false;
                Ok(Step::Done)
            }
            Ok(_) => {
                let message = format!("more than the {} bytes announced", self.total);
                Err(Failure::found("receive end", message))
            }
            Err(error) => retry(error, block, "receive end"),
        }
    }
}

/// Sends and receives at the same time until both are through, or one of them fails.
fn run(
    socket: &Socket,
    tuning: &Tuning,
    tx: Option<&mut Tx<'_>>,
    rx: Option<&mut Rx<'_>>,
) -> Result<(), Failure> {
    if tuning.io == Io::Blocking {
        run_blocking(socket, tx, rx)
    } else {
        run_events(socket, tuning.io, tx, rx)
    }
}

fn run_blocking(
    socket: &Socket,
    tx: Option<&mut Tx<'_>>,
    rx: Option<&mut Rx<'_>>,
) -> Result<(), Failure> {
    let send = |tx: &mut Tx<'_>| while_progress(|| tx.step(socket, true));
    let receive = |rx: &mut Rx<'_>| while_progress(|| rx.step(socket, true));
    match (tx, rx) {
        (None, None) => Ok(()),
        (Some(tx), None) => send(tx),
        (None, Some(rx)) => receive(rx),
        (Some(tx), Some(rx)) => {
            let first = Mutex::new(None);
            // Whoever fails wakes the other; the error that this gives the other is not the first.
            let fail = |failure| {
                let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
                if first.is_none() {
                    *first = Some(failure);
                    let _ = socket.shutdown(Shutdown::Both);
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(|| send(tx).unwrap_or_else(fail));
                let gate = rx.gate;
                receive(rx).unwrap_or_else(|failure| {
                    fail(failure);
                    gate.into_iter().for_each(Gate::give_up);
                });
            });
            let first = first.into_inner().unwrap_or_else(PoisonError::into_inner);
            first.map_or(Ok(()), Err)
        }
    }
}

fn while_progress(mut step: impl FnMut() -> Result<Step, Failure>) -> Result<(), Failure> {
    while step()? != Step::Done {}
    Ok(())
}

fn run_events(
    socket: &Socket,
    io: Io,
    mut tx: Option<&mut Tx<'_>>,
    mut rx: Option<&mut Rx<'_>>,
) -> Result<(), Failure> {
    let mut waiter = Waiter::new(io, socket).map_err(Failure::at("epoll"))?;
    loop {
        let mut wanted = Ready::default();
        let mut timeout = NAP;
        let mut progress = false;
        if let Some(half) = tx.as_mut() {
            match half.step(socket, false)? {
                Step::Progress => progress = true,
                Step::Blocked => wanted.output = true,
                Step::Later(_) => {}
                Step::Done => tx = None,
            }
        }
        if let Some(half) = rx.as_mut() {
            match half.step(socket, false)? {
                Step::Progress => progress = true,
                Step::Blocked => {
                    wanted.input = true;
                    wanted.urgent = half.urgent;
                }
                Step::Later(at) => {
                    let at = at.map(|at| at.saturating_duration_since(Instant::now()));
                    timeout = timeout.min(at.unwrap_or(timeout));
                }
                Step::Done => rx = None,
            }
        }
        if tx.is_none() && rx.is_none() {
            return Ok(());
        }
        if !progress {
            waiter.blocked(wanted);
            waiter
                .wait(socket, wanted, timeout)
                .map_err(Failure::at("wait"))?;
        }
    }
}

fn trailer(received: u64) -> Vec<u8> {
    let mut bytes = TRAILER_MAGIC.to_vec();
    bytes.extend(received.to_le_bytes());
    bytes
}

/// The client's part, on a connected socket.
pub fn client(
    socket: &Socket,
    family: Family,
    plan: &Plan,
    tuning: &Tuning,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    run(
        socket,
        tuning,
        Some(&mut Tx::bytes(plan.emit().to_vec(), tuning)),
        None,
    )?;

    let start = Instant::now();
    let total = if plan.abort { plan.up / 2 } else { plan.up };
    let mut tx = Tx::new(Source::Stream(plan.up_stream()), total, tuning);
    tx.urgent_at = plan.urgent_at();
    tx.then_shutdown = plan.half_close && !plan.abort;
    let mut rx = Rx::new(Sink::Check(plan.down_stream()), plan.down, tuning);
    rx.rate = tuning.slow_reader;
    let ran = run(
        socket,
        tuning,
        Some(&mut tx),
        (!plan.abort).then_some(&mut rx),
    );
    outcome.sent = tx.position;
    outcome.received = rx.position;
    outcome.mode = Some(Mode::of(socket, family));
    ran?;
    if plan.abort {
        socket
            .set_linger(Some(Duration::ZERO))
            .map_err(Failure::at("linger"))?;
        return Ok(());
    }

    let mut rx = Rx::keep(TRAILER_LEN, tuning);
    rx.then_end = plan.half_close;
    run(socket, tuning, None, Some(&mut rx))?;
    outcome.transfer = Some(start.elapsed());
    let kept = rx.kept();
    if kept != trailer(plan.up) {
        return Err(Failure::found("trailer", format!("trailer is {kept:02x?}")));
    }
    Ok(())
}

/// The server's part, on an accepted socket. Gives the number of the connection, once it is known.
pub fn server(
    socket: &Socket,
    family: Family,
    tuning: &Tuning,
    id: &mut Option<u32>,
    outcome: &mut Outcome,
) -> Result<(), Failure> {
    let mut header = Rx::keep(HEADER_LEN, tuning);
    run(socket, tuning, None, Some(&mut header))?;
    outcome.mode = Some(Mode::of(socket, family));
    let header = header.kept();
    let plan = Plan::parse(&header)
        .ok_or_else(|| Failure::found("header", format!("header is {header:02x?}")))?;
    *id = Some(plan.id);

    let start = Instant::now();
    let gate = Gate::default();
    let mut tx = Tx::new(Source::Stream(plan.down_stream()), plan.down, tuning);
    let mut rx = Rx::new(Sink::Check(plan.up_stream()), plan.up, tuning);
    rx.rate = tuning.slow_reader;
    rx.urgent = plan.urgent;
    rx.then_end = plan.half_close || plan.abort;
    if plan.echo {
        tx.gate = Some(&gate);
        rx.gate = Some(&gate);
    }
    let ran = run(socket, tuning, Some(&mut tx), Some(&mut rx));
    outcome.sent = tx.position;
    outcome.received = rx.position;
    if plan.abort {
        return expect_reset(ran);
    }
    ran?;

    run(
        socket,
        tuning,
        Some(&mut Tx::bytes(trailer(rx.position), tuning)),
        None,
    )?;
    if !plan.half_close {
        let mut end = Rx::keep(0, tuning);
        end.then_end = true;
        run(socket, tuning, None, Some(&mut end))?;
    }
    outcome.transfer = Some(start.elapsed());
    Ok(())
}

fn expect_reset(ran: Result<(), Failure>) -> Result<(), Failure> {
    let Err(failure) = ran else {
        return Err(Failure::found(
            "abort",
            "the connection ended without a reset".into(),
        ));
    };
    match failure.error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Ok(()),
        _ => Err(failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            seed: 77,
            up: 1 << 40,
            down: 5,
            id: 3,
            half_close: true,
            echo: false,
            urgent: true,
            abort: false,
        }
    }

    #[test]
    fn header_round_trip() {
        for flags in 0..16 {
            let plan = Plan {
                half_close: flags & 1 != 0,
                echo: flags & 2 != 0,
                urgent: flags & 4 != 0,
                abort: flags & 8 != 0,
                ..plan()
            };
            assert_eq!(Plan::parse(&plan.emit()), Some(plan));
        }
    }

    #[test]
    fn bad_headers() {
        let good = plan().emit();
        assert_eq!(Plan::parse(&good[..HEADER_LEN - 1]), None);
        assert_eq!(Plan::parse(&[&good[..], &[0]].concat()), None);
        let mut magic = good;
        magic[0] ^= 1;
        assert_eq!(Plan::parse(&magic), None);
        let mut flags = good;
        flags[36] = 16;
        assert_eq!(Plan::parse(&flags), None);
    }

    #[test]
    fn the_gate_lets_no_echo_overtake() {
        let gate = Gate::default();
        assert_eq!(gate.limit(0, false), None);
        gate.advance(10);
        assert_eq!(gate.limit(0, true), Some(10));
        assert_eq!(gate.limit(10, false), None);
        gate.give_up();
        assert_eq!(gate.limit(10, true), None);
        assert_eq!(gate.limit(9, true), Some(10));
    }
}

// SPDX-License-Identifier: GPL-2.0

//! A small TCP that does what a script says. Frames and time go in, frames come out.

use super::clc::{self, Seen};
use super::frame::{self, End, Frame, Segment, MSS};
use super::script::Step;
use serde::Serialize;
use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

/// Time until something that was not acknowledged is sent again.
const RETRANSMIT: Duration = Duration::from_millis(400);
/// So often.
const TRIES: u32 = 8;
/// What is kept of the bytes that came.
const KEPT: usize = 4096;

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// It did not; the time was over
    Open,
    /// The other side reset it
    Rst,
    /// The other side ended its stream
    Fin,
    /// The script reset it
    OwnRst,
    /// The first segment was answered by a reset
    Refused,
    /// Something of ours was never acknowledged
    NoAnswer,
}

/// What came of a connection.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Our port.
    pub port: u16,
    /// The handshake of TCP was done.
    pub connected: bool,
    /// The other side's SYN or SYN-ACK had the SMC option.
    pub smc_option: bool,
    /// How it ended.
    pub end: Ending,
    /// Steps of the script that were done, of those there are.
    pub steps: (usize, usize),
    /// CLC messages that came, in order.
    pub messages: Vec<Seen>,
    /// Bytes that came and are no CLC messages.
    pub data_bytes: u64,
    /// The first of them, as text.
    pub data: String,
    /// Seconds from the first segment to the end.
    pub seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Our SYN is out.
    SynSent,
    /// Our SYN-ACK is out.
    SynReceived,
    Established,
    Ended(Ending),
}

/// A sequence number that moves on with time, so that it is not one of an earlier connection.
fn initial_sequence() -> u32 {
    let time = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    (time.as_micros() / 4) as u32
}

/// One connection.
#[derive(Debug)]
pub struct Connection {
    own: End,
    other: End,
    phase: Phase,
    offer: bool,
    seen_option: bool,
    connected: bool,
    /// Oldest byte that is not acknowledged.
    acked: u32,
    /// Bytes from there on, those sent and those that are not.
    queue: VecDeque<u8>,
    /// Sequence number behind the last urgent byte.
    urgent: Option<u32>,
    /// How many of them were sent.
    sent: usize,
    /// FIN: wanted, and sent.
    fin: (bool, bool),
    fin_acked: bool,
    expected: u32,
    peer_fin: bool,
    retransmit: Option<Instant>,
    tries: u32,
    script: Vec<Step>,
    step: usize,
    /// Bytes of the present `Send` that are out, for a drip.
    dripped: usize,
    wake: Option<Instant>,
    stream: Vec<u8>,
    stream_is_data: bool,
    messages: Vec<Seen>,
    /// The same as they came.
    raw: Vec<Vec<u8>>,
    /// Messages that steps have waited for.
    taken: usize,
    data_bytes: u64,
    data: Vec<u8>,
    start: Instant,
    ended: Option<Instant>,
}

impl Connection {
    fn new(own: End, other: End, offer: bool, script: Vec<Step>, now: Instant) -> Self {
        let acked = initial_sequence();
        Self {
            own,
            other,
            phase: Phase::SynSent,
            offer,
            seen_option: false,
            connected: false,
            acked,
            queue: VecDeque::new(),
            urgent: None,
            sent: 0,
            fin: (false, false),
            fin_acked: false,
            expected: 0,
            peer_fin: false,
            retransmit: None,
            tries: 0,
            script,
            step: 0,
            dripped: 0,
            wake: None,
            stream: Vec::new(),
            stream_is_data: false,
            messages: Vec::new(),
            raw: Vec::new(),
            taken: 0,
            data_bytes: 0,
            data: Vec::new(),
            start: now,
            ended: None,
        }
    }

    fn segment(&self, seq: u32) -> Segment {
        // A window of one segment keeps frames below the MTU.
        Segment {
            seq,
            ack: Some(self.expected),
            window: MSS as u16,
            ..Segment::default()
        }
    }

    fn frame(&self, segment: &Segment) -> Vec<u8> {
        frame::tcp(&self.own, &self.other, segment)
    }

    fn end(&mut self, ending: Ending, now: Instant) {
        if self.ended.is_none() {
            self.phase = Phase::Ended(ending);
            self.ended = Some(now);
            self.retransmit = None;
            self.wake = None;
        }
    }

    fn syn(&self) -> Segment {
        let mut segment = self.segment(self.acked);
        segment.syn = true;
        segment.smc = self.offer;
        if self.phase == Phase::SynSent {
            segment.ack = None;
        }
        segment
    }

    fn reset(&mut self, now: Instant, out: &mut Vec<Vec<u8>>) {
        let mut segment = self.segment(self.acked.wrapping_add(self.sent as u32));
        segment.rst = true;
        out.push(self.frame(&segment));
        self.end(Ending::OwnRst, now);
    }

    fn arm(&mut self, now: Instant) {
        self.retransmit = Some(now + RETRANSMIT);
    }

    fn handle(&mut self, segment: &Segment, now: Instant, out: &mut Vec<Vec<u8>>) {
        match self.phase {
            Phase::Ended(Ending::Fin) => {
                // Acknowledges what may come once more.
                if segment.fin && !segment.rst {
                    out.push(self.frame(&self.segment(self.acked)));
                }
            }
            Phase::Ended(_) => {}
            Phase::SynSent => self.handle_syn_sent(segment, now, out),
            Phase::SynReceived | Phase::Established => self.handle_open(segment, now, out),
        }
    }

    fn handle_syn_sent(&mut self, segment: &Segment, now: Instant, out: &mut Vec<Vec<u8>>) {
        let Some(ack) = segment.ack else { return };
        if ack != self.acked.wrapping_add(1) {
            if !segment.rst {
                // The other side remembers an earlier connection; this makes it forget.
                let reset = Segment {
                    seq: ack,
                    rst: true,
                    ..Segment::default()
                };
                out.push(self.frame(&reset));
            }
            return;
        }
        if segment.rst {
            self.end(Ending::Refused, now);
        } else if segment.syn {
            self.acked = self.acked.wrapping_add(1);
            self.expected = segment.seq.wrapping_add(1);
            self.seen_option = segment.smc;
            self.establish();
            out.push(self.frame(&self.segment(self.acked)));
        }
    }

    fn establish(&mut self) {
        self.phase = Phase::Established;
        self.connected = true;
        self.retransmit = None;
        self.tries = 0;
    }

    fn handle_open(&mut self, segment: &Segment, now: Instant, out: &mut Vec<Vec<u8>>) {
        if segment.rst {
            // Anything in the window will do.
            if segment.seq.wrapping_sub(self.expected) <= MSS as u32 {
                // After its end of the stream, a reset only says that nobody listens any more.
                self.end(
                    if self.peer_fin {
                        Ending::Fin
                    } else {
                        Ending::Rst
                    },
                    now,
                );
            }
            return;
        }
        if segment.syn {
            if self.phase == Phase::SynReceived {
                out.push(self.frame(&self.syn()));
            } else {
                out.push(self.frame(&self.segment(self.acked)));
            }
            return;
        }
        if let Some(ack) = segment.ack {
            self.handle_ack(ack, now);
        }
        if self.phase == Phase::SynReceived {
            return;
        }
        let old = self.expected.wrapping_sub(segment.seq) as usize;
        let length = segment.data.len();
        if old > length + usize::from(segment.fin) {
            // In front of the window or behind it: only say what is expected.
            if length > 0 || segment.fin {
                out.push(self.frame(&self.segment(self.next_seq())));
            }
            return;
        }
        let fresh = segment.data.get(old..).unwrap_or_default();
        self.expected = self.expected.wrapping_add(fresh.len() as u32);
        self.take(fresh);
        if segment.fin && !self.peer_fin && old <= length {
            self.peer_fin = true;
            self.expected = self.expected.wrapping_add(1);
        }
        if length > 0 || segment.fin {
            out.push(self.frame(&self.segment(self.next_seq())));
        }
    }

    fn next_seq(&self) -> u32 {
        self.acked
            .wrapping_add(self.sent as u32)
            .wrapping_add(u32::from(self.fin.1))
    }

    fn handle_ack(&mut self, ack: u32, now: Instant) {
        if self.phase == Phase::SynReceived {
            if ack == self.acked.wrapping_add(1) {
                self.acked = ack;
                self.establish();
            }
            return;
        }
        let news = ack.wrapping_sub(self.acked) as usize;
        let outstanding = self.sent + usize::from(self.fin.1 && !self.fin_acked);
        if news == 0 || news > outstanding {
            return;
        }
        let bytes = news.min(self.sent);
        self.queue.drain(..bytes);
        self.sent -= bytes;
        self.acked = ack;
        if news > bytes {
            self.fin_acked = true;
        }
        self.tries = 0;
        self.retransmit = None;
        if self.sent > 0 || (self.fin.1 && !self.fin_acked) {
            self.arm(now);
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.stream_is_data {
            self.keep(bytes);
            return;
        }
        self.stream.extend_from_slice(bytes);
        loop {
            match clc::read(&self.stream) {
                None => return,
                Some(Ok((seen, length))) => {
                    // Nothing but data comes after a decline.
                    self.stream_is_data = seen.kind == "decline";
                    self.messages.push(seen);
                    self.raw.push(self.stream.drain(..length).collect());
                }
                Some(Err(())) => self.stream_is_data = true,
            }
            if self.stream_is_data {
                let rest = std::mem::take(&mut self.stream);
                self.keep(&rest);
                return;
            }
            if self.stream.is_empty() {
                return;
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        self.data_bytes += bytes.len() as u64;
        let room = KEPT.saturating_sub(self.data.len()).min(bytes.len());
        self.data.extend_from_slice(&bytes[..room]);
    }

    /// Goes on in the script as far as that is possible now.
    fn run_script(&mut self, now: Instant, out: &mut Vec<Vec<u8>>) {
        while self.phase == Phase::Established {
            if self.wake.is_some_and(|wake| now < wake) {
                return;
            }
            let waited = self.wake.take().is_some();
            let Some(step) = self.script.get(self.step) else {
                break;
            };
            let done = match step {
                Step::Send(bytes, None) => {
                    self.queue.extend(bytes);
                    true
                }
                Step::Urgent(bytes) => {
                    self.queue.extend(bytes);
                    self.urgent = Some(self.acked.wrapping_add(self.queue.len() as u32));
                    true
                }
                Step::Send(bytes, Some(pause)) => {
                    // Each byte leaves alone, so it has to leave before the next one comes.
                    if self.sent == self.queue.len() {
                        self.queue.extend(bytes.get(self.dripped));
                        self.dripped += 1;
                    }
                    self.wake = Some(now + *pause);
                    self.dripped >= bytes.len()
                }
                Step::WaitMessage(kind) => {
                    let wanted = |seen: &Seen| kind.as_ref().is_none_or(|kind| *kind == seen.kind);
                    let found = self.messages[self.taken..].iter().position(wanted);
                    self.taken += found.map_or(0, |at| at + 1);
                    found.is_some()
                }
                Step::WaitBytes(count) => self.data_bytes >= *count as u64,
                Step::Sleep(_) if waited => true,
                Step::Sleep(time) => {
                    self.wake = Some(now + *time);
                    false
                }
                Step::Fin => {
                    self.fin.0 = true;
                    true
                }
                Step::Rst => {
                    self.transmit(now, out);
                    self.reset(now, out);
                    true
                }
            };
            if done {
                self.step += 1;
                self.dripped = 0;
            }
            self.transmit(now, out);
            if !done && self.wake.is_none() {
                break;
            }
        }
        // The other side's end counts once the script is through or waits in vain. Ours follows, so
        // that nothing stays behind there.
        let waits = !matches!(
            self.script.get(self.step),
            Some(Step::Send(..) | Step::Urgent(_) | Step::Sleep(_))
        );
        if self.peer_fin && self.phase == Phase::Established && waits && self.queue.is_empty() {
            self.fin.0 = true;
            if self.fin_acked {
                self.end(Ending::Fin, now);
            }
        }
    }

    fn transmit(&mut self, now: Instant, out: &mut Vec<Vec<u8>>) {
        if self.phase != Phase::Established {
            return;
        }
        let before = out.len();
        // A few segments at a time are enough.
        while self.sent < self.queue.len() && self.sent < 8 * MSS {
            let segment = self.data_segment(self.sent);
            self.sent += segment.data.len();
            out.push(self.frame(&segment));
        }
        if self.fin.0 && !self.fin.1 && self.sent == self.queue.len() {
            let mut segment = self.segment(self.next_seq());
            segment.fin = true;
            self.fin.1 = true;
            out.push(self.frame(&segment));
        }
        if out.len() > before && self.retransmit.is_none() {
            self.arm(now);
        }
    }

    fn data_segment(&self, from: usize) -> Segment {
        let mut segment = self.segment(self.acked.wrapping_add(from as u32));
        segment.data = self.queue.iter().skip(from).take(MSS).copied().collect();
        let behind = |end: u32| u16::try_from(end.wrapping_sub(segment.seq)).ok();
        let is_here = |end: &u16| (1..=segment.data.len()).contains(&usize::from(*end));
        segment.urgent = self.urgent.and_then(behind).filter(is_here);
        segment
    }

    /// Sends again what is overdue, goes on in the script.
    fn poll(&mut self, now: Instant, out: &mut Vec<Vec<u8>>) {
        if self.retransmit.is_some_and(|at| at <= now) {
            self.tries += 1;
            if self.tries > TRIES {
                self.end(Ending::NoAnswer, now);
                return;
            }
            match self.phase {
                Phase::SynSent | Phase::SynReceived => out.push(self.frame(&self.syn())),
                Phase::Established if self.sent > 0 => out.push(self.frame(&self.data_segment(0))),
                Phase::Established if self.fin.1 && !self.fin_acked => {
                    let mut segment = self.segment(self.acked);
                    segment.fin = true;
                    out.push(self.frame(&segment));
                }
                _ => {}
            }
            self.arm(now);
        }
        self.run_script(now, out);
        self.transmit(now, out);
    }

    fn deadline(&self) -> Option<Instant> {
        [self.retransmit, self.wake].into_iter().flatten().min()
    }

    fn outcome(&self, now: Instant) -> Outcome {
        let end = match self.phase {
            Phase::Ended(ending) => ending,
            _ => Ending::Open,
        };
        let rest: Vec<u8> = self.data.iter().chain(&self.stream).copied().collect();
        let text = String::from_utf8_lossy(&rest);
        Outcome {
            port: self.own.port,
            connected: self.connected,
            smc_option: self.seen_option,
            end,
            steps: (self.step, self.script.len()),
            messages: self.messages.clone(),
            data_bytes: self.data_bytes + self.stream.len() as u64,
            data: text
                .chars()
                .map(|c| if c.is_control() { '.' } else { c })
                .take(80)
                .collect(),
            seconds: (self.ended.unwrap_or(now) - self.start).as_secs_f64(),
        }
    }
}

/// A host with an address of its own, and its connections.
#[derive(Debug)]
pub struct Host {
    own: End,
    connections: Vec<Connection>,
    /// Options of the connections that come: offer SMC, script, how many.
    listen: Option<(bool, Vec<Step>, usize)>,
    /// Connections to make when the other side's MAC address is known: to whom, and the script of each.
    connect: Option<(End, bool, Vec<Vec<Step>>)>,
    ask: Option<Instant>,
    out: Vec<Vec<u8>>,
}

impl Host {
    /// A host that waits for connections on its port.
    pub fn server(own: End, offer: bool, script: Vec<Step>, count: usize) -> Self {
        Self {
            own,
            connections: Vec::new(),
            listen: Some((offer, script, count)),
            connect: None,
            ask: None,
            out: Vec::new(),
        }
    }

    /// A host that connects from ports beginning with its own, once for each script.
    pub fn client(
        own: End,
        other: End,
        offer: bool,
        scripts: Vec<Vec<Step>>,
        now: Instant,
    ) -> Self {
        Self {
            own,
            connections: Vec::new(),
            listen: None,
            connect: Some((other, offer, scripts)),
            ask: Some(now),
            out: Vec::new(),
        }
    }

    /// Takes a frame from the wire.
    pub fn handle(&mut self, bytes: &[u8], now: Instant) {
        match frame::parse(bytes, self.own.ip) {
            None => {}
            Some(Frame::ArpRequest { mac, ip }) => {
                self.out
                    .push(frame::arp(&self.own, &End { mac, ip, port: 0 }, true));
            }
            Some(Frame::ArpReply { mac, ip }) => self.handle_arp_reply(mac, ip, now),
            Some(Frame::Tcp {
                from,
                port,
                segment,
            }) => {
                let known = self.connections.iter_mut().find(|connection| {
                    connection.own.port == port
                        && (connection.other.ip, connection.other.port) == (from.ip, from.port)
                });
                match known {
                    Some(connection) => connection.handle(&segment, now, &mut self.out),
                    None => self.handle_new(from, port, &segment, now),
                }
            }
        }
        self.poll(now);
    }

    fn handle_arp_reply(&mut self, mac: [u8; 6], ip: [u8; 4], now: Instant) {
        if self
            .connect
            .as_ref()
            .is_none_or(|(other, ..)| other.ip != ip)
        {
            return;
        }
        let Some((other, offer, scripts)) = self.connect.take() else {
            return;
        };
        self.ask = None;
        for (number, script) in scripts.into_iter().enumerate() {
            let own = End {
                port: self.own.port.wrapping_add(number as u16),
                ..self.own
            };
            let other = End { mac, ..other };
            let mut connection = Connection::new(own, other, offer, script, now);
            self.out.push(connection.frame(&connection.syn()));
            connection.arm(now);
            self.connections.push(connection);
        }
    }

    fn handle_new(&mut self, from: End, port: u16, segment: &Segment, now: Instant) {
        let Some((offer, script, count)) = &self.listen else {
            return;
        };
        let wanted = segment.syn && segment.ack.is_none() && !segment.rst;
        if !wanted || port != self.own.port || self.connections.len() >= *count {
            return;
        }
        let offer = *offer && segment.smc;
        let mut connection = Connection::new(self.own, from, offer, script.clone(), now);
        connection.phase = Phase::SynReceived;
        connection.seen_option = segment.smc;
        connection.expected = segment.seq.wrapping_add(1);
        self.out.push(connection.frame(&connection.syn()));
        connection.arm(now);
        self.connections.push(connection);
    }

    /// Does what is due.
    pub fn poll(&mut self, now: Instant) {
        if self.ask.is_some_and(|at| at <= now) {
            if let Some((other, ..)) = &self.connect {
                self.out.push(frame::arp(&self.own, other, false));
                self.ask = Some(now + RETRANSMIT);
            }
        }
        for connection in &mut self.connections {
            connection.poll(now, &mut self.out);
        }
    }

    /// Has a connection, by its number, do one more step behind those of its script.
    pub fn add_step(&mut self, number: usize, step: Step) {
        if let Some(connection) = self.connections.get_mut(number) {
            connection.script.push(step);
        }
    }

    /// What came of a connection so far; none if there is no such connection yet.
    pub fn outcome(&self, number: usize, now: Instant) -> Option<Outcome> {
        Some(self.connections.get(number)?.outcome(now))
    }

    /// The CLC messages of a connection, as they came.
    pub fn raw_messages(&self, number: usize) -> &[Vec<u8>] {
        self.connections
            .get(number)
            .map_or(&[], |connection| &connection.raw)
    }

    /// The other side of a connection has ended its stream.
    pub fn is_peer_done(&self, number: usize) -> bool {
        self.connections
            .get(number)
            .is_some_and(|connection| connection.peer_fin)
    }

    /// Frames to send.
    pub fn take_frames(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.out)
    }

    /// When to poll next, if nothing comes.
    pub fn deadline(&self) -> Option<Instant> {
        self.connections
            .iter()
            .filter_map(Connection::deadline)
            .chain(self.ask)
            .min()
    }

    /// All connections wanted have been there and have ended.
    pub fn is_done(&self) -> bool {
        let missing = match (&self.listen, &self.connect) {
            (Some((_, _, count)), _) => self.connections.len() < *count,
            (None, connect) => connect.is_some(),
        };
        !missing
            && self
                .connections
                .iter()
                .all(|connection| connection.ended.is_some())
    }

    /// Resets what is open, so that nothing stays behind on the other side.
    pub fn abandon(&mut self, now: Instant) {
        for connection in &mut self.connections {
            if connection.ended.is_none() {
                let mut segment = connection.segment(connection.next_seq());
                segment.rst = true;
                self.out.push(connection.frame(&segment));
                connection.ended = Some(now);
            }
        }
    }

    /// What came of the connections.
    pub fn outcomes(&self, now: Instant) -> Vec<Outcome> {
        self.connections
            .iter()
            .map(|connection| connection.outcome(now))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::clc::Identity;
    use super::super::script;
    use super::*;

    const A: End = End {
        mac: [2, 0, 0, 0, 0, 1],
        ip: [192, 0, 2, 1],
        port: 1000,
    };
    const B: End = End {
        mac: [2, 0, 0, 0, 0, 2],
        ip: [192, 0, 2, 2],
        port: 80,
    };

    /// Two hosts and a wire that drops frames of these numbers.
    struct Pair {
        client: Host,
        server: Host,
        now: Instant,
        start: Instant,
        frames: usize,
        drop: Vec<usize>,
    }

    impl Pair {
        fn new(client: &str, server: &str, offers: (bool, bool), count: usize) -> Self {
            let start = Instant::now();
            let identity = Identity {
                mac: A.mac,
                ip: A.ip,
                prefix: 24,
            };
            let steps = |text| script::parse(text, &identity, 1).unwrap();
            Self {
                client: Host::client(A, B, offers.0, vec![steps(client); count], start),
                server: Host::server(B, offers.1, steps(server), count),
                now: start,
                start,
                frames: 0,
                drop: Vec::new(),
            }
        }

        fn run(&mut self, limit: Duration) {
            let end = self.start + limit;
            while self.now < end && !(self.client.is_done() && self.server.is_done()) {
                self.client.poll(self.now);
                self.server.poll(self.now);
                let mut quiet = true;
                for (from_client, frames) in [
                    (true, self.client.take_frames()),
                    (false, self.server.take_frames()),
                ] {
                    for frame in frames {
                        quiet = false;
                        self.frames += 1;
                        if self.drop.contains(&self.frames) {
                            continue;
                        }
                        let to = if from_client {
                            &mut self.server
                        } else {
                            &mut self.client
                        };
                        to.handle(&frame, self.now);
                    }
                }
                if quiet {
                    let next = self
                        .client
                        .deadline()
                        .into_iter()
                        .chain(self.server.deadline())
                        .min();
                    self.now = next
                        .unwrap_or(end)
                        .clamp(self.now + Duration::from_millis(1), end);
                }
            }
        }

        fn outcomes(&self) -> (Outcome, Outcome) {
            let mut client = self.client.outcomes(self.now);
            let mut server = self.server.outcomes(self.now);
            (client.remove(0), server.remove(0))
        }
    }

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn rendezvous_until_a_reset() {
        let mut pair = Pair::new(
            "proposal,wait:accept,confirm",
            "wait:proposal,accept,wait:confirm,rst",
            (true, true),
            1,
        );
        pair.run(LIMIT);
        let (client, server) = pair.outcomes();
        assert_eq!((client.end, server.end), (Ending::Rst, Ending::OwnRst));
        assert_eq!((client.steps, server.steps), ((3, 3), (4, 4)));
        assert!(client.smc_option && server.smc_option && client.connected);
        assert_eq!(client.messages[0].kind, "accept");
        let kinds: Vec<_> = server
            .messages
            .iter()
            .map(|seen| seen.kind.as_str())
            .collect();
        assert_eq!(kinds, ["proposal", "confirm"]);
    }

    #[test]
    fn options_only_if_both_offer() {
        for offers in [(true, false), (false, true)] {
            let mut pair = Pair::new("fin", "wait:never", offers, 1);
            pair.run(LIMIT);
            let (client, server) = pair.outcomes();
            assert!(!client.smc_option && client.connected);
            assert_eq!(server.smc_option, offers.0);
            assert_eq!(server.end, Ending::Fin);
        }
    }

    #[test]
    fn decline_then_data() {
        let mut pair = Pair::new(
            "decline:0x03070000,text:hello,read:5,fin",
            "wait:decline,read:5,text:world,fin",
            (true, true),
            1,
        );
        pair.run(LIMIT);
        let (client, server) = pair.outcomes();
        assert_eq!(server.messages[0].diagnosis.as_deref(), Some("0x03070000"));
        assert_eq!((server.data.as_str(), server.data_bytes), ("hello", 5));
        assert_eq!((client.data.as_str(), client.end), ("world", Ending::Fin));
    }

    #[test]
    fn drips_take_their_time() {
        let mut pair = Pair::new("drip:20,proposal", "wait:proposal,rst", (true, true), 1);
        pair.run(LIMIT);
        let (client, server) = pair.outcomes();
        assert_eq!(server.messages[0].length, 52);
        assert!((1.0..2.0).contains(&client.seconds), "{}", client.seconds);
        assert!(pair.frames > 100, "{} frames", pair.frames);
    }

    #[test]
    fn any_lost_frame_is_made_good() {
        let scripts = (
            "proposal,zero:5000,read:3,fin",
            "wait:proposal,read:5000,text:end,fin",
        );
        let mut whole = Pair::new(scripts.0, scripts.1, (true, true), 1);
        whole.run(LIMIT);
        for lost in 1..=whole.frames {
            let mut pair = Pair::new(scripts.0, scripts.1, (true, true), 1);
            pair.drop = vec![lost];
            pair.run(LIMIT);
            let (client, server) = pair.outcomes();
            assert_eq!(server.data_bytes, 5000, "frame {lost}");
            assert_eq!(
                (client.data.as_str(), client.end),
                ("end", Ending::Fin),
                "frame {lost}"
            );
            assert_eq!(server.end, Ending::Fin, "frame {lost}");
        }
    }

    #[test]
    fn many_at_once() {
        let mut pair = Pair::new("sleep:100,fin", "wait:never", (true, true), 50);
        pair.run(LIMIT);
        assert!(pair.client.is_done() || pair.client.outcomes(pair.now).len() == 50);
        let ended = pair.server.outcomes(pair.now);
        assert_eq!(ended.len(), 50);
        assert!(ended.iter().all(|outcome| outcome.end == Ending::Fin));
        assert!(pair.now - pair.start < LIMIT);
    }

    #[test]
    fn silence_and_no_answer() {
        let mut pair = Pair::new("", "", (true, true), 1);
        pair.run(Duration::from_secs(3));
        let (client, server) = pair.outcomes();
        assert_eq!((client.end, server.end), (Ending::Open, Ending::Open));
        pair.client.abandon(pair.now);
        let frame = pair.client.take_frames().remove(0);
        pair.server.handle(&frame, pair.now);
        assert_eq!(pair.outcomes().1.end, Ending::Rst);

        let mut pair = Pair::new("", "", (true, true), 1);
        // All frames after the questions about the address.
        pair.drop = (3..1000).collect();
        pair.run(LIMIT);
        let client = pair.client.outcomes(pair.now).remove(0);
        assert_eq!((client.end, client.connected), (Ending::NoAnswer, false));
    }

    #[test]
    fn remains_of_an_earlier_connection_are_reset() {
        let now = Instant::now();
        let mut client = Host::client(A, B, true, vec![vec![]], now);
        client.handle(&frame::arp(&B, &A, true), now);
        client.take_frames();
        let challenge = Segment {
            seq: 5,
            ack: Some(99),
            ..Segment::default()
        };
        client.handle(&frame::tcp(&B, &A, &challenge), now);
        let Some(Frame::Tcp { segment, .. }) = frame::parse(&client.take_frames()[0], B.ip) else {
            panic!("no segment");
        };
        assert!(segment.rst && segment.seq == 99);
        assert!(!client.is_done());
    }

    #[test]
    fn a_closed_port_refuses() {
        let now = Instant::now();
        let mut client = Host::client(A, B, true, vec![vec![]], now);
        client.poll(now);
        client.handle(&frame::arp(&B, &A, true), now);
        let frame = client.take_frames().pop().unwrap();
        let Some(Frame::Tcp { segment, .. }) = frame::parse(&frame, B.ip) else {
            panic!("no segment");
        };
        let answer = Segment {
            rst: true,
            ack: Some(segment.seq.wrapping_add(1)),
            ..Segment::default()
        };
        client.handle(&frame::tcp(&B, &A, &answer), now);
        assert_eq!(client.outcomes(now)[0].end, Ending::Refused);
        assert!(client.is_done());
    }
}

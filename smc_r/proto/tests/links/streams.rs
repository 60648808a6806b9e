// SPDX-License-Identifier: GPL-2.0

//! Connections over the links of a group: each byte is known by its place, so that none is lost,
//! doubled or out of order.

use smc_proto::{
    cdc::Cdc,
    conn::{
        Conn,
        Params,
        SendFlags,
        State,
        Transmit,
        Write, //
    },
    group::{
        LinkIx,
        PeerElement,
        PeerTable, //
    },
    wire::AlertToken, //
};

use crate::{
    rng::Rng,
    world::{
        token,
        Host,
        World, //
    },
};

/// One end of a connection.
pub struct Stream {
    pub conn: Conn,
    ring: Vec<u8>,
    element: Vec<u8>,
    /// The link of our direction.
    link: Option<LinkIx>,
    /// The one on which it goes on as soon as it may.
    next: Option<LinkIx>,
    /// How far it is on that way.
    moving: Moving,
    /// Our hold on the peer's buffer.
    pub peer: Option<PeerElement>,
    accepted: u64,
    read: u64,
    pub moves: usize,
    /// Moves because a link had failed.
    failovers: usize,
    /// Number of the peer's last message.
    heard: u16,
}

/// How far a connection is that is to go on on another link, although its own works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moving {
    Posting,
    /// Nothing is under way any more, as far as this end knows.
    Quiet,
    /// The group finds out whether all has arrived.
    Asked,
}

/// What a connection posted.
#[derive(Debug, Clone, Copy)]
pub struct Post {
    pub stream: usize,
    pub transmit: Transmit,
}

/// What a device has received, and confirmed, of a connection: what was written may not be in memory yet, and nobody has
/// looked at the message.
#[derive(Debug, Clone)]
pub struct Arrival {
    stream: usize,
    /// Places of the element and what belongs there.
    written: Vec<(u32, u8)>,
    cdc: Cdc,
}

/// Sizes of send rings and elements, by the number of the connection.
const SIZES: [u32; 6] = [16, 64, 100, 256, 1000, 4096];

fn size(stream: usize) -> u32 {
    SIZES[stream % SIZES.len()]
}

/// The byte at a place of the stream that a host sends.
fn byte(host: usize, stream: usize, place: u64) -> u8 {
    let salt = ((host as u64) << 33) | ((stream as u64) << 40);
    let x = (place + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt;
    (x.wrapping_mul(0xff51_afd7_ed55_8ccd) >> 56) as u8
}

impl Stream {
    pub fn new(number: usize) -> Self {
        let size = size(number);
        let mut conn = Conn::new(&Params {
            send_ring: size,
            element: size,
            peer_element: size,
            base: 0,
            peer_token: AlertToken(number as u32 + 1),
            max_transmit: 0,
        })
        .unwrap();
        conn.set_several_links(true);
        Self {
            conn,
            ring: vec![0; size as usize],
            element: vec![0; size as usize],
            link: Some(LinkIx::FIRST),
            next: None,
            moving: Moving::Posting,
            peer: None,
            accepted: 0,
            read: 0,
            moves: 0,
            failovers: 0,
            heard: 0,
        }
    }
}

impl World {
    fn load(&self, h: usize) -> impl Fn(LinkIx) -> u32 + '_ {
        move |link| {
            let on_it = self.hosts[h].streams.iter();
            on_it
                .filter(|stream| stream.next.or(stream.link) == Some(link))
                .count() as u32
        }
    }

    /// Posts what the connections of a host have to send.
    pub fn post_streams(&mut self, h: usize) {
        for number in 0..self.hosts[h].streams.len() {
            let stream = &mut self.hosts[h].streams[number];
            let posts = stream.moving == Moving::Posting;
            if posts && stream.next.is_some() && stream.conn.may_move() {
                stream.moving = Moving::Quiet;
                stream.conn.set_silent(true);
            }
            loop {
                let stream = &mut self.hosts[h].streams[number];
                let Some(link) = stream.link else {
                    break;
                };
                let due = match stream.next {
                    Some(_) => stream.conn.poll_before_move(),
                    None => stream.conn.poll_transmit(),
                };
                let Some(transmit) = due else {
                    break;
                };
                let Some(qp) = self.qp_of(h, link) else {
                    panic!("connection {number} has lost its link");
                };
                let post = Post {
                    stream: number,
                    transmit,
                };
                self.post(h, qp, post);
            }
        }
    }

    /// The fabric carries out what was posted: writes first, then the message.
    pub fn execute(&mut self, h: usize, own: u32, peer: u32, post: &Post) {
        let r = 1 - h;
        let link = self.hosts[h].qps[&own].link;
        let number = post.stream;
        let held = self.hosts[h].streams[number].peer.unwrap();
        let known = PeerTable::new(&mut self.hosts[h].peers).token(held.slot, link);
        // A link that is gone takes its keys along while the last of it is still on its way.
        let expected = token(peer, number as u16);
        assert!(
            known == Some(expected) || !self.hosts[h].qps[&own].up,
            "no key for a buffer on its link: {:?}",
            self.log
        );
        let ring = &self.hosts[h].streams[number].ring;
        let of_write = |write: &Write| {
            let write = *write;
            (0..write.len).map(move |k| (write.to + k, ring[(write.from + k) as usize]))
        };
        let arrival = Arrival {
            stream: number,
            written: post.transmit.writes().iter().flat_map(of_write).collect(),
            cdc: post.transmit.cdc,
        };
        if let Some(qp) = self.hosts[r].qps.get_mut(&peer) {
            qp.arrived.push_back(arrival);
        }
    }

    /// What a queue pair has received is in memory.
    pub fn put_into_memory(&mut self, h: usize, number: u32) {
        let Host { qps, streams, .. } = &mut self.hosts[h];
        let arrived = qps.get_mut(&number).into_iter();
        for arrival in arrived.flat_map(|qp| &mut qp.arrived) {
            let element = &mut streams[arrival.stream].element;
            for (place, byte) in arrival.written.drain(..) {
                element[place as usize] = byte;
            }
        }
    }

    /// A host looks at the next message that has arrived on a queue pair.
    pub fn receive(&mut self, h: usize, number: u32) {
        let qp = self.hosts[h].qps.get_mut(&number).unwrap();
        let link = qp.link;
        let Some(arrival) = qp.arrived.pop_front() else {
            return;
        };
        let failovers = self.hosts[1 - h].streams[arrival.stream].failovers;
        let Stream {
            conn,
            element,
            heard,
            ..
        } = &mut self.hosts[h].streams[arrival.stream];
        // Linux takes each message for what it says, whatever may be under way over another link.
        let before = std::mem::replace(heard, arrival.cdc.seq);
        assert!(
            failovers > 0 || before.wrapping_add(1) == arrival.cdc.seq,
            "connection {}: {} follows {before}: {:?}",
            arrival.stream,
            arrival.cdc.seq,
            self.log
        );
        for (place, byte) in &arrival.written {
            element[*place as usize] = *byte;
        }
        let events = conn.handle_cdc(link, &arrival.cdc, |at| element[at as usize]);
        assert_eq!(events.violation, None, "{:?}", self.log);
        self.post_streams(h);
    }

    /// A host looks at the next completion of a queue pair.
    pub fn complete(&mut self, h: usize, number: u32) {
        let qp = self.hosts[h].qps.get_mut(&number).unwrap();
        let link = qp.link;
        let Some((stream, ticket)) = qp.completed.pop_front() else {
            return;
        };
        let stream = &mut self.hosts[h].streams[stream];
        if stream.link == Some(link) {
            let _ = stream.conn.handle_sent(ticket, true);
        }
        self.rebalance(h);
        self.post_streams(h);
    }

    /// A link is down: its connections go on on other ones.
    pub fn move_streams(&mut self, h: usize, link: LinkIx) {
        let Some(qp) = self.qp_of(h, link) else {
            return;
        };
        // Nothing more is posted; what was posted completes or is flushed.
        self.hosts[h].qps.get_mut(&qp).unwrap().failed = true;
        self.flush(h, qp);
        while !self.hosts[h].qps[&qp].completed.is_empty() {
            self.complete(h, qp);
        }
        for number in 0..self.hosts[h].streams.len() {
            let stream = &mut self.hosts[h].streams[number];
            if stream.next == Some(link) {
                stream.next = None;
                stream.conn.set_silent(false);
            }
            if stream.link == Some(link) {
                stream.link = None;
                let next = self.hosts[h]
                    .flow
                    .choose_link(|link| Some(self.load(h)(link)));
                assert!(next.is_some() || !self.hosts[h].flow.is_usable());
                self.move_stream(h, number, next);
            }
        }
    }

    fn move_stream(&mut self, h: usize, number: usize, to: Option<LinkIx>) {
        let stream = &mut self.hosts[h].streams[number];
        stream.link = to;
        stream.next = None;
        stream.moves += 1;
        stream.failovers += 1;
        let _ = stream.conn.handle_failover();
    }

    /// Spreads the connections over the links: each moves as soon as it may.
    pub fn rebalance(&mut self, h: usize) {
        while let Some((from, to)) = self.hosts[h].flow.rebalance(self.load(h)) {
            let on_it = self.hosts[h]
                .streams
                .iter_mut()
                .find(|stream| stream.link == Some(from) && stream.next.is_none());
            match on_it {
                Some(stream) => {
                    stream.next = Some(to);
                    stream.moving = Moving::Posting;
                }
                None => break,
            }
        }
    }

    /// Finds out whether all has arrived that connections have posted which are to move.
    pub fn confirm_writes(&mut self, h: usize) {
        let now = self.time();
        let Host {
            flow,
            streams,
            asked,
            ..
        } = &mut self.hosts[h];
        let before = asked.clone();
        for stream in streams {
            let link = stream.link.filter(|link| !before.contains(link));
            let waits = stream.next.is_some() && stream.moving == Moving::Quiet;
            if let Some(link) = link.filter(|_| waits) {
                stream.moving = Moving::Asked;
                if !asked.contains(&link) {
                    asked.push(link);
                }
            }
        }
        asked.retain(|link| before.contains(link) || flow.confirm_writes(*link, now));
        self.settle(h);
    }

    /// It has, on this link.
    pub fn writes_arrived(&mut self, h: usize, link: LinkIx) {
        let asked = &mut self.hosts[h].asked;
        assert!(asked.contains(&link), "nobody has asked");
        asked.retain(|asked| *asked != link);
        for stream in &mut self.hosts[h].streams {
            if stream.link == Some(link) && stream.moving == Moving::Asked {
                if let Some(next) = stream.next.take() {
                    assert!(stream.conn.may_move());
                    stream.conn.handle_move();
                    stream.link = Some(next);
                    stream.moves += 1;
                }
            }
        }
        self.post_streams(h);
    }

    /// Whether a connection waits that is to move.
    pub fn waits_for_arrival(&self, h: usize) -> bool {
        let Host { streams, asked, .. } = &self.hosts[h];
        streams.iter().any(|stream| {
            let may_be_asked = stream.link.is_some_and(|link| !asked.contains(&link));
            stream.next.is_some() && stream.moving == Moving::Quiet && may_be_asked
        })
    }

    /// The applications send and read a little.
    pub fn applications(&mut self, rng: &mut Rng) {
        if self.setup.streams == 0 {
            return;
        }
        let h = rng.below(2) as usize;
        let number = rng.below(self.setup.streams as u64) as usize;
        if rng.percent(50) {
            self.send(h, number, rng.size(1, 2 * size(number)));
        } else {
            self.read(h, number, rng.size(1, 2 * size(number)));
        }
        self.post_streams(h);
    }

    /// The application sends so much, or as much as there is room for.
    pub fn send(&mut self, h: usize, number: usize, n: u32) {
        let stream = &mut self.hosts[h].streams[number];
        let spans = stream.conn.send_spans(n);
        let mut place = stream.accepted;
        for span in spans.iter() {
            for k in 0..span.len {
                stream.ring[(span.offset + k) as usize] = byte(h, number, place);
                place += 1;
            }
        }
        let taken = stream.conn.send_commit(spans.len(), SendFlags::default());
        stream.accepted += u64::from(taken);
    }

    fn read(&mut self, h: usize, number: usize, n: u32) -> u32 {
        let stream = &mut self.hosts[h].streams[number];
        let spans = stream.conn.recv_spans(0, n);
        for span in spans.iter() {
            for k in 0..span.len {
                let got = stream.element[(span.offset + k) as usize];
                let place = stream.read;
                assert_eq!(
                    got,
                    byte(1 - h, number, place),
                    "connection {number}: byte {place}: {:?}",
                    self.log
                );
                stream.read += 1;
            }
        }
        stream.conn.recv_commit(spans.len());
        spans.len()
    }

    /// The links of a host have equal shares of its connections, whichever have failed and come back.
    fn check_spread(&self, h: usize) {
        let load = self.load(h);
        let flow = &self.hosts[h].flow;
        let links = LinkIx::all().filter(|link| flow.is_link_up(*link));
        let loads: Vec<u32> = links.map(&load).collect();
        let most = loads.iter().max().unwrap();
        let least = loads.iter().min().unwrap();
        assert!(most - least <= 1, "{loads:?}: {:?}", self.log);
        assert_eq!(flow.rebalance(load), None);
    }

    /// All that was sent arrives, and the connections end.
    pub fn finish_streams(&mut self) {
        for round in 0..2 {
            let mut busy = true;
            while busy {
                let until = self.now + 1;
                self.run_until(until);
                busy = false;
                for h in 0..2 {
                    for number in 0..self.hosts[h].streams.len() {
                        busy |= self.read(h, number, u32::MAX) > 0;
                    }
                    self.post_streams(h);
                }
            }
            for h in 0..2 {
                self.check_spread(h);
                for number in 0..self.hosts[h].streams.len() {
                    let sent = self.hosts[1 - h].streams[number].accepted;
                    let stream = &mut self.hosts[h].streams[number];
                    assert_eq!(stream.conn.error(), None, "connection {number}");
                    assert_eq!(stream.read, sent, "connection {number}: bytes are missing");
                    assert_eq!(stream.next, None, "connection {number} has not moved");
                    if round == 0 {
                        let _ = stream.conn.close();
                    } else {
                        assert_eq!(stream.conn.state(), State::Closed);
                    }
                }
                self.post_streams(h);
            }
        }
    }
}

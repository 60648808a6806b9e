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
        Transmit, //
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
    /// Our hold on the peer's buffer.
    pub peer: Option<PeerElement>,
    accepted: u64,
    read: u64,
    pub moves: usize,
}

/// What a connection posted.
#[derive(Debug, Clone, Copy)]
pub struct Post {
    pub stream: usize,
    pub transmit: Transmit,
}

/// A message of a connection that has arrived.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    stream: usize,
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
            peer: None,
            accepted: 0,
            read: 0,
            moves: 0,
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
            if stream.next.is_some() && stream.conn.may_move() {
                stream.link = stream.next.take();
                stream.moves += 1;
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
        for write in post.transmit.writes() {
            for k in 0..write.len {
                let byte = self.hosts[h].streams[number].ring[(write.from + k) as usize];
                self.hosts[r].streams[number].element[(write.to + k) as usize] = byte;
            }
        }
        if let Some(qp) = self.hosts[r].qps.get_mut(&peer) {
            qp.arrived.push_back(Arrival {
                stream: number,
                cdc: post.transmit.cdc,
            });
        }
    }

    /// A host looks at the next message that has arrived on a queue pair.
    pub fn receive(&mut self, h: usize, number: u32) {
        let qp = self.hosts[h].qps.get_mut(&number).unwrap();
        let link = qp.link;
        let Some(arrival) = qp.arrived.pop_front() else {
            return;
        };
        let Stream { conn, element, .. } = &mut self.hosts[h].streams[arrival.stream];
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
            stream.next = stream.next.filter(|next| *next != link);
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
                Some(stream) => stream.next = Some(to),
                None => break,
            }
        }
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

// SPDX-License-Identifier: GPL-2.0

//! Rules of a namespace about which connections may use SMC: by the peer's address, the port of the
//! service, the control group of the program, and our side of the connection.
//!
//! The first rule that fits decides, in the order of their numbers. Without any that fits, SMC may
//! be used. A connection that may not use it is plain TCP, with the reason
//! [`Diagnosis::CONFIGURATION`](smc_proto::wire::Diagnosis::CONFIGURATION).

use core::net::IpAddr;

use kapi::{
    genl::Changes,
    grow::Grow,
    sock::Sk, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Mutex, //
    },
};

use crate::{socket::SmcSocket, stats::Side};

/// Most rules of a namespace.
const MAX_RULES: usize = 1024;

/// Addresses that agree in their first bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prefix {
    pub(crate) addr: IpAddr,
    pub(crate) len: u8,
}

impl Prefix {
    /// `None` if an address has fewer bits than that.
    pub(crate) fn new(addr: IpAddr, len: u8) -> Option<Self> {
        let bits = if addr.is_ipv4() { 32 } else { 128 };
        (len <= bits).then_some(Self { addr, len })
    }

    fn contains(&self, other: IpAddr) -> bool {
        let same = match (self.addr, other) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros()
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                (own.to_bits() ^ other.to_bits()).leading_zeros()
            }
            _ => return false,
        };
        same >= u32::from(self.len)
    }
}

/// A rule. What is `None` does not matter.
#[derive(Clone, Copy)]
pub(crate) struct Rule {
    /// Its place among the others.
    pub(crate) number: u32,
    pub(crate) allow: bool,
    /// Our side of the connection.
    pub(crate) side: Option<Side>,
    /// The peer's address.
    pub(crate) prefix: Option<Prefix>,
    /// The server's port: the first and the last.
    pub(crate) ports: Option<(u16, u16)>,
    /// The number of a control group that the program is in, itself or by one of its groups. On the
    /// server's side this is the program that listens.
    pub(crate) cgroup: Option<u64>,
}

impl Rule {
    fn fits(&self, sk: &Sk<SmcSocket>, side: Side, peer: Option<IpAddr>, port: u16) -> bool {
        let of_peer = |prefix: Prefix| peer.is_some_and(|peer| prefix.contains(peer));
        self.side.is_none_or(|own| own == side)
            && self.prefix.is_none_or(of_peer)
            && self
                .ports
                .is_none_or(|(first, last)| (first..=last).contains(&port))
            && self.cgroup.is_none_or(|id| sk.is_in_cgroup(id))
    }
}

/// The rules of a namespace. Process context.
#[pin_data]
pub(crate) struct Rules {
    /// In the order of their numbers.
    #[pin]
    list: Mutex<KVec<Rule>>,
    /// How many there are: mostly none.
    count: Atomic<u32>,
    changes: Changes,
}

impl Rules {
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_mutex!(KVec::new(), "smc_rules"),
            count: Atomic::new(0),
            changes: Changes::new(),
        })
    }

    /// May a connection with `peer` use SMC? `port` is the server's. `sk` is the socket that
    /// connects, or that listens.
    pub(crate) fn allow(
        &self,
        sk: &Sk<SmcSocket>,
        side: Side,
        peer: Option<IpAddr>,
        port: u16,
    ) -> bool {
        if self.count.load(Relaxed) == 0 {
            return true;
        }
        let list = self.list.lock();
        let rule = list.iter().find(|rule| rule.fits(sk, side, peer, port));
        rule.is_none_or(|rule| rule.allow)
    }

    /// Adds a rule: at its number, or behind the last one if that is zero. Gives the number.
    /// [`EEXIST`] if there is one with this number, [`ENOSPC`] if there are too many.
    pub(crate) fn add(&self, mut rule: Rule) -> Result<u32> {
        let mut list = self.list.lock();
        if list.len() >= MAX_RULES {
            return Err(ENOSPC);
        }
        if rule.number == 0 {
            let last = list.last().map_or(0, |last| last.number);
            rule.number = last.checked_add(1).ok_or(ENOSPC)?;
        }
        let place = list.iter().position(|other| other.number >= rule.number);
        let place = place.unwrap_or(list.len());
        if list
            .get(place)
            .is_some_and(|other| other.number == rule.number)
        {
            return Err(EEXIST);
        }
        list.make_room(1, GFP_KERNEL)?;
        list.insert_within_capacity(place, rule)
            .map_err(|_| ENOMEM)?;
        self.changed(list.len());
        Ok(rule.number)
    }

    /// Removes a rule: [`ENOENT`] if there is none with this number.
    pub(crate) fn remove(&self, number: u32) -> Result {
        let mut list = self.list.lock();
        let place = list
            .iter()
            .position(|rule| rule.number == number)
            .ok_or(ENOENT)?;
        list.remove(place).map_err(|_| ENOENT)?;
        self.changed(list.len());
        Ok(())
    }

    /// Removes all rules.
    pub(crate) fn flush(&self) {
        let mut list = self.list.lock();
        let rules = core::mem::take(&mut *list);
        self.changed(0);
        drop(list);
        drop(rules);
    }

    /// The list, whose lock is held, has so many rules now.
    fn changed(&self, count: usize) {
        self.count.store(count as u32, Relaxed);
        self.changes.note();
    }

    /// How often the rules have changed.
    pub(crate) fn changes(&self) -> u32 {
        self.changes.count()
    }

    /// The rule that comes after number `number`.
    pub(crate) fn after(&self, number: u32) -> Option<Rule> {
        self.list
            .lock()
            .iter()
            .find(|rule| rule.number > number)
            .copied()
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The connections of a link group, by the token that the peer puts into its messages.

use core::num::NonZeroU32;

use kapi::grow::Grow;
use kernel::{alloc::kvec::KVVec, prelude::*, sync::atomic::Relaxed};
use smc_proto::{
    cdc::Cdc,
    conn::Early,
    group::{LinkIx, Role},
    wire::AlertToken, //
};

use crate::socket::SocketRef;

/// Connections of one link group at most.
pub(crate) const MAX_CONNECTIONS: u16 = 255;

/// Places of the table of a server, which keeps the limit, and of a client, where connections that
/// the server has counted out already may still be on their way out.
const fn places(role: Role) -> usize {
    match role {
        Role::Server => MAX_CONNECTIONS as usize,
        Role::Client => (MAX_CONNECTIONS as usize).saturating_mul(2),
    }
}

/// Our alert token of a connection: place in the table in the low 9 bits, and above it a number
/// that changes each time the place is given out, so that a late message meets nobody. Never 0.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConnToken(NonZeroU32);

impl ConnToken {
    const PLACE_BITS: u32 = 9;
    const MAX_GENERATION: u32 = u32::MAX >> Self::PLACE_BITS;

    /// A token as it came from the wire.
    pub(crate) fn new(value: u32) -> Option<Self> {
        NonZeroU32::new(value).map(Self)
    }

    fn at(place: usize, generation: u32) -> Option<Self> {
        let place = u32::try_from(place).ok()?;
        Self::new(generation << Self::PLACE_BITS | place)
    }

    /// The 32 bits on the wire.
    pub(crate) fn get(self) -> u32 {
        self.0.get()
    }

    fn place(self) -> usize {
        self.get() as usize & ((1 << Self::PLACE_BITS) - 1)
    }
}

impl From<ConnToken> for AlertToken {
    fn from(token: ConnToken) -> Self {
        AlertToken(token.get())
    }
}

/// What stands at a place.
enum Slot {
    Free,
    /// CLC has named the token; the connection is not set up yet. Messages may come early.
    Reserved(Early),
    Live(SocketRef),
}

struct Entry {
    generation: u32,
    slot: Slot,
    /// Stands in the queue of those that wait for a send slot.
    waiting: bool,
}

/// Table of connections. All operations are for softirq as well; nothing is allocated after
/// [`Table::new`].
pub(crate) struct Table {
    entries: KVVec<Entry>,
    /// The free places, those that have been free for longest first: a token comes back as late as
    /// possible.
    free: KVVec<u16>,
    /// Places whose connections wait for a send slot, first come first served.
    waiting: KVVec<u16>,
}

impl Table {
    /// An empty table.
    pub(crate) fn new(role: Role) -> Result<Self> {
        let places = places(role);
        let mut entries = KVVec::with_capacity(places, GFP_KERNEL)?;
        let mut free = KVVec::with_capacity(places, GFP_KERNEL)?;
        for place in 0..places {
            free.append(place as u16, GFP_KERNEL)?;
            entries.append(
                Entry {
                    generation: 0,
                    slot: Slot::Free,
                    waiting: false,
                },
                GFP_KERNEL,
            )?;
        }
        Ok(Self {
            entries,
            free,
            waiting: KVVec::with_capacity(places, GFP_KERNEL)?,
        })
    }

    /// Gives out a token.
    pub(crate) fn reserve(&mut self) -> Option<ConnToken> {
        let place = usize::from(self.free.remove(0).ok()?);
        let entry = self.entries.get_mut(place)?;
        // From 1 to the most, and from there to 1.
        entry.generation = match entry.generation {
            ConnToken::MAX_GENERATION.. => 1,
            generation => generation.saturating_add(1),
        };
        entry.slot = Slot::Reserved(Early::default());
        ConnToken::at(place, entry.generation)
    }

    fn entry(&mut self, token: ConnToken) -> Option<&mut Entry> {
        let generation = token.get() >> ConnToken::PLACE_BITS;
        let entry = self.entries.get_mut(token.place())?;
        (entry.generation == generation).then_some(entry)
    }

    /// The connection is set up. Gives the messages that came early.
    pub(crate) fn go_live(&mut self, token: ConnToken, sk: SocketRef) -> Early {
        let Some(entry) = self.entry(token) else {
            return Early::default();
        };
        match core::mem::replace(&mut entry.slot, Slot::Live(sk)) {
            Slot::Reserved(early) => early,
            Slot::Free | Slot::Live(_) => Early::default(),
        }
    }

    /// Takes a token back. The caller drops the reference after unlocking.
    pub(crate) fn release(&mut self, token: ConnToken) -> Option<SocketRef> {
        let entry = self.entry(token)?;
        let was = core::mem::replace(&mut entry.slot, Slot::Free);
        if !matches!(was, Slot::Free) {
            // Each place stands there once at most, so that there is room.
            let _ = self.free.push_within_capacity(token.place() as u16);
        }
        match was {
            Slot::Live(sk) => Some(sk),
            Slot::Free | Slot::Reserved(_) => None,
        }
    }

    /// The connection of a token.
    pub(crate) fn find(&mut self, token: ConnToken) -> Option<SocketRef> {
        match &self.entry(token)?.slot {
            Slot::Live(sk) => Some(sk.clone()),
            Slot::Free | Slot::Reserved(_) => None,
        }
    }

    /// The connection of a message, or the place where it is kept until there is one. False if the
    /// token is unknown.
    pub(crate) fn find_or_keep(
        &mut self,
        token: ConnToken,
        link: LinkIx,
        cdc: &Cdc,
    ) -> Result<SocketRef, bool> {
        let entry = self.entry(token).ok_or(false)?;
        match &mut entry.slot {
            Slot::Live(sk) => Ok(sk.clone()),
            Slot::Reserved(early) => {
                early.keep(link, cdc);
                Err(true)
            }
            Slot::Free => Err(false),
        }
    }

    /// The `n`th connection, with its token, in no particular order.
    pub(crate) fn nth(&self, from: usize) -> Option<(usize, ConnToken, SocketRef)> {
        let is_live = |entry: &Entry| matches!(entry.slot, Slot::Live(_));
        let next = self.entries.get(from..)?.iter().position(is_live)?;
        let place = from.checked_add(next)?;
        let entry = self.entries.get(place)?;
        let Slot::Live(sk) = &entry.slot else {
            return None;
        };
        let token = ConnToken::at(place, entry.generation)?;
        Some((place, token, sk.clone()))
    }

    /// After how many milliseconds of silence the most impatient connection wants links to be tested;
    /// 0 if none does.
    pub(crate) fn keepalive(&self) -> u32 {
        let spans = self.entries.iter().map(|entry| match &entry.slot {
            Slot::Live(sk) => sk.keepalive.load(Relaxed),
            Slot::Free | Slot::Reserved(_) => 0,
        });
        spans.filter(|span| *span != 0).min().unwrap_or(0)
    }

    /// Queues a connection until a send slot is free.
    pub(crate) fn wait(&mut self, token: ConnToken) {
        let Some(entry) = self.entry(token) else {
            return;
        };
        if entry.waiting {
            return;
        }
        entry.waiting = true;
        let place = token.place() as u16;
        // Each place stands there once at most, so that there is room.
        let _ = self.waiting.push_within_capacity(place);
    }

    /// How many connections wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The first connection that waits, taken out of the queue; `None` inside if it has gone.
    pub(crate) fn next_waiting(&mut self) -> Option<Option<SocketRef>> {
        let place = self.waiting.remove(0).ok()?;
        let entry = self.entries.get_mut(usize::from(place))?;
        entry.waiting = false;
        Some(match &entry.slot {
            Slot::Live(sk) => Some(sk.clone()),
            Slot::Free | Slot::Reserved(_) => None,
        })
    }
}

// SPDX-License-Identifier: GPL-2.0

//! What happens, for programs that listen: see the group `events` of the family in
//! [`crate::netlink::own`].
//!
//! An event goes to the listeners of its namespace, and to those of the initial one; to each of them
//! once, whatever else it listens to. Without a listener nothing is done.
//!
//! To send takes as long as listeners like, in whatever namespace they are: there may be any number, and each may have a
//! filter that is run for each message. So what happens is only noted where it happens, and a work item of the namespace
//! tells it, on a queue of its own. Where more happens than can be told, the listeners in the namespace and in the initial one
//! learn that something is missing. Those in other namespaces that hear of all of them (`NETLINK_LISTEN_ALL_NSID`) do not:
//! the kernel has no call for that.

use core::net::IpAddr;

use kapi::{
    genl::{Audience, Registration, Writer},
    grow::Grow,
    net::Net,
    new_spinlock_bh,
    new_work,
    spinlock_bh::SpinLockBh,
    trace,
    workqueue::{Handler, Work}, //
};
use kernel::{alloc::flags::__GFP_NOWARN, prelude::*, sync::Arc};
use smc_proto::wire::{Diagnosis, LinkNum};

use crate::{
    device::DeviceName,
    group::Group,
    link::Link,
    netlink::own::{attr, command, put_address, side_number, OwnFamily, EVENTS},
    netns::Netns,
    stats::Side,
};

/// How events get out.
pub(crate) type Outlet = Registration<OwnFamily>;

/// Most events of a namespace that wait to be told.
const MAX_UNTOLD: usize = 256;

/// Most processors that listeners can keep busy with their filters.
pub(crate) const TELLERS: u32 = 4;

/// A link that carried data (`enum smc_link_state`, as tools show it).
const ACTIVE: i32 = 3;

/// What has happened.
#[derive(Clone, Copy)]
enum Event {
    /// A link group can be used, or is no more.
    Group { added: bool, group: GroupId },
    /// A link is up, or down.
    Link {
        up: bool,
        group: GroupId,
        number: LinkNum,
        device: DeviceName,
        port: u8,
    },
    /// A connection is plain TCP.
    Fallback {
        side: Side,
        reason: Diagnosis,
        peer_reason: Option<Diagnosis>,
        peer: Option<(IpAddr, u16)>,
    },
}

/// A link group, as listeners know it.
#[derive(Clone, Copy)]
struct GroupId {
    id: u32,
    side: Side,
}

/// What has happened in a namespace and is still to be told.
#[pin_data]
pub(crate) struct Untold {
    #[pin]
    list: SpinLockBh<List>,
    #[pin]
    teller: Work<Arc<Netns>, Teller>,
}

/// The events in their order, [`MAX_UNTOLD`] at most.
struct List {
    events: KVec<Event>,
    /// Some are missing behind these.
    lost: bool,
}

impl List {
    const EMPTY: Self = Self {
        events: KVec::new(),
        lost: false,
    };
}

/// Tells listeners.
pub(crate) struct Teller;

impl Handler<Arc<Netns>> for Teller {
    fn run(ns: Arc<Netns>) {
        tell(&ns);
    }
}

impl Untold {
    /// Nothing has happened.
    pub(crate) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            list <- new_spinlock_bh!(List::EMPTY, "smc_events"),
            teller <- new_work!("smc_tell"),
        })
    }

    /// Takes all that there is.
    fn take(&self) -> List {
        core::mem::replace(&mut *self.list.lock(), List::EMPTY)
    }
}

/// A first link is up, and the group can be used. Any context.
pub(crate) fn group_added(group: &Group) {
    note_group(group, true);
}

/// A group is no more. Any context.
pub(crate) fn group_removed(group: &Group) {
    note_group(group, false);
}

/// A link is up. Process context.
pub(crate) fn link_up(group: &Group, link: &Link, number: LinkNum) {
    note_link(group, link, number, true);
}

/// A link is down. Process context.
pub(crate) fn link_down(group: &Group, link: &Link, number: LinkNum) {
    trace::link_down(link, group, group.ns.cookie, ACTIVE, || {
        link.path.device.name().padded()
    });
    note_link(group, link, number, false);
}

/// A connection became plain TCP. Any context up to softirq.
pub(crate) fn fallback(
    ns: &Arc<Netns>,
    side: Side,
    reason: Diagnosis,
    peer_reason: Option<Diagnosis>,
    peer: Option<(IpAddr, u16)>,
) {
    note(ns, || Event::Fallback {
        side,
        reason,
        peer_reason,
        peer,
    });
}

fn id_of(group: &Group) -> GroupId {
    GroupId {
        id: group.id,
        side: group.role.into(),
    }
}

fn note_group(group: &Group, added: bool) {
    note(&group.ns, || Event::Group {
        added,
        group: id_of(group),
    });
}

fn note_link(group: &Group, link: &Link, number: LinkNum, up: bool) {
    note(&group.ns, || Event::Link {
        up,
        group: id_of(group),
        number,
        device: link.path.device.name(),
        port: link.path.port,
    });
}

/// Has an event told, if anybody listens.
fn note(ns: &Arc<Netns>, event: impl FnOnce() -> Event) {
    if !ns.shared.outlet.has_listeners(EVENTS) {
        return;
    }
    let event = event();
    {
        let mut list = ns.untold.list.lock();
        if list.lost
            || list.events.len() >= MAX_UNTOLD
            || list
                .events
                .append(event, GFP_ATOMIC | __GFP_NOWARN)
                .is_err()
        {
            list.lost = true;
        }
    }
    ns.untold.teller.enqueue(&ns.shared.event_queue, ns.clone());
}

/// Tells what there is. Work item: what is noted meanwhile has it run again.
fn tell(ns: &Arc<Netns>) {
    let List { events, lost } = ns.untold.take();
    let (outlet, initial) = (&ns.shared.outlet, Net::init());
    let found = Net::by_id(ns.cookie);
    // One that is about to go has no listeners any more.
    let own = found.as_deref();
    for event in events.iter() {
        // A listener that is slow, or short of memory, misses it.
        let send = |net, audience| {
            let _ = outlet.multicast(net, audience, EVENTS, event.command(), |message| {
                message.u64(attr::NET_COOKIE, ns.cookie)?;
                event.put(message)
            });
        };
        match own {
            Some(own) if own == initial => send(initial, Audience::All),
            own => {
                if let Some(own) = own {
                    send(own, Audience::NotOf(initial));
                }
                send(initial, Audience::Own);
            }
        }
    }
    if lost {
        outlet.overrun(initial, EVENTS);
        own.filter(|own| *own != initial)
            .inspect(|own| outlet.overrun(own, EVENTS));
    }
}

impl Event {
    fn command(&self) -> u8 {
        match self {
            Self::Group { added: true, .. } => command::GROUP_ADDED,
            Self::Group { added: false, .. } => command::GROUP_REMOVED,
            Self::Link { up: true, .. } => command::LINK_UP,
            Self::Link { up: false, .. } => command::LINK_DOWN,
            Self::Fallback { .. } => command::FALLBACK,
        }
    }

    fn put(&self, message: &mut Writer<'_>) -> Result {
        match *self {
            Self::Group { group, .. } => group.put(message),
            Self::Link {
                group,
                number,
                device,
                port,
                ..
            } => {
                group.put(message)?;
                message.u8(attr::LINK, number.get())?;
                message.str(attr::DEVICE, &device)?;
                message.u8(attr::DEVICE_PORT, port)
            }
            Self::Fallback {
                side,
                reason,
                peer_reason,
                peer,
            } => {
                message.u8(attr::SIDE, side_number(Some(side)))?;
                message.u32(attr::REASON, reason.0)?;
                if let Some(reason) = peer_reason {
                    message.u32(attr::PEER_REASON, reason.0)?;
                }
                if let Some((addr, port)) = peer {
                    put_address(message, attr::ADDRESS, addr)?;
                    message.u16(attr::PORT_FIRST, port)?;
                }
                Ok(())
            }
        }
    }
}

impl GroupId {
    fn put(&self, message: &mut Writer<'_>) -> Result {
        message.u32(attr::GROUP, self.id)?;
        message.u8(attr::SIDE, side_number(Some(self.side)))
    }
}

// SPDX-License-Identifier: GPL-2.0

//! Physical networks: which RDMA ports reach the hosts that an interface reaches.
//!
//! An administrator gives interfaces and ports the same name, a PNET ID, where they are attached to
//! the same network. Entries are kept by name and looked up by the name that a device has at the
//! moment, so that they follow it through renaming, unplugging and a change of namespace.
//!
//! An interface without an entry inherits the ID of what lies below it: a VLAN that of its carrier,
//! a bond or a bridge that of the first of its ports which has one. A port without an entry has the
//! ID of its own network device.

use kapi::{
    genl::Changes,
    grow::Grow,
    netdev::{Name, NetDevice}, //
};
use kernel::{new_mutex, prelude::*, sync::Mutex};

use crate::{
    device::{Device, DeviceTable},
    netns,
};

/// Longest ID.
pub(crate) const ID_LEN: usize = 16;

/// Room for the name of an RDMA device, with a NUL at its end.
pub(crate) const PORT_NAME: usize = 64;

/// Most entries of a table.
const MAX_ENTRIES: usize = 4096;

/// How far down devices are looked at.
const MAX_DEPTH: usize = 8;

/// How many are looked at for one interface. Users stack theirs at will, in a namespace of their own, and the number of ways
/// down grows with each level.
const MAX_LOOKS: usize = 512;

/// A PNET ID: capital letters and digits, padded with zeroes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PnetId([u8; ID_LEN]);

impl PnetId {
    /// Reads an ID. White space around it does not count, nor does the case of letters. `None` if
    /// it is empty or too long, or if there is anything but letters and digits in it.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let space = |byte: &u8| byte.is_ascii_whitespace() || *byte == 0x0b;
        let mut text = text;
        while let Some((_, rest)) = text.split_first().filter(|(first, _)| space(first)) {
            text = rest;
        }
        while let Some((_, rest)) = text.split_last().filter(|(last, _)| space(last)) {
            text = rest;
        }
        let mut id = [0; ID_LEN];
        if text.is_empty() || text.len() > ID_LEN || !text.iter().all(u8::is_ascii_alphanumeric) {
            return None;
        }
        for (to, from) in id.iter_mut().zip(text) {
            *to = from.to_ascii_uppercase();
        }
        Some(Self(id))
    }

    /// The ID without its padding.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        let len = self.0.iter().take_while(|byte| **byte != 0).count();
        self.0.get(..len).unwrap_or_default()
    }
}

/// What an entry is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// An interface, by its name.
    Interface(Name),
    /// The port of an RDMA device, by the name of that, or of what it is part of on its bus.
    Port([u8; PORT_NAME], u8),
}

/// An entry of a table.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    /// Above the numbers of all entries that came before.
    pub(crate) number: u64,
    pub(crate) id: PnetId,
    pub(crate) target: Target,
}

/// Entries, in the order in which they came. Process context.
#[pin_data]
pub(crate) struct Table {
    #[pin]
    inner: Mutex<Inner>,
    changes: Changes,
}

struct Inner {
    entries: KVec<Entry>,
    last_number: u64,
}

impl Table {
    pub(crate) fn new() -> impl PinInit<Self> {
        let inner = Inner {
            entries: KVec::new(),
            last_number: 0,
        };
        pin_init!(Self {
            inner <- new_mutex!(inner, "smc_pnet"),
            changes: Changes::new(),
        })
    }

    /// Adds an entry for `targets`, which all name the same thing: the first is the one to keep.
    /// [`EEXIST`] if any of them has an entry.
    pub(crate) fn add(&self, id: PnetId, targets: &[Target]) -> Result {
        let target = *targets.first().ok_or(EINVAL)?;
        let mut inner = self.inner.lock();
        if inner
            .entries
            .iter()
            .any(|entry| targets.contains(&entry.target))
        {
            return Err(EEXIST);
        }
        if inner.entries.len() >= MAX_ENTRIES {
            return Err(ENOSPC);
        }
        let number = inner.last_number.wrapping_add(1);
        inner
            .entries
            .append(Entry { number, id, target }, GFP_KERNEL)?;
        inner.last_number = number;
        self.changes.note();
        Ok(())
    }

    /// Removes the entries with an ID. True if there were any.
    pub(crate) fn remove(&self, id: PnetId) -> bool {
        let mut inner = self.inner.lock();
        let before = inner.entries.len();
        inner.entries.keep(|entry| entry.id != id);
        let any = inner.entries.len() != before;
        if any {
            self.changes.note();
        }
        any
    }

    /// Removes all entries.
    pub(crate) fn flush(&self) {
        let mut inner = self.inner.lock();
        let entries = core::mem::take(&mut inner.entries);
        self.changes.note();
        drop(inner);
        drop(entries);
    }

    /// How often the table has changed.
    pub(crate) fn changes(&self) -> u32 {
        self.changes.count()
    }

    /// The entry that came next after number `number`.
    pub(crate) fn after(&self, number: u64) -> Option<Entry> {
        let inner = self.inner.lock();
        inner
            .entries
            .iter()
            .find(|entry| entry.number > number)
            .copied()
    }

    fn find(&self, matches: impl Fn(&Target) -> bool) -> Option<PnetId> {
        let inner = self.inner.lock();
        let found = inner.entries.iter().find(|entry| matches(&entry.target));
        found.map(|entry| entry.id)
    }
}

/// The ID of an interface: its own, or that of what is below it. Sleeps.
pub(crate) fn of_interface(dev: &NetDevice) -> Option<PnetId> {
    let mut looks = MAX_LOOKS;
    below(dev, MAX_DEPTH, &mut looks)
}

fn below(dev: &NetDevice, depth: usize, looks: &mut usize) -> Option<PnetId> {
    *looks = looks.checked_sub(1)?;
    let own = own_of(dev);
    if own.is_some() || depth == 0 {
        return own;
    }
    let mut place = 0_u32;
    while *looks != 0 {
        let found = below(&*dev.lower(place)?, depth.saturating_sub(1), looks);
        if found.is_some() {
            return found;
        }
        place = place.saturating_add(1);
    }
    None
}

/// The ID that an entry gives an interface, by its name or an alternative one.
fn own_of(dev: &NetDevice) -> Option<PnetId> {
    let net = dev.net()?;
    let ns = netns::of(&net).ok()?;
    let name = dev.name();
    let by_name = |target: &Target| *target == Target::Interface(name);
    let by_another = |target: &Target| match target {
        Target::Interface(other) => {
            let named = NetDevice::by_name(&net, other.as_bytes());
            named.is_some_and(|named| named.ifindex() == dev.ifindex())
        }
        Target::Port(..) => false,
    };
    let found = ns.interfaces.find(by_name);
    found.or_else(|| ns.interfaces.find(by_another))
}

/// The ID of a port, and whether an entry says so: otherwise it is that of its network device.
pub(crate) struct PortId {
    pub(crate) id: PnetId,
    pub(crate) by_user: bool,
}

/// The ID of a port. Sleeps.
pub(crate) fn of_port(devices: &DeviceTable, device: &Device, port: u8) -> Option<PortId> {
    let names = Names::of(device);
    let own = devices.pnet.find(|target| match target {
        Target::Port(name, number) => *number == port && names.has(name),
        Target::Interface(_) => false,
    });
    if let Some(id) = own {
        return Some(PortId { id, by_user: true });
    }
    let dev = device.ib().ok()?.netdev(port.into())?;
    let id = of_interface(&dev)?;
    Some(PortId { id, by_user: false })
}

/// The names by which an entry can mean a device.
struct Names {
    own: [u8; PORT_NAME],
    parent: Option<[u8; PORT_NAME]>,
}

impl Names {
    fn of(device: &Device) -> Self {
        Self {
            own: device.name().padded(),
            parent: device.ib().ok().and_then(|ib| ib.parent_name()),
        }
    }

    fn has(&self, name: &[u8; PORT_NAME]) -> bool {
        self.own == *name || self.parent == Some(*name)
    }
}

/// Adds an entry for the port of a device that need not be there. [`EEXIST`] if the port has one,
/// under either name. Sleeps.
pub(crate) fn add_port(
    devices: &DeviceTable,
    id: PnetId,
    name: [u8; PORT_NAME],
    port: u8,
) -> Result {
    let mut targets = KVec::new();
    targets.append(Target::Port(name, port), GFP_KERNEL)?;
    for device in &devices.list()? {
        let names = Names::of(device);
        if names.has(&name) {
            for other in Iterator::chain(core::iter::once(names.own), names.parent) {
                targets.append(Target::Port(other, port), GFP_KERNEL)?;
            }
        }
    }
    devices.pnet.add(id, &targets)
}

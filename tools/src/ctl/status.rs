// SPDX-License-Identifier: GPL-2.0

//! The host in short.

use crate::model::device::Device;
use crate::model::group::{Group, Link};
use crate::model::own;
use crate::model::stats::Stats;
use crate::model::system::{self, SystemInfo};
use crate::netlink::{Error, Source};
use crate::sys;
use serde::Serialize;

/// The host in short.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Status {
    /// Module that is loaded.
    pub module: Option<&'static str>,
    /// Its version, if it tells.
    pub module_version: Option<String>,
    /// What it is capable of.
    pub system: SystemInfo,
    /// User-defined EIDs.
    pub ueids: Vec<String>,
    /// Handshakes are limited under congestion.
    pub handshake_limit: Option<bool>,
    /// RDMA devices.
    pub devices: usize,
    /// Ports that can be used.
    pub active_ports: usize,
    /// Link groups.
    pub groups: usize,
    /// Links.
    pub links: usize,
    /// Links that can be used.
    pub active_links: usize,
    /// Connections over SMC-R.
    pub connections: u64,
    /// Handshakes that succeeded so far.
    pub handshakes: u64,
    /// Handshakes that failed so far.
    pub handshake_errors: u64,
    /// Connections that fell back to TCP so far.
    pub fallbacks: u64,
}

/// Takes the refusal of a command that an implementation does not have for the lack of an answer.
pub(super) fn if_supported<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Err(Error::Kernel(errno, _)) if errno == sys::EOPNOTSUPP => Ok(None),
        other => other.map(Some),
    }
}

impl Status {
    /// Asks the kernel.
    pub fn read(source: &mut dyn Source) -> Result<Self, Error> {
        let system = SystemInfo::read(source)?;
        let devices = Device::read_all(source)?;
        let ports = devices.iter().flat_map(|device| &device.ports);
        let groups = Group::read_all(source)?;
        let links = Link::read_all(source)?;
        let stats = Stats::read(source)?;
        Ok(Self {
            module: sys::module(),
            module_version: own::version(source).ok().flatten(),
            system,
            ueids: if_supported(system::ueids(source))?.unwrap_or_default(),
            handshake_limit: if_supported(system::handshake_limit(source))?.flatten(),
            devices: devices.len(),
            active_ports: ports.filter(|port| port.active).count(),
            groups: groups.len(),
            links: links.len(),
            active_links: links.iter().filter(|link| link.state.0 == 3).count(),
            connections: groups
                .iter()
                .map(|group| u64::from(group.connections))
                .sum(),
            handshakes: stats.smcr.handshakes(),
            handshake_errors: stats
                .client_handshake_errors
                .saturating_add(stats.server_handshake_errors),
            fallbacks: stats
                .fallbacks
                .client
                .saturating_add(stats.fallbacks.server),
        })
    }
}

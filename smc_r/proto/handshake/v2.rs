// SPDX-License-Identifier: GPL-2.0

//! What version 2 adds to the rendezvous: enterprise IDs, limits of the link group, and whether a
//! gateway lies between the two ends.

use crate::{
    clc::{
        AcceptConfirm,
        AcceptV2,
        FirstContact,
        Limits,
        OfferV2,
        Proposal,
        OS_LINUX, //
    },
    wire::{
        Diagnosis,
        Eid,
        Gid,
        List, //
    },
};

/// Most enterprise IDs that a host has.
pub const MAX_EIDS: usize = 4;

/// The release of version 2 that this is.
pub const RELEASE: u8 = 1;

/// What a host brings into negotiations of version 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnV2 {
    /// Its enterprise IDs. Without any there is no version 2.
    pub eids: List<Eid, MAX_EIDS>,
    /// Most connections of a link group, 16 to 255.
    pub max_connections: u8,
    /// Most links of a link group, 1 or 2.
    pub max_links: u8,
    /// Its name, padded with blanks.
    pub host: [u8; 32],
}

impl OwnV2 {
    fn limits(&self) -> Limits {
        Limits {
            max_connections: self.max_connections,
            max_links: self.max_links,
            // The only feature there is belongs to SMC-D.
            features: 0,
        }
    }

    /// The client's offer, for a Proposal. None without an enterprise ID.
    pub fn offer(&self, gid: Gid) -> Option<OfferV2> {
        if self.eids.is_empty() {
            return None;
        }
        Some(OfferV2 {
            eids: List::from_slice(self.eids.as_slice()),
            release: RELEASE,
            gid,
            limits: Some(self.limits()),
        })
    }

    /// The first ID of an offer that is ours, too.
    pub fn common_eid(&self, offer: &OfferV2) -> Result<Eid, Diagnosis> {
        let mut offered = offer.eids.iter();
        let common = offered.find(|eid| self.eids.iter().any(|own| own == *eid));
        common.copied().ok_or(Diagnosis::NO_USER_EID)
    }

    /// What a server says on a first contact. `direct`: there is no gateway between the two.
    pub fn accept_first(&self, offer: &OfferV2, eid: Eid, direct: bool) -> AcceptV2 {
        let own = self.limits();
        AcceptV2 {
            eid,
            first: Some(FirstContact {
                direct,
                os: OS_LINUX,
                release: offer.release.min(RELEASE),
                host: self.host,
                limits: offer.limits.map(|offered| Limits {
                    max_connections: own.max_connections.min(offered.max_connections),
                    max_links: own.max_links.min(offered.max_links),
                    features: own.features,
                }),
                gids: List::new(),
            }),
        }
    }

    /// What a client says to that. `gid` is that of its end of the link.
    pub fn confirm(&self, accept: &AcceptV2, gid: Gid, direct: bool) -> AcceptV2 {
        AcceptV2 {
            eid: accept.eid,
            first: accept.first.map(|first| FirstContact {
                direct,
                os: OS_LINUX,
                release: first.release,
                host: self.host,
                limits: first.limits.map(|limits| Limits {
                    features: limits.features & self.limits().features,
                    ..limits
                }),
                gids: List::from_slice(&[gid]),
            }),
        }
    }
}

/// What a server says on a subsequent contact.
pub const fn accept_subsequent(eid: Eid) -> AcceptV2 {
    AcceptV2 { eid, first: None }
}

impl Proposal {
    /// Tries the offers in the order in which Linux does, version 2 first, and gives what came of
    /// the first that works. If none does, the reason is that of the first that failed.
    pub fn choose<T>(
        &self,
        v2: impl FnOnce(&OfferV2) -> Result<T, Diagnosis>,
        v1: impl FnOnce() -> Result<T, Diagnosis>,
    ) -> Result<T, Diagnosis> {
        let mut failed = None;
        if self.offers_v2() {
            match self.smcr_v2().and_then(v2) {
                Ok(chosen) => return Ok(chosen),
                Err(reason) => failed = Some(reason),
            }
        }
        match self.smcr_v1() {
            Ok(_) => v1().map_err(|reason| failed.unwrap_or(reason)),
            Err(reason) => Err(failed.unwrap_or(reason)),
        }
    }
}

/// What a client has proposed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Proposed {
    v1: bool,
    v2: Option<OfferV2>,
}

impl Proposed {
    pub(super) const NOTHING: Self = Self {
        v1: false,
        v2: None,
    };

    pub(super) fn new(proposal: &Proposal) -> Self {
        Self {
            v1: proposal.v1.is_ok(),
            v2: proposal.v2.ok().filter(|_| proposal.version > 1),
        }
    }

    /// Checks that the server has chosen something of it.
    pub(super) fn check(&self, accept: &AcceptConfirm) -> Result<(), Diagnosis> {
        match (&accept.v2, &self.v2) {
            (None, _) if self.v1 => Ok(()),
            (Some(accept), Some(offer)) => check_accept(offer, accept),
            _ => Err(Diagnosis::MODE_NOT_OFFERED),
        }
    }
}

fn check_accept(offer: &OfferV2, accept: &AcceptV2) -> Result<(), Diagnosis> {
    if !offer.eids.iter().any(|eid| *eid == accept.eid) {
        return Err(Diagnosis::NO_USER_EID);
    }
    let Some(first) = &accept.first else {
        return Ok(());
    };
    if first.release > offer.release {
        return Err(Diagnosis::RELEASE);
    }
    match (&first.limits, &offer.limits) {
        (Some(chosen), Some(offered)) => {
            if chosen.max_connections > offered.max_connections {
                Err(Diagnosis::MAX_CONNECTIONS)
            } else if chosen.max_links > offered.max_links {
                Err(Diagnosis::MAX_LINKS)
            } else {
                Ok(())
            }
        }
        _ => Ok(()),
    }
}

/// Checks that the client agrees with what we said in our Accept.
pub(super) fn check_confirm(
    accept: Option<&AcceptV2>,
    confirm: Option<&AcceptV2>,
) -> Result<(), Diagnosis> {
    let (accept, confirm) = match (accept, confirm) {
        (None, None) => return Ok(()),
        (Some(accept), Some(confirm)) => (accept, confirm),
        _ => return Err(Diagnosis::MODE_NOT_OFFERED),
    };
    if accept.eid != confirm.eid {
        return Err(Diagnosis::NO_USER_EID);
    }
    let (ours, theirs) = match (&accept.first, &confirm.first) {
        (None, _) => return Ok(()),
        (Some(_), None) => return Err(Diagnosis::CONFIGURATION),
        (Some(ours), Some(theirs)) => (ours, theirs),
    };
    if ours.release != theirs.release {
        return Err(Diagnosis::RELEASE);
    }
    if let (Some(ours), Some(theirs)) = (&ours.limits, &theirs.limits) {
        if ours.max_connections != theirs.max_connections {
            return Err(Diagnosis::MAX_CONNECTIONS);
        }
        if ours.max_links != theirs.max_links {
            return Err(Diagnosis::MAX_LINKS);
        }
    }
    if ours.direct != theirs.direct {
        return Err(Diagnosis::INDIRECT);
    }
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0

//! Messages that come before the connection is set up here, which the peer may think it is.

use super::overtaken::with_flags_of;
use crate::{
    cdc::Cdc,
    group::LinkIx, //
};

/// What has to be kept of them: the latest, since each carries the whole state, with the flags that another one alone
/// has for the same place; and a failover validation that is ahead of what has come, since only
/// [`Conn::handle_cdc`](super::Conn::handle_cdc) finds out whether that comes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Early {
    validation: Option<(LinkIx, Cdc)>,
    latest: Option<(LinkIx, Cdc)>,
}

impl Early {
    /// Takes in a message that came over `link`.
    pub fn keep(&mut self, link: LinkIx, cdc: &Cdc) {
        let is_behind = |old: &Cdc| cdc.seq.wrapping_sub(old.seq) >= 0x8000;
        if cdc.prod_flags.failover {
            let has_come = self
                .latest
                .is_some_and(|(_, latest)| latest.seq == cdc.seq || is_behind(&latest));
            let has_later = self.validation.is_some_and(|(_, old)| is_behind(&old));
            // None of a connection over which nothing was sent is ahead of anything.
            if !has_come && !has_later && cdc.seq != 0 {
                self.validation = Some((link, *cdc));
            }
            return;
        }
        // What it names has come, though it is late.
        self.validation = self
            .validation
            .filter(|(_, validation)| validation.seq != cdc.seq);
        self.latest = Some(match self.latest {
            Some((link, latest)) if !cdc.supersedes(&latest) => (link, with_flags_of(latest, cdc)),
            Some((_, latest)) => (link, with_flags_of(*cdc, &latest)),
            None => (link, *cdc),
        });
    }

    /// What is kept, in the order in which it has to be handled.
    pub fn into_messages(self) -> impl Iterator<Item = (LinkIx, Cdc)> {
        self.validation.into_iter().chain(self.latest)
    }
}

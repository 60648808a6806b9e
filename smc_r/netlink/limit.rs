// SPDX-License-Identifier: GPL-2.0

//! Whether new listeners limit the handshakes of SMC (`SMC_LIMIT_HS`): the same as the setting
//! `limit_smc_hs`.

use kapi::genl::{Dump, Request};
use kernel::prelude::*;

use super::{command, namespace, once};
use crate::netns::{self, Setting};

/// The attribute of the answer.
const ENABLED: u16 = 1;

/// Tells whether it is on.
pub(super) fn show(dump: &mut Dump<'_>) -> Result {
    let ns = namespace(dump)?;
    let on = u8::from(ns.setting(Setting::LimitHs) != 0);
    once(dump, command::LIMIT, |message| message.u8(ENABLED, on))
}

/// Switches it on.
pub(super) fn enable(request: &mut Request<'_>) -> Result {
    netns::of(request.net())?.set(Setting::LimitHs, 1);
    Ok(())
}

/// Switches it off.
pub(super) fn disable(request: &mut Request<'_>) -> Result {
    netns::of(request.net())?.set(Setting::LimitHs, 0);
    Ok(())
}

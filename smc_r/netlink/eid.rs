// SPDX-License-Identifier: GPL-2.0

//! Enterprise IDs: those of users, which a namespace has for version 2, and that of the system,
//! which only SMC-D on some machines has.

use kapi::{
    errno::EOPNOTSUPP,
    genl::{Dump, Kind, Op, Policy, Request, Rule}, //
};
use kernel::prelude::*;
use smc_proto::wire::Eid;

use super::{command, namespace, once};
use crate::netns;

/// An ID, padded with blanks. There may be a zero behind it.
const EID: u16 = 1;

/// Length of an ID with a zero.
const EID_LEN: u16 = 33;

const POLICY: Policy = &[Rule {
    number: EID,
    name: c"EID",
    kind: Kind::Bytes(EID_LEN),
}];

/// A command that changes the list of users' IDs.
pub(super) const fn change(cmd: u8, doit: fn(&mut Request<'_>) -> Result) -> Op {
    Op::new(cmd).doit(doit).policy(POLICY).strict().admin()
}

/// The ID of a request.
fn requested(request: &mut Request<'_>) -> Result<Eid> {
    let attr = request.required(EID)?;
    let bytes = attr.bytes();
    let name = bytes.strip_suffix(&[0]).unwrap_or(bytes);
    let padded = <[u8; 32]>::try_from(name).ok();
    let Some(padded) = padded else {
        let text = c"must have 32 characters, blanks behind the name included";
        return Err(request.fail_at(EID, EINVAL, text));
    };
    let eid = Eid(padded);
    if !eid.is_valid() {
        let text = c"must be capitals, digits, dots, hyphens; the first a capital or a digit";
        return Err(request.fail_at(EID, EINVAL, text));
    }
    Ok(eid)
}

/// Adds an ID to the namespace of whoever asks.
pub(super) fn add(request: &mut Request<'_>) -> Result {
    let eid = requested(request)?;
    let ns = netns::of(request.net())?;
    ns.add_eid(eid).map_err(|error| {
        let text = if error == EEXIST {
            c"is there already"
        } else {
            c"there are four already, which is all that fit"
        };
        request.fail_at(EID, error, text)
    })
}

/// Removes an ID.
pub(super) fn remove(request: &mut Request<'_>) -> Result {
    let eid = requested(request)?;
    let ns = netns::of(request.net())?;
    ns.remove_eid(eid)
        .map_err(|error| request.fail_at(EID, error, c"is not there"))
}

/// Removes all IDs.
pub(super) fn flush(request: &mut Request<'_>) -> Result {
    netns::of(request.net())?.flush_eids();
    Ok(())
}

/// Lists the IDs.
pub(super) fn list(dump: &mut Dump<'_>) -> Result {
    // They fit into one buffer, and so come as they were at one moment.
    let eids = namespace(dump)?.eids();
    loop {
        let number = dump.cursor()[0];
        let Some(eid) = eids.as_slice().get(number) else {
            return Ok(());
        };
        if !dump.message(command::USER_EIDS, |message| message.str(EID, &eid.0))? {
            return Ok(());
        }
        dump.cursor()[0] = number.saturating_add(1);
    }
}

/// There is no system EID: a message without attributes says so.
pub(super) fn system(dump: &mut Dump<'_>) -> Result {
    once(dump, command::SYSTEM_EID, |_| Ok(()))
}

/// What there is not cannot be switched.
pub(super) fn no_system(request: &mut Request<'_>) -> Result {
    Err(request.fail(EOPNOTSUPP, c"there is no system EID without SMC-D"))
}

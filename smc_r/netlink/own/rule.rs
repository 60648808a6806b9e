// SPDX-License-Identifier: GPL-2.0

//! Rules about which connections may use SMC: see [`crate::rules`].

use core::net::IpAddr;

use kapi::genl::{Dump, Request, Writer};
use kernel::prelude::*;

use super::{address, attr, command, put_address, side_number};
use crate::{
    netns,
    rules::{Prefix, Rule},
    stats::Side,
};

/// Adds a rule, and tells its number.
pub(super) fn add(request: &mut Request<'_>) -> Result {
    let ns = netns::of(request.net())?;
    let rule = read(request)?;
    let number = ns.rules.add(rule).map_err(|error| {
        if error == EEXIST {
            request.fail_at(attr::RULE, error, c"exists")
        } else {
            request.fail(error, c"there is no room for more rules")
        }
    })?;
    request.reply(command::RULE_ADD, |message| message.u32(attr::RULE, number))
}

fn read(request: &mut Request<'_>) -> Result<Rule> {
    let allow = match request.required(attr::ALLOW)?.u8()? {
        0 => false,
        1 => true,
        _ => return Err(request.fail_at(attr::ALLOW, EINVAL, c"must be 0 or 1")),
    };
    let number = request.attr(attr::RULE).map_or(Ok(0), |attr| attr.u32())?;
    let side = match request.attr(attr::SIDE).map_or(Ok(0), |attr| attr.u8())? {
        0 => None,
        1 => Some(Side::Client),
        2 => Some(Side::Server),
        _ => return Err(request.fail_at(attr::SIDE, EINVAL, c"must be 0, 1 or 2")),
    };
    let cgroup = request
        .attr(attr::CGROUP)
        .map(|attr| attr.u64())
        .transpose()?;
    Ok(Rule {
        number,
        allow,
        side,
        prefix: prefix(request)?,
        ports: ports(request)?,
        cgroup,
    })
}

fn prefix(request: &mut Request<'_>) -> Result<Option<Prefix>> {
    let len = request.attr(attr::PREFIX_LEN);
    let Some(attr) = request.attr(attr::ADDRESS) else {
        return match len {
            Some(_) => Err(request.fail_at(attr::PREFIX_LEN, EINVAL, c"needs an address")),
            None => Ok(None),
        };
    };
    let Some(addr) = address(attr) else {
        return Err(request.fail_at(attr::ADDRESS, EINVAL, c"must have 4 or 16 bytes"));
    };
    // All bits, and those among them that only say that IPv4 is in the form of IPv6.
    let (whole, form) = match (attr.bytes().len(), addr) {
        (4, _) => (32, 0),
        (_, IpAddr::V4(_)) => (128, 96),
        (_, IpAddr::V6(_)) => (128, 0),
    };
    let len = len.map_or(Ok(whole), |attr| attr.u8())?;
    let Some(len) = len.checked_sub(form) else {
        let text = c"must be 96 or more for IPv4 in the form of IPv6";
        return Err(request.fail_at(attr::PREFIX_LEN, EINVAL, text));
    };
    match Prefix::new(addr, len) {
        Some(prefix) => Ok(Some(prefix)),
        None => Err(request.fail_at(attr::PREFIX_LEN, EINVAL, c"is longer than the address")),
    }
}

fn ports(request: &mut Request<'_>) -> Result<Option<(u16, u16)>> {
    let last = request.attr(attr::PORT_LAST);
    let Some(first) = request.attr(attr::PORT_FIRST) else {
        return match last {
            Some(_) => Err(request.fail_at(attr::PORT_LAST, EINVAL, c"needs a first port")),
            None => Ok(None),
        };
    };
    let first = first.u16()?;
    let last = last.map_or(Ok(first), |attr| attr.u16())?;
    if last < first {
        return Err(request.fail_at(attr::PORT_LAST, EINVAL, c"is below the first port"));
    }
    Ok(Some((first, last)))
}

/// Removes a rule.
pub(super) fn delete(request: &mut Request<'_>) -> Result {
    let ns = netns::of(request.net())?;
    let number = request.required(attr::RULE)?.u32()?;
    ns.rules
        .remove(number)
        .map_err(|error| request.fail_at(attr::RULE, error, c"does not exist"))
}

/// Removes all rules.
pub(super) fn flush(request: &mut Request<'_>) -> Result {
    netns::of(request.net())?.rules.flush();
    Ok(())
}

/// All rules, in their order.
pub(super) fn list(dump: &mut Dump<'_>) -> Result {
    let ns = netns::of(dump.net())?;
    loop {
        dump.as_of(ns.rules.changes());
        let Some(rule) = ns.rules.after(dump.cursor()[0] as u32) else {
            return Ok(());
        };
        if !dump.message(command::RULE_GET, |message| put(message, &rule))? {
            return Ok(());
        }
        dump.cursor()[0] = rule.number as usize;
    }
}

fn put(message: &mut Writer<'_>, rule: &Rule) -> Result {
    message.u32(attr::RULE, rule.number)?;
    message.u8(attr::ALLOW, u8::from(rule.allow))?;
    message.u8(attr::SIDE, side_number(rule.side))?;
    if let Some(prefix) = rule.prefix {
        put_address(message, attr::ADDRESS, prefix.addr)?;
        message.u8(attr::PREFIX_LEN, prefix.len)?;
    }
    if let Some((first, last)) = rule.ports {
        message.u16(attr::PORT_FIRST, first)?;
        message.u16(attr::PORT_LAST, last)?;
    }
    match rule.cgroup {
        Some(id) => message.u64_aligned(attr::CGROUP, id, attr::PAD),
        None => Ok(()),
    }
}

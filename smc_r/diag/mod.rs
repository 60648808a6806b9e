// SPDX-License-Identifier: GPL-2.0

//! Listings of sockets for `smcss` and the like: the request, and its answer: all sockets of the
//! reader's namespace, those over IPv4 first.
//!
//! Whoever asks is served by the module `smc_diag`, which borrows this for each part of an answer.
//!
//! An answer takes as many calls as it has buffers. Where it stopped is kept as two numbers: the
//! family, and the last socket that was written. A third one is that of the socket with which it ends, the
//! newest when it began: more may come all the time, faster than the reader reads. They hold also where
//! this module was unloaded and loaded again in between: sockets' numbers go on upwards, so that nothing
//! follows then.

mod attrs;

use kapi::{diag, errno::EINVAL, sock::Family};
use kernel::prelude::*;

use crate::snapshot;

/// Length of `struct smc_diag_req`, see `include/uapi/linux/smc_diag.h`.
const REQUEST_LEN: usize = 52;

/// Where `diag_ext` is in it.
const EXT: usize = 3;

/// Which attributes the reader asks for beyond those that are always there.
#[derive(Clone, Copy)]
struct Wanted {
    ext: u8,
}

impl Wanted {
    fn of(request: &[u8]) -> Result<Self> {
        let request = request.get(..REQUEST_LEN).ok_or(EINVAL)?;
        let ext = request.get(EXT).copied().ok_or(EINVAL)?;
        Ok(Self { ext })
    }

    /// Is this attribute asked for? Each has a bit, from attribute 1 on.
    fn has(self, attr: u16) -> bool {
        self.ext
            .checked_shr(u32::from(attr).wrapping_sub(1))
            .unwrap_or(0)
            & 1
            != 0
    }
}

/// What is lent.
struct Sockets;

kapi::lend_sockets!(kapi_lent_43, Sockets);

impl diag::Lister for Sockets {
    fn list(dump: &mut diag::Dump<'_>) -> Result {
        let wanted = Wanted::of(dump.request())?;
        let net = dump.net();
        let last = match dump.cursor()[2] {
            0 => snapshot::last_number(),
            last => last as u64,
        };
        dump.cursor()[2] = last as usize;
        for (pass, family) in [(0, Family::Inet), (1, Family::Inet6)] {
            if dump.cursor()[0] > pass {
                continue;
            }
            let mut full = false;
            let after = dump.cursor()[1] as u64;
            let result = snapshot::for_each(net, family, (after, last), &mut |socket| {
                let header = attrs::header(socket, dump.reader_uid(socket.ids.uid));
                if !dump.message(&header, |message| attrs::put(message, socket, wanted))? {
                    full = true;
                    return Err(EMSGSIZE);
                }
                dump.cursor()[1] = socket.number as usize;
                Ok(())
            });
            if full {
                return Ok(());
            }
            result?;
            dump.cursor()[0] = pass.saturating_add(1);
            dump.cursor()[1] = 0;
        }
        Ok(())
    }
}

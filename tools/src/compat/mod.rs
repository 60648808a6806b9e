// SPDX-License-Identifier: GPL-2.0

//! Programs with the names and options that administrators of SMC are used to: `smc_pnet`, `smcss`,
//! `smcr`. They are `smcctl` under other names; each is a view of the same data.

pub mod pnet;
pub mod smcr;
pub mod ss;

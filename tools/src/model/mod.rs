// SPDX-License-Identifier: GPL-2.0

//! What the kernel reports, as values.

pub mod device;
pub mod group;
pub mod own;
pub mod socket;
pub mod stats;
pub mod system;

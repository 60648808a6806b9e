// SPDX-License-Identifier: GPL-2.0

//! What the command line tools share.

#![forbid(unsafe_code)]

pub mod run;
pub mod sys;

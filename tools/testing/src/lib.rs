// SPDX-License-Identifier: GPL-2.0

//! What the test programs share.

#![forbid(unsafe_code)]

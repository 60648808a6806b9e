// SPDX-License-Identifier: GPL-2.0

//! Tests of the message formats: known messages, damaged ones, generated ones, any bytes at all.

mod fields;
mod hostile;
mod negative;
mod round_trip;
mod strategies;
mod stream;
mod vectors;

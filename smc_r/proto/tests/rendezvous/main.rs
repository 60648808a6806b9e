// SPDX-License-Identifier: GPL-2.0

//! The rendezvous of connections, the LLC exchanges of link groups, and what both remember.

mod client;
mod facts;
mod flow;
mod hostile;
mod linux;
mod pair;
mod server;
mod tables;
mod talk;
mod v2;
mod world;

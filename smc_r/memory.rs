// SPDX-License-Identifier: GPL-2.0

//! Memory of buffers: how much there may be of it, and who is asked to give some back.
//!
//! Link groups keep buffers that no connection uses any more for later ones. They go when the system is short
//! of memory, and when there is not much left of what they may have.

use kapi::{
    errno::ENOBUFS,
    memory,
    net::Net,
    new_work,
    util::now_ms,
    workqueue::{self, Queue, Work}, //
};
use kernel::{
    page::PAGE_SIZE,
    prelude::*,
    sync::{
        atomic::{Atomic, Relaxed},
        Arc, //
    },
};

use crate::{
    group::Groups,
    netns::{Netns, Setting, NETNS},
    Shared, //
};

/// Where nobody has set a limit, the part of the system's memory that buffers may take.
const PART: usize = 4;

/// Buffers are given back no more often than this, in milliseconds, as long as the system has memory. They are
/// kept because to make them again takes time, and an exchange with the peer.
const PAUSE: u64 = 5_000;

/// Likewise where the system has little. It asks again and again while what goes takes its time.
const SHORT_PAUSE: u64 = 500;

/// Bytes of buffers that there are.
pub(crate) struct Budget {
    used: Atomic<usize>,
    /// When some were given back for want of more, in milliseconds.
    trimmed: Atomic<u64>,
}

impl Budget {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let budget = Self {
            used: Atomic::new(0),
            trimmed: Atomic::new(0),
        };
        Ok(Arc::new(budget, GFP_KERNEL)?)
    }

    /// Whether so many are there that idle ones have to go, which is true for one of those who ask.
    fn is_short(&self, limit: usize) -> bool {
        self.used.load(Relaxed) > (limit / 8).saturating_mul(7) && self.may_trim(PAUSE)
    }

    /// Whether the last time is so many milliseconds ago; then it is now.
    fn may_trim(&self, pause: u64) -> bool {
        let (last, now) = (self.trimmed.load(Relaxed), now_ms());
        now.saturating_sub(last) >= pause && self.trimmed.cmpxchg(last, now, Relaxed).is_ok()
    }
}

/// Counts a buffer for as long as somebody has it: for its namespace, and for all. What a device still reads from
/// when it was given up stays a moment longer.
pub(crate) struct Charge {
    budgets: [Arc<Budget>; 2],
    bytes: usize,
}

impl Charge {
    fn new(budgets: [Arc<Budget>; 2], bytes: usize) -> Self {
        for budget in &budgets {
            budget.used.fetch_add(bytes, Relaxed);
        }
        Self { budgets, bytes }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        for budget in &self.budgets {
            budget.used.fetch_sub(self.bytes, Relaxed);
        }
    }
}

/// What all namespaces share of it.
#[pin_data]
pub(crate) struct Memory {
    budget: Arc<Budget>,
    groups: Arc<Groups>,
    #[pin]
    work: Work<Arc<Memory>, Trim>,
}

/// Tag type: the work items that have idle buffers given back, of all namespaces or of one.
pub(crate) struct Trim;

impl workqueue::Handler<Arc<Memory>> for Trim {
    fn run(memory: Arc<Memory>) {
        memory.groups.trim(|_| true);
    }
}

impl workqueue::Handler<Arc<Netns>> for Trim {
    fn run(ns: Arc<Netns>) {
        ns.shared.groups.trim(|group| Arc::ptr_eq(&group.ns, &ns));
    }
}

impl Memory {
    pub(crate) fn new(groups: Arc<Groups>) -> Result<Arc<Self>> {
        let budget = Budget::new()?;
        Arc::pin_init(
            pin_init!(Self {
                budget,
                groups,
                work <- new_work!("smc_trim"),
            }),
            GFP_KERNEL,
        )
    }

    /// Has all buffers given back that no connection uses. Any context.
    fn trim_later(self: &Arc<Self>, queue: &Queue) {
        self.work.enqueue(queue, self.clone());
    }
}

impl Netns {
    /// Counts a buffer that is about to be made. [`ENOBUFS`] if there may be no more of them: by the limit of
    /// the namespace, or that of the initial one, which is for all. Process context.
    pub(crate) fn charge(self: &Arc<Self>, bytes: usize) -> Result<Charge> {
        let shared = &self.shared.memory;
        let charge = self.count(bytes);
        let (own, all) = self.memory_limits();
        let is_over = |budget: &Budget, limit| budget.used.load(Relaxed) > limit;
        if is_over(&shared.budget, all) || is_over(&self.memory, own) {
            return Err(ENOBUFS);
        }
        Ok(charge)
    }

    /// Counts a buffer that is needed whatever the limits are. Process context.
    pub(crate) fn count(self: &Arc<Self>, bytes: usize) -> Charge {
        let shared = &self.shared.memory;
        let charge = Charge::new([shared.budget.clone(), self.memory.clone()], bytes);
        let (own, all) = self.memory_limits();
        if shared.budget.is_short(all) {
            shared.trim_later(self.queue());
        }
        if self.memory.is_short(own) {
            self.trim.enqueue(self.queue(), self.clone());
        }
        charge
    }

    /// How many bytes of buffers there may be: of this namespace, and of all.
    fn memory_limits(&self) -> (usize, usize) {
        let own = self.memory_limit();
        (
            own,
            NETNS.get(Net::init()).map_or(own, |ns| ns.memory_limit()),
        )
    }

    /// How many bytes of buffers the namespace may have.
    fn memory_limit(&self) -> usize {
        match self.setting(Setting::MemMax) as usize {
            0 => memory::total() / PART,
            mebibytes => mebibytes.saturating_mul(1 << 20),
        }
    }
}

impl memory::Cache for Shared {
    fn count(&self) -> usize {
        self.groups.idle_bytes() / PAGE_SIZE
    }

    fn shrink(&self) {
        if self.memory.budget.may_trim(SHORT_PAUSE) {
            self.memory.trim_later(&self.queue);
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! A capability option on SYN and SYN-ACK: RFC 6994, kind 254 with an experiment identifier.
//!
//! [`Registration`] says which option that is;
//! [`TcpSocket`](crate::tcp::TcpSocket) has methods to offer it, to answer it and to ask whether
//! both sides have sent it.
//!
//! Where the kernel knows the option itself, it is left to the kernel. Elsewhere a hook is put into
//! each namespace where a socket first wants the option. There, packets with MD5 or AO signatures,
//! with data in the SYN, and with too many other options go without.

use crate::bindings;
use crate::net::Net;
use crate::pernet;
use crate::tcp;
use core::sync::atomic::{
    AtomicBool,
    Ordering, //
};
use kernel::error::to_result;
use kernel::prelude::*;
use kernel::sync::{
    new_mutex,
    Arc,
    Mutex, //
};

/// Length of the option as it goes on the wire, padded by NOPs to a multiple of four bytes.
pub const LEN: usize = 8;

/// Hooks as the kernel wants them.
struct Hooks([bindings::nf_hook_ops; 2]);

// SAFETY: The kernel only reads them.
unsafe impl Sync for Hooks {}

const fn hook_ops(pf: u32) -> bindings::nf_hook_ops {
    bindings::nf_hook_ops {
        hook: Some(bindings::tcp_syn_hook),
        priv_: tcp::hook as *mut c_void,
        pf: pf as u8,
        hooknum: bindings::nf_inet_hooks_NF_INET_LOCAL_OUT,
        // First of all, so that everybody else sees packets as they leave.
        priority: i32::MIN,
        ..pin_init::zeroed()
    }
}

static HOOKS: Hooks = Hooks([
    hook_ops(bindings::NFPROTO_IPV4),
    hook_ops(bindings::NFPROTO_IPV6),
]);

/// Whether a namespace has the hooks.
#[pin_data]
struct NetHooks {
    /// As `registered` says, for a look without the lock: hooks stay until the namespace goes.
    ready: AtomicBool,
    #[pin]
    registered: Mutex<bool>,
}

static NETS: pernet::Key<NetHooks> = pernet::Key::new();

impl pernet::PerNet for NetHooks {
    type Context = ();

    fn key() -> &'static pernet::Key<Self> {
        &NETS
    }

    fn new(_net: &Net, _context: &Arc<()>) -> Result<Arc<Self>> {
        Arc::pin_init(
            pin_init!(Self {
                ready: AtomicBool::new(false),
                registered <- new_mutex!(false, "tcp_option"),
            }),
            GFP_KERNEL,
        )
    }

    fn exit(this: &Arc<Self>, net: &Net) {
        let mut registered = this.registered.lock();
        if *registered {
            // SAFETY: Registered in this namespace, which exists.
            unsafe { bindings::nf_unregister(net.as_ptr().cast(), HOOKS.0.as_ptr(), 2) };
            *registered = false;
        }
    }
}

fn native() -> bool {
    // SAFETY: A constant of the kernel.
    unsafe { bindings::tcp_option_native() }
}

/// Has packets of a namespace looked at, from now until it goes.
pub(crate) fn prepare(net: &Net) -> Result {
    if native() {
        return Ok(());
    }
    let this = NETS.get(net).ok_or(ENODEV)?;
    if this.ready.load(Ordering::Acquire) {
        return Ok(());
    }
    let mut registered = this.registered.lock();
    if !*registered {
        // SAFETY: The hooks live for ever; they are unregistered before the namespace or the
        // module goes.
        to_result(unsafe { bindings::nf_register(net.as_ptr().cast(), HOOKS.0.as_ptr(), 2) })?;
        *registered = true;
        this.ready.store(true, Ordering::Release);
    }
    Ok(())
}

/// The registered option. Dropping it takes the hooks away.
///
/// Keep it where it is dropped after the sockets that use it.
pub struct Registration {
    _nets: pernet::Registration<NetHooks>,
}

impl Registration {
    /// Registers the option as it goes on the wire, kind 254 behind any NOPs. `EBUSY` if there is
    /// one, `EINVAL` if it is malformed.
    pub fn new(option: [u8; LEN]) -> Result<Self> {
        let nets = NETS.register(Arc::new((), GFP_KERNEL)?)?;
        tcp::set_option(Some(option))?;
        if native() {
            // SAFETY: Balanced in `drop`.
            unsafe { bindings::tcp_option_native_enable(true) };
        }
        Ok(Self { _nets: nets })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if native() {
            // SAFETY: Enabled in `new`.
            unsafe { bindings::tcp_option_native_enable(false) };
        }
        // Cannot fail.
        let _ = tcp::set_option(None);
    }
}

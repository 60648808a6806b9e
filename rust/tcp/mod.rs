// SPDX-License-Identifier: GPL-2.0

//! TCP sockets used by the kernel itself, below a socket family of one's own.
//!
//! C headers: [`include/linux/net.h`](srctree/include/linux/net.h),
//! [`include/net/tcp.h`](srctree/include/net/tcp.h)
//!
//! Such a socket is one of the user in all but having a file: it holds its namespace, as it may have
//! data to deliver after it was closed, and security modules judge and label it like the TCP sockets
//! of the program that asked for it. Its lock comes after the lock of the socket above, and before
//! spin locks.

mod calls;
mod events;
mod info;
mod option;
mod sock;

pub use calls::{
    Connect,
    Route,
    Stage, //
};
pub use events::Events;
pub use info::{
    Figures,
    Info,
    Settings, //
};
pub use sock::TcpSock;

pub(crate) use option::{
    hook,
    set_option, //
};

use crate::bindings;
use crate::handle::Handle;
use crate::net::Net;
use crate::sock::Family;
use core::cell::UnsafeCell;
use core::ops::Deref;
use core::ptr::{
    self,
    NonNull, //
};
use core::sync::atomic::{
    AtomicBool,
    AtomicPtr,
    AtomicU32,
    Ordering, //
};
use events::Owner;
use kernel::error::to_result;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::types::Opaque;
use option::OptionState;

/// The queue on which sockets are released that were dropped where one cannot sleep. Null unless
/// there is a [`Subsystem`].
static REAPER: AtomicPtr<bindings::workqueue_struct> = AtomicPtr::new(ptr::null_mut());

/// Where errors are told of that were reported in interrupts; not null while socks are hooked.
static LATE: AtomicPtr<bindings::workqueue_struct> = AtomicPtr::new(ptr::null_mut());

fn late_queue() -> *mut bindings::workqueue_struct {
    LATE.load(Ordering::Acquire)
}

/// What all TCP sockets need; there is one at most.
///
/// Dropping it waits until every dropped socket is released, and until no callback runs any more.
/// Keep it where it is dropped after everything that owns sockets.
pub struct Subsystem {
    reaper: crate::workqueue::Queue,
    late: crate::workqueue::Queue,
}

impl Subsystem {
    /// Prepares for sockets; `EBUSY` if that has been done.
    pub fn new(name: &'static CStr) -> Result<Self> {
        let queue = || crate::workqueue::Queue::new(name, 0);
        let (reaper, late) = (queue()?, queue()?);
        if REAPER
            .compare_exchange(
                ptr::null_mut(),
                reaper.as_ptr(),
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
            .is_err()
        {
            return Err(EBUSY);
        }
        LATE.store(late.as_ptr(), Ordering::Release);
        Ok(Self { reaper, late })
    }
}

impl Drop for Subsystem {
    fn drop(&mut self) {
        REAPER.store(ptr::null_mut(), Ordering::Release);
        self.reaper.drain();
        // Callbacks that were about to be called when their sock was unhooked; some are in threads, not under RCU: that for
        // errors, where those tell of hardware's time stamps.
        crate::util::wait_for_preempted();
        LATE.store(ptr::null_mut(), Ordering::Release);
        self.late.drain();
        // SAFETY: No socket is left that could connect.
        unsafe { bindings::tcp_asking_end() };
    }
}

/// What belongs to a TCP socket besides the C object; the data of its hooked sock.
///
/// # Invariants
///
/// `sock` is a TCP socket that only we use, hooked with this as its data, until `release`.
/// `owner` is written with the callback lock of the sock held for writing.
#[pin_data]
#[repr(C)]
struct Inner {
    #[pin]
    release: Opaque<bindings::work_struct>,
    sock: NonNull<bindings::socket>,
    owner: UnsafeCell<Option<Owner>>,
    saved: bindings::kapi_sk_events,
    /// How often it was about to listen; written with the sock locked.
    listens: AtomicU32,
    /// Whoever gives it up may wait, if `SO_LINGER` says so.
    lingers: AtomicBool,
    #[pin]
    option: OptionState,
}

// SAFETY: Sockets are used from any thread, and owners are `Send` and `Sync`.
unsafe impl Send for Inner {}
// SAFETY: As above; `owner` is protected by the callback lock.
unsafe impl Sync for Inner {}

impl Inner {
    fn sk(&self) -> *mut bindings::sock {
        // SAFETY: By the type invariant the socket exists, and it has a sock until released.
        unsafe { (*self.sock.as_ptr()).sk }.cast()
    }

    /// Ends events and everything else that leads from the sock to `self`.
    fn unhook(&self) {
        let sk = self.sk();
        // SAFETY: The sock exists; process context, as the callers are.
        unsafe { bindings::lock_sock(sk) };
        self.option.unwatch(sk);
        // A child that is made without us would inherit what its listener has of ours.
        // SAFETY: The sock is locked.
        if unsafe { bindings::sk_state(sk) } == crate::sock::state::LISTEN {
            // SAFETY: As above.
            unsafe { bindings::tcp_vacate(sk) };
        }
        // SAFETY: The sock exists, and `saved` is what it had.
        unsafe { bindings::tcp_unhook(sk, &events::OURS, &self.saved) };
        // SAFETY: Locked above.
        unsafe { bindings::release_sock(sk) };
    }

    fn swap_owner(&self, new: Option<Owner>) {
        let sk = self.sk();
        // With the sock locked, no event is in progress but those which need no lock; these are
        // over when the callback lock can be taken, or tell the former owner, which they hold.
        // SAFETY: The sock exists; process context, as the callers are.
        unsafe {
            bindings::lock_sock(sk);
            bindings::callback_write_lock(sk);
        }
        // SAFETY: The callback lock is held for writing.
        let old = unsafe { core::mem::replace(&mut *self.owner.get(), new) };
        // SAFETY: Locked above.
        unsafe {
            bindings::callback_write_unlock(sk);
            bindings::release_sock(sk);
        }
        drop(old);
    }
}

/// Releases a socket.
///
/// # Safety
///
/// `inner` comes from the `TcpSocket` that is being dropped. Process context.
unsafe fn release(inner: NonNull<Inner>) {
    // SAFETY: By the requirements of this function, ours alone but for callbacks.
    let inner = unsafe { Pin::new_unchecked(KBox::from_raw(inner.as_ptr())) };
    inner.unhook();
    let lingers = inner.lingers.load(Ordering::Relaxed);
    // SAFETY: The socket is ours, and nothing leads from it to `inner` any more.
    unsafe { give_up(inner.sock, lingers) };
}

/// Closes a TCP socket that belongs to nobody.
///
/// # Safety
///
/// It is the caller's alone, and not hooked. Process context.
unsafe fn give_up(sock: NonNull<bindings::socket>, lingers: bool) {
    // SAFETY: The socket exists until it is released, and its sock with it.
    unsafe {
        bindings::tcp_linger((*sock.as_ptr()).sk.cast(), lingers);
        bindings::sock_release(sock.as_ptr());
    }
}

/// # Safety
///
/// Called by the work queue for an item enqueued by `TcpSocket::drop`.
unsafe extern "C" fn release_work(work: *mut bindings::work_struct) {
    // SAFETY: The item is the first field of an `Inner`, which the dropped `TcpSocket` has left.
    unsafe { release(NonNull::new_unchecked(work.cast())) }
}

/// A TCP socket of the kernel.
///
/// Dropping it closes the connection in an orderly way, without waiting: what was sent is still
/// delivered. It may be dropped in any context but hard interrupts.
///
/// Methods sleep for the socket's lock, none waits for the peer, unless it says otherwise.
///
/// # Invariants
///
/// `inner` is a leaked box, ours.
pub struct TcpSocket {
    inner: NonNull<Inner>,
}

// SAFETY: As `Inner` is.
unsafe impl Send for TcpSocket {}
// SAFETY: As `Inner` is; the C functions take the socket's lock.
unsafe impl Sync for TcpSocket {}

impl TcpSocket {
    /// Creates a socket as one of the caller, with its security label, if security modules and
    /// programs of its control group have nothing against that.
    pub fn create(net: &Net, family: Family) -> Result<Self> {
        let mut sock = ptr::null_mut();
        // SAFETY: The namespace exists; `sock` is valid for writes.
        to_result(unsafe {
            bindings::__sock_create(
                net.as_ptr().cast(),
                family.number().into(),
                bindings::sock_type_SOCK_STREAM as c_int,
                bindings::IPPROTO_TCP as c_int,
                &mut sock,
                0,
            )
        })?;
        let sock = NonNull::new(sock).ok_or(ENOMEM)?;
        // SAFETY: The socket is ours, with callbacks of its own.
        unsafe { Self::adopt(sock) }
    }

    /// Drops it for a program that closes: may wait as `close(2)` does, with `SO_LINGER` taken from the socket above. If
    /// others look at it at this very moment, nobody waits: it is not theirs. Process context.
    pub fn close(this: Arc<Self>) {
        if let Some(last) = Arc::into_unique_or_drop(this) {
            last.inner().lingers.store(true, Ordering::Relaxed);
        }
    }

    /// # Safety
    ///
    /// `sock` is a TCP socket which nobody else uses.
    unsafe fn adopt(sock: NonNull<bindings::socket>) -> Result<Self> {
        if REAPER.load(Ordering::Acquire).is_null() {
            // SAFETY: As this function demands.
            unsafe { give_up(sock, false) };
            return Err(ENODEV);
        }
        let inner = KBox::pin_init(
            pin_init!(Inner {
                release <- Opaque::ffi_init(|slot| {
                    // SAFETY: `slot` is valid for writes and pinned.
                    unsafe {
                        bindings::work_init(
                            slot,
                            Some(release_work),
                            c"tcp_release".as_char_ptr(),
                            kernel::static_lock_class!().as_ptr(),
                        )
                    }
                }),
                sock: sock,
                owner: UnsafeCell::new(None),
                saved: pin_init::zeroed(),
                listens: AtomicU32::new(0),
                lingers: AtomicBool::new(false),
                option <- OptionState::new(),
            }),
            GFP_KERNEL,
        );
        let inner = match inner {
            Ok(inner) => inner,
            Err(e) => {
                // SAFETY: As this function demands.
                unsafe { give_up(sock, false) };
                return Err(e);
            }
        };
        // SAFETY: The box is never moved out of.
        let inner = KBox::into_raw(unsafe { Pin::into_inner_unchecked(inner) });
        // SAFETY: The sock exists. What `saved` becomes is written before the sock leads to it.
        let hooked = unsafe {
            let sk = (*sock.as_ptr()).sk.cast::<bindings::sock>();
            bindings::lock_sock(sk);
            let hooked =
                bindings::tcp_hook(sk, inner.cast(), &events::OURS, &raw mut (*inner).saved);
            bindings::release_sock(sk);
            hooked
        };
        if !hooked {
            // SAFETY: The box from above, which the sock has not got.
            drop(unsafe { KBox::from_raw(inner) });
            // SAFETY: As this function demands.
            unsafe { give_up(sock, false) };
            return Err(crate::errno::EOPNOTSUPP);
        }
        // INVARIANT: A leaked box, nobody else's.
        Ok(Self {
            // SAFETY: Not null, as it comes from a box.
            inner: unsafe { NonNull::new_unchecked(inner) },
        })
    }

    fn inner(&self) -> &Inner {
        // SAFETY: By the type invariant.
        unsafe { self.inner.as_ref() }
    }

    fn sock(&self) -> *mut bindings::socket {
        self.inner().sock.as_ptr()
    }

    fn sk(&self) -> *mut bindings::sock {
        self.inner().sk()
    }

    /// Passes events on to `owner` from now on, instead of to a former one.
    pub fn attach<P: Handle, H: Events<P>>(&self, owner: P) {
        self.inner().swap_owner(Some(Owner::new::<P, H>(owner)));
    }

    /// Ends events, and gives up the reference to the owner.
    ///
    /// No event begins after this has returned; one may still be in progress if it was raised
    /// without the socket's lock, as errors can be.
    pub fn detach(&self) {
        self.inner().swap_owner(None);
    }
}

impl Deref for TcpSocket {
    type Target = TcpSock;

    fn deref(&self) -> &TcpSock {
        // SAFETY: A TCP sock, which exists while the socket is not released.
        unsafe { TcpSock::from_ptr(self.sk()) }
    }
}

impl Drop for TcpSocket {
    fn drop(&mut self) {
        let reaper = REAPER.load(Ordering::Acquire);
        if crate::util::may_sleep() || reaper.is_null() {
            // SAFETY: `self` is being dropped. There is no reaper only if its owner was dropped
            // before its sockets, in process context.
            unsafe { release(self.inner) }
        } else {
            // SAFETY: The item is initialised and not queued; its function takes over `inner`.
            unsafe { bindings::work_queue(reaper, self.inner().release.get()) };
        }
    }
}

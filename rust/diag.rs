// SPDX-License-Identifier: GPL-2.0

//! Handlers of socket listings (`sock_diag`), as `ss` asks for them.
//!
//! Two modules share the work: one has sockets, and lends a [`Lister`]; the other one has a
//! [`Handler`], which borrows that for each part of a listing, by name. So neither is linked to the
//! other one, and the lender can be unloaded while nobody lists.
//!
//! C header: [`include/linux/sock_diag.h`](srctree/include/linux/sock_diag.h)

use crate::bindings;
use crate::net::Net;
pub use crate::netlink::{
    Attr,
    Cursor,
    Writer, //
};
use core::marker::PhantomData;
use core::ptr::NonNull;
use kernel::error::{
    from_result,
    to_result, //
};
use kernel::prelude::*;

/// What lists sockets. The type is a tag.
pub trait Lister: Sized + 'static {
    /// Lists sockets. Called again with the cursor where it was left, until it adds no message. Between
    /// two calls the module may be unloaded, and another build of it loaded.
    fn list(dump: &mut Dump<'_>) -> Result;
}

/// What is lent. The two modules may be of different builds: another layout needs another name than `kapi_lent_`.
#[repr(C)]
pub struct Lent {
    list: unsafe extern "C" fn(*mut bindings::sk_buff, *mut bindings::netlink_callback) -> c_int,
}

impl Lent {
    /// What [`lend_sockets`](crate::lend_sockets) exports.
    pub const fn of<L: Lister>() -> Self {
        Self { list: list::<L> }
    }
}

/// Lends a [`Lister`] to the [`Handler`] of a family: its symbol is `kapi_lent_` and the number of that. The
/// module has to export it.
#[macro_export]
macro_rules! lend_sockets {
    ($symbol:ident, $lister:ty) => {
        #[no_mangle]
        #[allow(non_upper_case_globals)]
        static $symbol: $crate::diag::Lent = $crate::diag::Lent::of::<$lister>();
    };
}

/// A handler of listings. The type is a tag.
pub trait Handler: Sized + 'static {
    /// The address family it answers for.
    const FAMILY: u8;

    /// The module, for the kernel to hold while a listing is in progress.
    fn module() -> &'static ThisModule;
}

/// A listing in progress.
///
/// # Invariants
///
/// `skb` and `cb` are of a dump in progress.
pub struct Dump<'a> {
    skb: NonNull<bindings::sk_buff>,
    cb: NonNull<bindings::netlink_callback>,
    full: bool,
    written: bool,
    _dump: PhantomData<&'a mut bindings::netlink_callback>,
}

impl<'a> Dump<'a> {
    /// The namespace of whoever asks.
    pub fn net(&self) -> &'a Net {
        // SAFETY: By the type invariant; the asking socket keeps its namespace.
        unsafe { Net::from_ptr(bindings::netlink_net((*self.cb.as_ptr()).skb)) }
    }

    /// A user of the initial user namespace, as whoever asks knows him.
    pub fn reader_uid(&self, uid: u32) -> u32 {
        // SAFETY: By the type invariant.
        unsafe { bindings::netlink_reader_uid((*self.cb.as_ptr()).skb, uid) }
    }

    /// The request, from its address family on.
    pub fn request(&self) -> &'a [u8] {
        // SAFETY: By the type invariant; the kernel keeps the request as long as the dump.
        unsafe {
            let nlh = (*self.cb.as_ptr()).nlh;
            let len = usize::try_from(bindings::nlmsg_payload_len(nlh)).unwrap_or(0);
            let payload = bindings::nlmsg_payload(nlh.cast_mut().cast());
            core::slice::from_raw_parts(payload.cast(), len)
        }
    }

    /// Where to go on. To be left so that the next call goes on behind the last message.
    pub fn cursor(&mut self) -> &mut Cursor {
        // SAFETY: By the type invariant.
        unsafe { crate::netlink::cursor(self.cb.as_ptr()) }
    }

    /// Adds a message: `head`, and attributes that `f` adds. False if there was no room for it:
    /// nothing was added, and the caller should return.
    pub fn message(
        &mut self,
        head: &[u8],
        f: impl FnOnce(&mut Writer<'_>) -> Result,
    ) -> Result<bool> {
        if self.full {
            return Ok(false);
        }
        match self.write(head, f) {
            Ok(()) => {
                self.written = true;
                Ok(true)
            }
            Err(e) if e == EMSGSIZE && self.written => {
                self.full = true;
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    fn write(&mut self, head: &[u8], f: impl FnOnce(&mut Writer<'_>) -> Result) -> Result {
        let len: c_int = head.len().try_into()?;
        // SAFETY: By the type invariant.
        let nlh = unsafe {
            let request = (*self.cb.as_ptr()).nlh;
            bindings::nlmsg_start(
                self.skb.as_ptr(),
                bindings::netlink_portid((*self.cb.as_ptr()).skb),
                (*request).nlmsg_seq,
                (*request).nlmsg_type.into(),
                len,
                bindings::NLM_F_MULTI as c_int,
            )
        };
        if nlh.is_null() {
            return Err(EMSGSIZE);
        }
        // SAFETY: There is room for as many bytes behind the header of the message.
        unsafe {
            core::ptr::copy_nonoverlapping(
                head.as_ptr(),
                bindings::nlmsg_payload(nlh).cast(),
                head.len(),
            )
        };
        // SAFETY: By the type invariant.
        let result = f(&mut unsafe { Writer::from_raw(self.skb) });
        // SAFETY: The message was begun above.
        unsafe {
            match result {
                Ok(()) => bindings::nlmsg_finish(self.skb.as_ptr(), nlh),
                Err(_) => bindings::nlmsg_drop(self.skb.as_ptr(), nlh),
            }
        }
        result
    }
}

/// # Safety
///
/// Called for a listing in progress.
unsafe extern "C" fn list<L: Lister>(
    skb: *mut bindings::sk_buff,
    cb: *mut bindings::netlink_callback,
) -> c_int {
    from_result(|| {
        let mut dump = Dump {
            skb: NonNull::new(skb).ok_or(EINVAL)?,
            cb: NonNull::new(cb).ok_or(EINVAL)?,
            full: false,
            written: false,
            _dump: PhantomData,
        };
        L::list(&mut dump)?;
        // SAFETY: The buffer of the dump.
        Ok(unsafe { (*skb).len }.try_into()?)
    })
}

/// # Safety
///
/// Called by the kernel for a listing of the handler `H`.
unsafe extern "C" fn dump<H: Handler>(
    skb: *mut bindings::sk_buff,
    cb: *mut bindings::netlink_callback,
) -> c_int {
    // SAFETY: May be called from anywhere.
    let lent = unsafe { bindings::diag_borrow(H::FAMILY) }.cast::<Lent>();
    // SAFETY: Of this name is only what `lend_sockets` makes, and its module stays until it is given back.
    let Some(lent) = (unsafe { lent.as_ref() }) else {
        // Nobody has sockets: no message, which ends the listing.
        return 0;
    };
    // SAFETY: As the kernel has called this function.
    let ret = unsafe { (lent.list)(skb, cb) };
    // SAFETY: Borrowed above.
    unsafe { bindings::diag_give_back(H::FAMILY) };
    ret
}

/// # Safety
///
/// Called by the kernel for a request to the handler `H`.
unsafe extern "C" fn request<H: Handler>(
    skb: *mut bindings::sk_buff,
    nlh: *mut bindings::nlmsghdr,
) -> c_int {
    from_result(|| {
        // SAFETY: The request exists.
        if !unsafe { bindings::nlmsg_is_dump(nlh) } {
            // Single sockets are not asked for; it is no error, but there is no answer.
            return Ok(0);
        }
        // SAFETY: The request exists, and the module as long as it is registered.
        let ret =
            unsafe { bindings::diag_dump_start(skb, nlh, Some(dump::<H>), H::module().as_ptr()) };
        to_result(ret)?;
        Ok(ret)
    })
}

/// A registered handler. Dropping it unregisters.
pub struct Registration<H: Handler> {
    raw: KBox<bindings::sock_diag_handler>,
    _handler: PhantomData<fn() -> H>,
}

// SAFETY: Unregistering is possible on any thread.
unsafe impl<H: Handler> Send for Registration<H> {}
// SAFETY: There are no methods on shared references.
unsafe impl<H: Handler> Sync for Registration<H> {}

impl<H: Handler> Registration<H> {
    /// Registers the handler. `EBUSY` if there is one for its family.
    pub fn new() -> Result<Self> {
        let raw = KBox::new(
            bindings::sock_diag_handler {
                owner: H::module().as_ptr(),
                family: H::FAMILY,
                dump: Some(request::<H>),
                ..pin_init::zeroed()
            },
            GFP_KERNEL,
        )?;
        // SAFETY: The handler stays where it is until unregistered.
        to_result(unsafe { bindings::sock_diag_register(&*raw) })?;
        Ok(Self {
            raw,
            _handler: PhantomData,
        })
    }
}

impl<H: Handler> Drop for Registration<H> {
    fn drop(&mut self) {
        // SAFETY: Registered in `new`. The kernel looks at handlers under RCU, which this waits for, and
        // holds the module while it uses one.
        unsafe { bindings::diag_unregister(&*self.raw) };
    }
}

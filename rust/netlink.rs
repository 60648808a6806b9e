// SPDX-License-Identifier: GPL-2.0

//! Netlink messages: attributes read and written.
//!
//! C header: [`include/net/netlink.h`](srctree/include/net/netlink.h)

use crate::bindings;
use core::marker::PhantomData;
use core::ptr::NonNull;
use kernel::error::to_result;
use kernel::prelude::*;

/// An attribute of a message that was received.
#[derive(Clone, Copy)]
pub struct Attr<'a>(&'a [u8]);

impl<'a> Attr<'a> {
    /// # Safety
    ///
    /// `raw` is an attribute that lies whole in a message, for the lifetime of the result.
    pub(crate) unsafe fn from_raw(raw: *const bindings::nlattr) -> Self {
        // SAFETY: By the requirements of this function.
        let (data, len) = unsafe { (bindings::attr_data(raw), bindings::attr_len(raw)) };
        let len = usize::try_from(len).unwrap_or(0);
        // SAFETY: As above.
        Self(unsafe { core::slice::from_raw_parts(data.cast(), len) })
    }

    /// What is in it.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    fn fixed<const N: usize>(self) -> Result<[u8; N]> {
        self.0.first_chunk().copied().ok_or(ERANGE)
    }

    /// An integer of 8 bits; `ERANGE` if there is less.
    pub fn u8(self) -> Result<u8> {
        self.fixed().map(u8::from_ne_bytes)
    }

    /// An integer of 16 bits; `ERANGE` if there is less.
    pub fn u16(self) -> Result<u16> {
        self.fixed().map(u16::from_ne_bytes)
    }

    /// An integer of 32 bits; `ERANGE` if there is less.
    pub fn u32(self) -> Result<u32> {
        self.fixed().map(u32::from_ne_bytes)
    }

    /// An integer of 64 bits; `ERANGE` if there is less.
    pub fn u64(self) -> Result<u64> {
        self.fixed().map(u64::from_ne_bytes)
    }

    /// A string, up to a NUL or the end.
    pub fn str_bytes(self) -> &'a [u8] {
        let len = self.0.iter().take_while(|b| **b != 0).count();
        self.0.get(..len).unwrap_or_default()
    }

    /// The attribute of a number among those nested in this one.
    pub fn nested(self, number: u16) -> Option<Attr<'a>> {
        find(self.0, number)
    }
}

/// The attribute of a number among those in `bytes`.
pub fn find(bytes: &[u8], number: u16) -> Option<Attr<'_>> {
    let len = c_int::try_from(bytes.len()).ok()?;
    // SAFETY: The function stays within the bytes, and yields attributes that lie whole in them.
    let attr = unsafe { bindings::attr_find(bytes.as_ptr().cast(), len, number.into()) };
    // SAFETY: As above.
    (!attr.is_null()).then(|| unsafe { Attr::from_raw(attr) })
}

/// What a validated attribute must look like.
#[derive(Clone, Copy)]
pub enum Kind {
    /// An integer of 8 bits.
    U8,
    /// An integer of 16 bits.
    U16,
    /// An integer of 32 bits.
    U32,
    /// An integer of 64 bits.
    U64,
    /// Nothing in it; being there is what counts.
    Flag,
    /// A string that ends with NUL, with a limit on its length without that.
    NulString(u16),
    /// A string, with a limit on its length.
    String(u16),
    /// Bytes, with a limit on their number.
    Bytes(u16),
    /// Bytes, of that number.
    Exact(u16),
    /// Attributes, which are not validated further.
    Nested,
    /// It must not be there.
    Reject,
}

impl Kind {
    pub(crate) fn policy(self) -> bindings::nla_policy {
        let (kind, validation, len) = match self {
            Kind::U8 => (bindings::NLA_U8, 0, 0),
            Kind::U16 => (bindings::NLA_U16, 0, 0),
            Kind::U32 => (bindings::NLA_U32, 0, 0),
            Kind::U64 => (bindings::NLA_U64, 0, 0),
            Kind::Flag => (bindings::NLA_FLAG, 0, 0),
            Kind::NulString(max) => (bindings::NLA_NUL_STRING, 0, max),
            Kind::String(max) => (bindings::NLA_STRING, 0, max),
            Kind::Bytes(max) => (bindings::NLA_BINARY, 0, max),
            // For binary data a range applies to the length.
            Kind::Exact(_) => (
                bindings::NLA_BINARY,
                bindings::nla_policy_validation_NLA_VALIDATE_RANGE,
                0,
            ),
            Kind::Nested => (bindings::NLA_NESTED, 0, 0),
            Kind::Reject => (bindings::NLA_REJECT, 0, 0),
        };
        let mut policy = bindings::nla_policy {
            type_: kind as u8,
            validation_type: validation as u8,
            len,
            ..pin_init::zeroed()
        };
        if let Kind::Exact(len) = self {
            let len = len.try_into().unwrap_or(i16::MAX);
            policy.__bindgen_anon_1.__bindgen_anon_1.min = len;
            policy.__bindgen_anon_1.__bindgen_anon_1.max = len;
        }
        policy
    }
}

/// Writes attributes at the end of a message. `EMSGSIZE` when there is no more room.
///
/// # Invariants
///
/// `skb` is a message that is being written, for the lifetime `'a` by us alone.
pub struct Writer<'a> {
    skb: NonNull<bindings::sk_buff>,
    _skb: PhantomData<&'a mut bindings::sk_buff>,
}

impl Writer<'_> {
    /// # Safety
    ///
    /// `skb` is a message that is being written, for the lifetime of the result by us alone.
    pub(crate) unsafe fn from_raw(skb: NonNull<bindings::sk_buff>) -> Self {
        Self {
            skb,
            _skb: PhantomData,
        }
    }

    /// Adds an attribute.
    pub fn bytes(&mut self, number: u16, value: &[u8]) -> Result {
        let len = value.len().try_into()?;
        // SAFETY: By the type invariant; `value` is valid for reads of its length.
        to_result(unsafe {
            bindings::attr_put(self.skb.as_ptr(), number.into(), len, value.as_ptr().cast())
        })
    }

    /// Adds an integer.
    pub fn u8(&mut self, number: u16, value: u8) -> Result {
        self.bytes(number, &[value])
    }

    /// Adds an integer.
    pub fn u16(&mut self, number: u16, value: u16) -> Result {
        self.bytes(number, &value.to_ne_bytes())
    }

    /// Adds an integer.
    pub fn u32(&mut self, number: u16, value: u32) -> Result {
        self.bytes(number, &value.to_ne_bytes())
    }

    /// Adds an integer, unaligned if need be.
    pub fn u64(&mut self, number: u16, value: u64) -> Result {
        self.bytes(number, &value.to_ne_bytes())
    }

    /// Adds an integer, aligned by an attribute `pad` in front of it where need be.
    pub fn u64_aligned(&mut self, number: u16, value: u64, pad: u16) -> Result {
        // SAFETY: By the type invariant.
        to_result(unsafe {
            bindings::attr_put_64(self.skb.as_ptr(), number.into(), value, pad.into())
        })
    }

    /// Adds an attribute with nothing in it.
    pub fn flag(&mut self, number: u16) -> Result {
        self.bytes(number, &[])
    }

    /// Adds a string, with a NUL behind it. It is cut at a NUL or after 255 bytes.
    pub fn str(&mut self, number: u16, value: &[u8]) -> Result {
        let mut buf = [0_u8; 256];
        let mut len = 0_usize;
        for (to, from) in buf
            .iter_mut()
            .take(255)
            .zip(value.iter().take_while(|b| **b != 0))
        {
            *to = *from;
            len = len.saturating_add(1);
        }
        self.bytes(number, buf.get(..=len).unwrap_or_default())
    }

    /// Adds an attribute with those that `f` adds in it. If that fails, it is as if it had not been
    /// begun.
    pub fn nest<R>(&mut self, number: u16, f: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        // SAFETY: By the type invariant.
        let nest = unsafe { bindings::attr_nest(self.skb.as_ptr(), number.into()) };
        if nest.is_null() {
            return Err(EMSGSIZE);
        }
        let result = f(self);
        // SAFETY: By the type invariant; `nest` was begun above.
        unsafe {
            match result {
                Ok(_) => bindings::attr_nest_end(self.skb.as_ptr(), nest),
                Err(_) => bindings::attr_nest_cancel(self.skb.as_ptr(), nest),
            }
        }
        result
    }
}

/// Where a dump goes on when a message buffer is full: numbers, all zero at the start.
pub type Cursor = [usize; CURSOR];

/// How many numbers a [`Cursor`] has.
pub const CURSOR: usize = 5;

/// The place of a dump's cursor.
///
/// # Safety
///
/// `cb` is a dump in progress, of ours alone for the lifetime of the result.
pub(crate) unsafe fn cursor<'a>(cb: *mut bindings::netlink_callback) -> &'a mut Cursor {
    static_assert!(size_of::<Cursor>() <= size_of::<bindings::netlink_callback__bindgen_ty_1>());
    // SAFETY: By the requirements of this function; the union is for the dump to use, aligned for
    // `long`, and large enough. It starts with zeroes.
    unsafe { &mut *(&raw mut (*cb).__bindgen_anon_1).cast() }
}

// SPDX-License-Identifier: GPL-2.0

//! Netlink messages: attributes read and written.
//!
//! C header: [`include/net/netlink.h`](srctree/include/net/netlink.h)

use crate::bindings;
use core::marker::PhantomData;
use core::ptr::NonNull;
use kernel::error::to_result;
use kernel::prelude::*;
use kernel::sync::atomic::{
    Atomic,
    Relaxed, //
};

/// An attribute of a message that was received, its header included.
#[derive(Clone, Copy)]
pub struct Attr<'a>(&'a [u8]);

/// Bytes in front of an attribute's content: its length and its number.
const HEADER: usize = 4;

/// The bits of the number field that are the number.
const NUMBER: u16 = 0x3fff;

impl<'a> Attr<'a> {
    /// Its number.
    pub fn number(self) -> u16 {
        let number = self.0.get(2..HEADER).and_then(|bytes| bytes.first_chunk());
        number.map_or(0, |number| u16::from_ne_bytes(*number) & NUMBER)
    }

    /// What is in it.
    pub fn bytes(self) -> &'a [u8] {
        self.0.get(HEADER..).unwrap_or_default()
    }

    /// Where it is, for the kernel to tell the sender.
    pub(crate) fn as_ptr(self) -> *const bindings::nlattr {
        self.0.as_ptr().cast()
    }

    fn fixed<const N: usize>(self) -> Result<[u8; N]> {
        self.bytes().first_chunk().copied().ok_or(ERANGE)
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
        let bytes = self.bytes();
        let len = bytes.iter().take_while(|b| **b != 0).count();
        bytes.get(..len).unwrap_or_default()
    }
}

/// The attributes of a message, in their order, up to the first that does not lie whole in it.
pub struct Attrs<'a> {
    rest: &'a [u8],
}

impl<'a> Attrs<'a> {
    /// Those in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read yet. At the end: bytes that are no attribute.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Attrs<'a> {
    type Item = Attr<'a>;

    fn next(&mut self) -> Option<Attr<'a>> {
        let len = usize::from(u16::from_ne_bytes(*self.rest.first_chunk()?));
        let attr = self.rest.get(..len).filter(|_| len >= HEADER)?;
        let padded = len.checked_add(3)? & !3;
        self.rest = self.rest.get(padded..).unwrap_or_default();
        Some(Attr(attr))
    }
}

/// What an attribute must look like.
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
    /// Bytes, with a limit on their number.
    Bytes(u16),
    /// It must not be there.
    Reject,
}

impl Kind {
    /// What is wrong with the content of an attribute, if anything is.
    pub(crate) fn check(self, bytes: &[u8]) -> Result<(), (Error, &'static CStr)> {
        let len = bytes.len();
        let sized = |size: usize, text| {
            if len == size {
                Ok(())
            } else {
                Err((ERANGE, text))
            }
        };
        match self {
            Self::U8 => sized(1, c"must be an integer of 8 bits"),
            Self::U16 => sized(2, c"must be an integer of 16 bits"),
            Self::U32 => sized(4, c"must be an integer of 32 bits"),
            Self::U64 => sized(8, c"must be an integer of 64 bits"),
            Self::Flag => sized(0, c"must be empty"),
            Self::NulString(max) => {
                let room = usize::from(max).saturating_add(1);
                if !bytes.get(..room).unwrap_or(bytes).iter().any(|b| *b == 0) {
                    Err((
                        EINVAL,
                        c"must end with a zero byte and is too long or lacks it",
                    ))
                } else if len > room {
                    Err((ERANGE, c"is too long"))
                } else {
                    Ok(())
                }
            }
            Self::Bytes(max) if len > usize::from(max) => Err((ERANGE, c"is too long")),
            Self::Bytes(_) => Ok(()),
            Self::Reject => Err((EINVAL, c"is not allowed here")),
        }
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

    /// Bytes that can still be added.
    pub fn room(&self) -> usize {
        // SAFETY: By the type invariant.
        unsafe { bindings::netlink_room(self.skb.as_ptr()) }
            .try_into()
            .unwrap_or(0)
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

/// Counts the changes of a list, for dumps of it: see [`Dump::as_of`](crate::genl::Dump::as_of).
pub struct Changes(Atomic<u32>);

impl Changes {
    /// None so far.
    pub const fn new() -> Self {
        Self(Atomic::new(0))
    }

    /// There is one. To be called with the list's lock held.
    pub fn note(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// How many there were, modulo 2^32.
    pub fn count(&self) -> u32 {
        self.0.load(Relaxed)
    }
}

impl Default for Changes {
    fn default() -> Self {
        Self::new()
    }
}

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

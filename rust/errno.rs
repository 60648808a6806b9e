// SPDX-License-Identifier: GPL-2.0

//! Error numbers as [`Error`] constants: those of the `kernel` crate and those of sockets, which it
//! lacks.

use crate::bindings;
pub use kernel::error::code::*;
use kernel::prelude::*;

/// Makes an [`Error`] of a positive error number.
///
/// A number outside of the range of error numbers becomes `EINVAL`.
pub fn from_number(errno: i32) -> Error {
    Error::from_errno(errno.saturating_neg())
}

/// The positive error number of an [`Error`].
pub fn number(error: Error) -> i32 {
    error.to_errno().saturating_neg()
}

const fn constant(errno: u32) -> Error {
    assert!(errno > 0 && errno <= bindings::MAX_ERRNO);
    // SAFETY: `Error` has one field, a `NonZeroI32` that holds a negated error number; equal sizes
    // (checked by `transmute`) leave the field no place but offset zero. The value is in range.
    unsafe { core::mem::transmute::<i32, Error>((errno as i32).wrapping_neg()) }
}

macro_rules! define {
    ($($name:ident)*) => { $(
        #[doc = concat!("The error `", stringify!($name), "`.")]
        pub const $name: Error = constant(bindings::$name);
    )* };
}

define! {
    EADDRINUSE EADDRNOTAVAIL EAFNOSUPPORT EALREADY EBADMSG ECANCELED ECOMM ECONNABORTED
    ECONNREFUSED ECONNRESET EDESTADDRREQ EHOSTDOWN EHOSTUNREACH EINPROGRESS EISCONN ENETDOWN
    ENETRESET ENETUNREACH ENOBUFS ENODATA ENOLINK ENOPROTOOPT ENOSYS ENOTCONN ENOTSOCK ENOTUNIQ
    EOPNOTSUPP EPFNOSUPPORT EPROTO EPROTONOSUPPORT EREMOTEIO ESHUTDOWN ESOCKTNOSUPPORT ESTALE ETIME
    EUSERS
}

// SPDX-License-Identifier: GPL-2.0

//! Values of socket options and arguments of `ioctl`, in user memory.

use crate::bindings;
use crate::errno::EOPNOTSUPP;
use core::marker::PhantomData;
use kernel::error::to_result;
use kernel::prelude::*;
use kernel::transmute::FromBytes;

/// What a copy from a program has left uncopied, or an error: `EFAULT` but for nothing.
fn whole(missing: c_int) -> Result {
    match missing {
        0 => Ok(()),
        _ => Err(EFAULT),
    }
}

/// The value given to `setsockopt`.
pub struct OptVal<'a> {
    raw: bindings::sockptr_t,
    len: c_uint,
    _call: PhantomData<&'a ()>,
}

impl OptVal<'_> {
    /// # Safety
    ///
    /// `raw` and `len` are those of a `setsockopt` in progress, for the lifetime of the result.
    pub(crate) unsafe fn from_raw(raw: bindings::sockptr_t, len: c_uint) -> Self {
        Self {
            raw,
            len,
            _call: PhantomData,
        }
    }

    pub(crate) fn raw(&self) -> bindings::sockptr_t {
        // SAFETY: A plain pointer with a mark; copied bit by bit as C does.
        unsafe { core::ptr::read(&self.raw) }
    }

    /// The length of the value.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    pub(crate) fn raw_len(&self) -> c_uint {
        self.len
    }

    /// Is there no value?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the start of the value, up to the length of `buf`; returns how much that is.
    pub fn bytes(&self, buf: &mut [u8]) -> Result<usize> {
        let len = buf.len().min(self.len());
        // SAFETY: `buf` has room for `len` bytes; the value is that of a call in progress.
        let missing =
            unsafe { bindings::copy_from_sockptr(buf.as_mut_ptr().cast(), self.raw(), len) };
        whole(missing)?;
        Ok(len)
    }

    /// Reads a value of fixed size; `EINVAL` if what was given is shorter.
    pub fn get<V: FromBytes + Copy + Default>(&self) -> Result<V> {
        if self.len() < size_of::<V>() {
            return Err(EINVAL);
        }
        let mut value = V::default();
        // SAFETY: `value` has room for its size, and any bytes are valid for it; the value is that
        // of a call in progress.
        let missing = unsafe {
            bindings::copy_from_sockptr(
                core::ptr::from_mut(&mut value).cast(),
                self.raw(),
                size_of::<V>(),
            )
        };
        whole(missing)?;
        Ok(value)
    }

    /// Reads an integer, as most options want one.
    pub fn int(&self) -> Result<i32> {
        self.get()
    }

    /// The value in memory of the kernel, for who reads it with a lock held for which others wait: a program's memory may
    /// be of a file system of its own, which answers when it likes. As much of it as there is: some options read
    /// less than they are given. None if there is none. No option has more than a mebibyte. `EFAULT`.
    pub(crate) fn in_kernel(&self) -> Result<Option<KVVec<u8>>> {
        const MOST: usize = 1 << 20;
        /// What is read without a look at the length would not be more.
        const LEAST: usize = 64;

        let raw = self.raw();
        // SAFETY: Both fields are pointers.
        if unsafe { raw.__bindgen_anon_1.kernel }.is_null() || self.is_empty() {
            return Ok(None);
        }
        let given = self.len().min(MOST);
        let mut value = KVVec::from_elem(0u8, given.max(LEAST), GFP_KERNEL_ACCOUNT)?;
        // SAFETY: There is room for so many bytes; the value is that of a call in progress.
        let missing = unsafe { bindings::copy_from_sockptr(value.as_mut_ptr().cast(), raw, given) };
        let missing = usize::try_from(missing).map_err(|_| EFAULT)?;
        match given.saturating_sub(missing) {
            0 => Err(EFAULT),
            len => {
                value.truncate(len);
                Ok(Some(value))
            }
        }
    }

    /// Leaves the beginning of the value that the program gave, for options that answer there.
    pub(crate) fn answer(&self, value: &[u8]) -> Result {
        let raw = self.raw();
        if raw.is_kernel() {
            return Err(EOPNOTSUPP);
        }
        // SAFETY: Both fields are pointers; this one is the program's.
        let user = unsafe { raw.__bindgen_anon_1.user }.addr();
        let user = kernel::uaccess::UserSlice::new(UserPtr::from_addr(user), value.len());
        user.writer().write_slice(value)
    }
}

/// Where `getsockopt` is to leave a value and its length: both in user memory.
pub struct OptOut<'a> {
    val: c_ulong,
    len: c_ulong,
    _call: PhantomData<&'a ()>,
}

impl OptOut<'_> {
    /// # Safety
    ///
    /// Both are the user's pointers of a `getsockopt` in progress.
    pub(crate) unsafe fn from_raw(val: c_ulong, len: c_ulong) -> Self {
        Self {
            val,
            len,
            _call: PhantomData,
        }
    }

    pub(crate) fn raw(&self) -> (c_ulong, c_ulong) {
        (self.val, self.len)
    }

    /// How much room the caller has; `EINVAL` if that is negative.
    pub fn room(&self) -> Result<usize> {
        let mut len = 0;
        // SAFETY: The function checks that the address is the user's.
        to_result(unsafe { bindings::get_user_int(&mut len, self.len) })?;
        usize::try_from(len).map_err(|_| EINVAL)
    }

    /// Leaves as much of `value` as there is room for, and its length.
    pub fn bytes(&mut self, value: &[u8]) -> Result {
        let len = self.room()?.min(value.len());
        // SAFETY: The function checks that the address is the user's.
        to_result(unsafe { bindings::put_user_int(len.try_into()?, self.len) })?;
        let part = value.get(..len).ok_or(EINVAL)?;
        let user = kernel::uaccess::UserSlice::new(UserPtr::from_addr(self.val), len);
        user.writer().write_slice(part)
    }

    /// Leaves an integer.
    pub fn int(&mut self, value: i32) -> Result {
        self.bytes(&value.to_ne_bytes())
    }
}

/// The argument of an `ioctl`, which most often is a user's pointer to an integer.
#[derive(Clone, Copy)]
pub struct UserArg(c_ulong);

impl UserArg {
    pub(crate) fn new(arg: c_ulong) -> Self {
        Self(arg)
    }

    /// The argument as it is.
    pub fn raw(self) -> usize {
        self.0
    }

    /// Writes an integer to where the argument points.
    pub fn put_int(self, value: i32) -> Result {
        // SAFETY: The function checks that the address is the user's.
        to_result(unsafe { bindings::put_user_int(value, self.0) })
    }

    /// Reads the integer that the argument points to.
    pub fn int(self) -> Result<i32> {
        let mut value = 0;
        // SAFETY: The function checks that the address is the user's.
        to_result(unsafe { bindings::get_user_int(&mut value, self.0) })?;
        Ok(value)
    }
}

// SPDX-License-Identifier: GPL-2.0

//! The operations of a socket, as the C side calls them.

use super::addr::{
    RawAddr,
    SockAddr, //
};
use super::consts::{
    opt,
    poll, //
};
use super::{
    Call,
    OpFlags,
    OptOut,
    OptVal,
    Origin,
    RecvMsg,
    SendMsg,
    Shutdown,
    Sk,
    Socket,
    UserArg,
    Whose, //
};
use crate::bindings;
use core::ptr;
use kernel::error::{
    from_result,
    to_result, //
};
use kernel::prelude::*;
use kernel::sync::aref::ARef;

/// The socket of a call; `None` if it has been released.
///
/// # Safety
///
/// `sock` is a socket with operations of `T`, for the lifetime of the result.
unsafe fn sk<'a, T: Socket>(sock: *mut bindings::socket) -> Option<&'a Sk<T>> {
    // SAFETY: By the requirements of this function.
    let sk = unsafe { (*sock).sk }.cast::<bindings::sock>();
    // SAFETY: A socket with our operations has a sock of ours.
    (!sk.is_null()).then(|| unsafe { Sk::from_ptr(sk) })
}

/// Runs an operation on the socket of a call.
fn with<'a, T: Socket>(sk: Option<&'a Sk<T>>, f: impl FnOnce(&'a Sk<T>) -> Result<c_int>) -> c_int {
    match sk {
        Some(sk) => from_result(|| f(sk)),
        None => EINVAL.to_errno(),
    }
}

fn op_flags(flags: c_int) -> OpFlags {
    OpFlags {
        nonblock: flags & bindings::O_NONBLOCK as c_int != 0,
    }
}

/// A length as the result of a system call.
fn length(len: usize) -> Result<c_int> {
    c_int::try_from(len).map_err(|_| EMSGSIZE)
}

/// # Safety
///
/// `addr` points to `len` bytes, if not negative.
unsafe fn address(addr: *mut bindings::sockaddr_unsized, len: c_int) -> Result<SockAddr> {
    let len = usize::try_from(len).map_err(|_| EINVAL)?;
    if addr.is_null() {
        return Err(EINVAL);
    }
    // SAFETY: By the requirements of this function.
    SockAddr::parse(unsafe { core::slice::from_raw_parts(addr.cast::<u8>(), len) })
}

/// # Safety
///
/// Each is called by the kernel as the operation of its name, for a socket with operations of `T`.
mod op {
    #![expect(clippy::missing_safety_doc)]

    use super::*;

    pub(super) unsafe extern "C" fn release<T: Socket>(sock: *mut bindings::socket) -> c_int {
        // SAFETY: By the requirements of this module.
        let Some(this) = (unsafe { sk::<T>(sock) }) else {
            return 0;
        };
        // SAFETY: This is called when the last reference to the file goes: no operation is in
        // progress on the socket, and none will be called.
        unsafe { this.let_go() };
        T::release(this);
        let sk = this.as_ptr();
        // SAFETY: `sock` and `sk` exist; the reference dropped is the one of the socket, which
        // forgets the sock.
        unsafe {
            bindings::sock_orphan(sk);
            (*sock).sk = ptr::null_mut();
            bindings::sock_put(sk);
        }
        0
    }

    pub(super) unsafe extern "C" fn bind<T: Socket>(
        sock: *mut bindings::socket,
        addr: *mut bindings::sockaddr_unsized,
        len: c_int,
    ) -> c_int {
        // SAFETY: By the requirements of this module.
        with(unsafe { sk::<T>(sock) }, |sk| {
            // SAFETY: The address of this call.
            let addr = unsafe { address(addr, len) }?;
            T::bind(sk, &addr).map(|()| 0)
        })
    }

    pub(super) unsafe extern "C" fn connect<T: Socket>(
        sock: *mut bindings::socket,
        addr: *mut bindings::sockaddr_unsized,
        len: c_int,
        flags: c_int,
    ) -> c_int {
        // SAFETY: By the requirements of this module.
        let this = unsafe { sk::<T>(sock) };
        with(this, |sk| {
            // SAFETY: The address of this call.
            let addr = unsafe { address(addr, len) }?;
            T::connect(sk, &addr, op_flags(flags)).map(|()| 0)
        })
    }

    pub(super) unsafe extern "C" fn accept<T: Socket>(
        sock: *mut bindings::socket,
        newsock: *mut bindings::socket,
        arg: *mut kernel::bindings::proto_accept_arg,
    ) -> c_int {
        // SAFETY: By the requirements of this module.
        let flags = op_flags(unsafe { (*arg.cast::<bindings::proto_accept_arg>()).flags });
        // SAFETY: By the requirements of this module.
        let this = unsafe { sk::<T>(sock) };
        with(this, |sk| {
            let child = T::accept(sk, flags)?;
            if child.has_file() || ptr::eq(&*child, sk) {
                crate::util::warn_misuse();
                return Err(EINVAL);
            }
            // The reference goes to the new socket.
            let child = ARef::into_raw(child).as_ptr().cast::<bindings::sock>();
            // SAFETY: `newsock` is new, and the child without a socket.
            unsafe { bindings::sock_graft(child, newsock) };
            // SAFETY: The child belongs to a socket now.
            unsafe { bindings::sk_custom_options(child) };
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn getname<T: Socket>(
        sock: *mut bindings::socket,
        addr: *mut bindings::sockaddr,
        peer: c_int,
    ) -> c_int {
        // SAFETY: By the requirements of this module.
        let this = unsafe { sk::<T>(sock) };
        with(this, |sk| {
            let whose = match peer {
                0 => Whose::Own,
                1 => Whose::Peer,
                // `accept(2)` and others who know that there was a connection.
                _ => Whose::AcceptedPeer,
            };
            let name = T::getname(sk, whose)?;
            let mut raw = RawAddr::new();
            let len = name.emit(&mut raw)?;
            // SAFETY: There is room for a `sockaddr_storage`, of which `len` bytes are used.
            unsafe { ptr::copy_nonoverlapping(raw.as_mut_ptr::<u8>(), addr.cast(), len) };
            length(len)
        })
    }

    pub(super) unsafe extern "C" fn poll<T: Socket>(
        file: *mut bindings::file,
        sock: *mut bindings::socket,
        wait: *mut bindings::poll_table_struct,
    ) -> bindings::__poll_t {
        // SAFETY: All three exist during this call.
        unsafe { bindings::sock_poll_wait(file, sock, wait) };
        // SAFETY: By the requirements of this module.
        let Some(sk) = (unsafe { sk::<T>(sock) }) else {
            return poll::ERR | poll::HUP;
        };
        // SAFETY: The operation of a socket which is not released while it is in progress.
        let call = unsafe { Call::new(sk) };
        let mask = T::poll(call);
        if mask & poll::OUT != 0 {
            return mask;
        }
        // Signals for room are sent only if asked for; then look again, as room may have come.
        // SAFETY: The sock exists.
        unsafe { bindings::sk_note_no_space(sk.as_ptr()) };
        T::poll(call)
    }

    pub(super) unsafe extern "C" fn ioctl<T: Socket>(
        sock: *mut bindings::socket,
        cmd: c_uint,
        arg: c_ulong,
    ) -> c_int {
        // SAFETY: By the requirements of this module.
        with(unsafe { sk::<T>(sock) }, |sk| {
            T::ioctl(sk, cmd, UserArg::new(arg))
        })
    }

    #[cfg(CONFIG_COMPAT)]
    pub(super) unsafe extern "C" fn compat_ioctl<T: Socket>(
        sock: *mut bindings::socket,
        cmd: c_uint,
        arg: c_ulong,
    ) -> c_int {
        // SAFETY: Arithmetic only.
        let arg = unsafe { bindings::compat_ptr_value(arg) };
        // SAFETY: By the requirements of this module.
        unsafe { ioctl::<T>(sock, cmd, arg) }
    }

    pub(super) unsafe extern "C" fn listen<T: Socket>(
        sock: *mut bindings::socket,
        backlog: c_int,
    ) -> c_int {
        // SAFETY: By the requirements of this module.
        with(unsafe { sk::<T>(sock) }, |sk| {
            T::listen(sk, backlog).map(|()| 0)
        })
    }

    pub(super) unsafe extern "C" fn shutdown<T: Socket>(
        sock: *mut bindings::socket,
        how: c_int,
    ) -> c_int {
        // SAFETY: By the requirements of this module.
        let this = unsafe { sk::<T>(sock) };
        with(this, |sk| {
            let how = match how as c_uint {
                bindings::sock_shutdown_cmd_SHUT_RD => Shutdown::Read,
                bindings::sock_shutdown_cmd_SHUT_WR => Shutdown::Write,
                bindings::sock_shutdown_cmd_SHUT_RDWR => Shutdown::Both,
                _ => return Err(EINVAL),
            };
            T::shutdown(sk, how).map(|()| 0)
        })
    }

    pub(super) unsafe extern "C" fn setsockopt<T: Socket>(
        sock: *mut bindings::socket,
        level: c_int,
        name: c_int,
        val: bindings::sockptr_t,
        len: c_uint,
    ) -> c_int {
        // SAFETY: The value is the one of this call.
        let val = unsafe { OptVal::from_raw(val, len) };
        // SAFETY: By the requirements of this module.
        let this = unsafe { sk::<T>(sock) };
        with(this, |sk| {
            if level != opt::SOL_SOCKET {
                return T::setsockopt(sk, level, name, &val).map(|()| 0);
            }
            if T::takes_option(sk, name, &val)? {
                return Ok(0);
            }
            if name == opt::SO_REUSEPORT && sk.kind().origin == Origin::Native {
                // The core allows it for address families of IP only.
                let on = val.int()? != 0;
                // SAFETY: The sock exists.
                unsafe { bindings::sk_set_reuseport(sk.as_ptr(), on) };
            } else if name == opt::SO_ZEROCOPY {
                // The core allows it for protocols that it knows.
                let on = match val.int()? {
                    0 => false,
                    1 => true,
                    _ => return Err(EINVAL),
                };
                // SAFETY: The sock exists.
                unsafe { bindings::sk_set_zerocopy(sk.as_ptr(), on) };
            } else {
                // SAFETY: The socket exists, the value is the one of this call.
                to_result(unsafe { bindings::sock_setsockopt(sock, level, name, val.raw(), len) })?;
            }
            T::options_changed(sk, name, &val);
            Ok(0)
        })
    }

    pub(super) unsafe extern "C" fn getsockopt<T: Socket>(
        sock: *mut bindings::socket,
        level: c_int,
        name: c_int,
        val: *mut c_char,
        len: *mut c_int,
    ) -> c_int {
        // SAFETY: These are the user's pointers of this call.
        let mut out = unsafe { OptOut::from_raw(val as c_ulong, len as c_ulong) };
        // SAFETY: By the requirements of this module.
        with(unsafe { sk::<T>(sock) }, |sk| {
            T::getsockopt(sk, level, name, &mut out).map(|()| 0)
        })
    }

    pub(super) unsafe extern "C" fn sendmsg<T: Socket>(
        sock: *mut bindings::socket,
        msg: *mut bindings::msghdr,
        _len: usize,
    ) -> c_int {
        // SAFETY: By the requirements of this module.
        let this = unsafe { sk::<T>(sock) };
        with(this, |sk| {
            // SAFETY: The operation of a socket which is not released while it is in progress.
            let call = unsafe { Call::new(sk) };
            // SAFETY: The message of this call, which nobody else uses.
            let mut message = unsafe { SendMsg::from_raw(msg) };
            let result = T::sendmsg(call, &mut message);
            if result == Err(EAGAIN) || (result.is_ok() && !message.is_empty()) {
                // SAFETY: The sock exists.
                unsafe { bindings::sk_note_no_space(sk.as_ptr()) };
                // Room that came before the note was told to nobody.
                if T::poll(call) & poll::OUT != 0 {
                    sk.wake_writable();
                }
            }
            length(result?)
        })
    }

    pub(super) unsafe extern "C" fn recvmsg<T: Socket>(
        sock: *mut bindings::socket,
        msg: *mut bindings::msghdr,
        _len: usize,
        flags: c_int,
    ) -> c_int {
        // SAFETY: By the requirements of this module.
        let this = unsafe { sk::<T>(sock) };
        with(this, |sk| {
            // SAFETY: The operation of a socket which is not released while it is in progress.
            let call = unsafe { Call::new(sk) };
            // SAFETY: The message of this call, which nobody else uses.
            length(T::recvmsg(call, &mut unsafe {
                RecvMsg::from_raw(msg, flags)
            })?)
        })
    }

    pub(super) unsafe extern "C" fn set_peek_off<T: Socket>(
        sk: *mut kernel::bindings::sock,
        val: c_int,
    ) -> c_int {
        // SAFETY: A sock of ours, as the operations are.
        let sk = unsafe { Sk::<T>::from_ptr(sk.cast()) };
        from_result(|| T::set_peek_off(sk, val).map(|()| 0))
    }

    pub(super) unsafe extern "C" fn splice_eof<T: Socket>(sock: *mut bindings::socket) {
        // SAFETY: By the requirements of this module.
        if let Some(sk) = unsafe { sk::<T>(sock) } {
            T::splice_eof(sk);
        }
    }

    /// Copies, as is done where a socket has no such operation.
    pub(super) unsafe extern "C" fn splice_read<T: Socket>(
        sock: *mut bindings::socket,
        ppos: *mut bindings::loff_t,
        pipe: *mut kernel::bindings::pipe_inode_info,
        len: usize,
        flags: c_uint,
    ) -> isize {
        // SAFETY: By the requirements of this module.
        if let Some(sk) = unsafe { sk::<T>(sock) } {
            T::splice_read(sk);
        }
        // SAFETY: Who splices holds the file of the socket; the rest is what we were given.
        unsafe { bindings::copy_splice_read((*sock).file, ppos, pipe, len, flags) }
    }

    pub(super) unsafe extern "C" fn set_rcvlowat<T: Socket>(
        sk: *mut kernel::bindings::sock,
        val: c_int,
    ) -> c_int {
        // SAFETY: A sock of ours, as the operations are.
        let sk = unsafe { Sk::<T>::from_ptr(sk.cast()) };
        from_result(|| T::set_rcvlowat(sk, val).map(|()| 0))
    }
}

/// The operations of sockets of `T`, as the address family `family` has them.
pub(super) fn proto_ops<T: Socket>(
    module: &'static ThisModule,
    family: u16,
) -> bindings::proto_ops {
    bindings::proto_ops {
        family: family.into(),
        owner: module.as_ptr(),
        release: Some(op::release::<T>),
        bind: Some(op::bind::<T>),
        connect: Some(op::connect::<T>),
        socketpair: Some(bindings::sock_no_socketpair),
        accept: Some(op::accept::<T>),
        getname: Some(op::getname::<T>),
        poll: Some(op::poll::<T>),
        ioctl: Some(op::ioctl::<T>),
        #[cfg(CONFIG_COMPAT)]
        compat_ioctl: Some(op::compat_ioctl::<T>),
        gettstamp: Some(bindings::sock_gettstamp),
        listen: Some(op::listen::<T>),
        shutdown: Some(op::shutdown::<T>),
        setsockopt: Some(op::setsockopt::<T>),
        getsockopt: Some(op::getsockopt::<T>),
        sendmsg: Some(op::sendmsg::<T>),
        recvmsg: Some(op::recvmsg::<T>),
        mmap: Some(bindings::sock_no_mmap),
        splice_read: Some(op::splice_read::<T>),
        splice_eof: Some(op::splice_eof::<T>),
        set_peek_off: Some(op::set_peek_off::<T>),
        set_rcvlowat: Some(op::set_rcvlowat::<T>),
        ..pin_init::zeroed()
    }
}

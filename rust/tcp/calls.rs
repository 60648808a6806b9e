// SPDX-License-Identifier: GPL-2.0

//! What can be done with a TCP socket.

use super::{
    option,
    TcpSocket, //
};
use crate::bindings;
use crate::errno;
use crate::net::Net;
use crate::netdev::{
    NetDev,
    NetDevice, //
};
use crate::sock::{
    OptOut,
    OptVal,
    RawAddr,
    RecvMsg,
    SendMsg,
    Shutdown,
    Sk,
    SockAddr,
    Socket,
    UserArg,
    Whose, //
};
use core::ptr::{
    self,
    NonNull, //
};
use core::sync::atomic::Ordering;
use kernel::error::to_result;
use kernel::prelude::*;

/// How far a [`TcpSocket::connect`] has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Connect {
    /// The connection is established.
    Done,
    /// The SYN is on its way; events tell what comes of it.
    InProgress,
}

/// Which options of the socket above matter now, for [`TcpSocket::inherit_from`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Before binding: everything but buffer sizes.
    Bind,
    /// Before connecting or listening, when the first bytes are somebody else's: everything but
    /// `SO_RCVLOWAT`.
    Traffic,
    /// All bytes are those of the socket above: everything.
    All,
}

/// How packets of a connection leave.
pub struct Route {
    /// The device, if it still exists.
    pub dev: Option<NetDev>,
    /// Its interface index.
    pub ifindex: i32,
    /// Are packets transformed, by IPsec for example?
    pub uses_xfrm: bool,
}

impl TcpSocket {
    /// Binds to a local address.
    pub fn bind(&self, addr: &SockAddr) -> Result {
        let mut raw = RawAddr::new();
        let len = addr.emit(&mut raw)?;
        // SAFETY: The socket exists, the address is of that length.
        to_result(unsafe { bindings::tcp_bind(self.sock(), raw.as_mut_ptr(), len as c_int) })
    }

    /// Starts to listen.
    pub fn listen(&self, backlog: i32) -> Result {
        let sk = self.sk();
        // SAFETY: The sock exists.
        unsafe { bindings::lock_sock(sk) };
        // What a connect that came to nothing has left would be inherited by the children.
        self.inner().option.unwatch(sk);
        self.inner().listens.fetch_add(1, Ordering::Relaxed);
        // SAFETY: The sock is locked, and hooked.
        unsafe { bindings::tcp_begin_listening(sk, &super::events::OURS, &self.inner().saved) };
        // SAFETY: Locked above.
        unsafe { bindings::release_sock(sk) };
        // SAFETY: The socket exists.
        to_result(unsafe { bindings::tcp_listen(self.sock(), backlog) })
    }

    /// Has at most one connection more than that wait to be accepted, from now on.
    pub fn set_backlog(&self, backlog: u32) {
        // SAFETY: The sock exists.
        unsafe { bindings::tcp_set_backlog(self.sk(), backlog) }
    }

    /// Starts to connect, if security modules have nothing against that. `EALREADY` and `EISCONN` as
    /// for `connect(2)`.
    pub fn connect(&self, addr: &SockAddr) -> Result<Connect> {
        let mut raw = RawAddr::new();
        let len = addr.emit(&mut raw)?;
        if !addr.is_unspec() {
            // SAFETY: The socket exists; the address is of that length.
            to_result(unsafe {
                bindings::tcp_may_connect(self.sock(), raw.as_mut_ptr(), len as c_int)
            })?;
        }
        let sk = self.lock_to_connect();
        self.inner().option.unwatch(sk);
        // SAFETY: The sock is locked; the address is of that length.
        let ret =
            unsafe { bindings::tcp_connect_locked(self.sock(), raw.as_mut_ptr(), len as c_int) };
        self.inner().option.watch(sk);
        // SAFETY: Locked above.
        unsafe { bindings::release_sock(sk) };
        match to_result(ret) {
            Ok(()) => Ok(Connect::Done),
            Err(e) if e == errno::EINPROGRESS => Ok(Connect::InProgress),
            Err(e) => Err(e),
        }
    }

    /// Locks the sock. One that has listened is made like any other first: a child of it may still be on its way, in
    /// softirq, by what it had as a listener, and must find that there, not what a connect leaves.
    fn lock_to_connect(&self) -> *mut bindings::sock {
        let sk = self.sk();
        let lock = || {
            // SAFETY: The sock exists.
            unsafe { bindings::lock_sock(sk) };
            self.inner().listens.load(Ordering::Relaxed)
        };
        loop {
            let before = lock();
            // SAFETY: Locked above.
            if !unsafe { bindings::tcp_has_listened(sk) } {
                return sk;
            }
            // SAFETY: As above.
            unsafe { bindings::release_sock(sk) };
            crate::util::wait_for_readers();
            if lock() == before {
                // SAFETY: Locked, and nobody has listened since it was seen not to: all who saw it listen are through.
                unsafe { bindings::tcp_end_listening(sk) };
                return sk;
            }
            // SAFETY: As above.
            unsafe { bindings::release_sock(sk) };
        }
    }

    /// Dissolves the connection, or what there is of it, so that the socket can be used again.
    pub fn disconnect(&self) -> Result {
        self.connect(&SockAddr::UNSPEC).map(|_| ())
    }

    /// For a socket that is about to be dropped: if it listens, or has no connection yet, it ends now
    /// and its port is free, whoever else still holds it for a moment.
    pub fn vacate(&self) {
        let sk = self.sk();
        // SAFETY: The sock exists; process context.
        unsafe { bindings::lock_sock(sk) };
        // SAFETY: The sock is locked.
        unsafe { bindings::tcp_vacate(sk) };
        // SAFETY: Locked above.
        unsafe { bindings::release_sock(sk) };
    }

    /// Takes a connection from a listening socket, if there is one. It has no owner. `EBUSY` if somebody has the socket
    /// locked: a call may do that for as long as a program likes, whose memory it reads meanwhile. `EOPNOTSUPP` if a
    /// connection was closed since somebody else has put data of his there.
    pub fn accept(&self) -> Result<Option<Self>> {
        // SAFETY: The sock exists.
        if unsafe { bindings::tcp_is_owned(self.sk()) } {
            return Err(EBUSY);
        }
        let mut sock = ptr::null_mut();
        // SAFETY: The socket exists; `sock` is valid for writes.
        let ret = unsafe {
            bindings::kernel_accept(self.sock(), &mut sock, bindings::O_NONBLOCK as c_int)
        };
        match to_result(ret) {
            Err(e) if e == EAGAIN => return Ok(None),
            result => result?,
        }
        let sock = NonNull::new(sock).ok_or(ENOMEM)?;
        // SAFETY: The socket is new and ours; it is a child of this one.
        let child = unsafe { Self::adopt(sock) }?;
        let sk = child.sk();
        // SAFETY: Both socks exist.
        unsafe { bindings::sk_copy_uid(sk, self.sk()) };
        // SAFETY: The sock exists.
        unsafe { bindings::lock_sock(sk) };
        child.inner().option.accepted(sk, &self.inner().option);
        // SAFETY: Locked above.
        unsafe { bindings::release_sock(sk) };
        Ok(Some(child))
    }

    /// Sends bytes of the kernel, as many as there is room for; `EAGAIN` if there is none.
    pub fn send(&self, buf: &[u8]) -> Result<usize> {
        // SAFETY: The socket exists, `buf` is valid for reads of its length.
        count(unsafe {
            bindings::tcp_send_bytes(self.sock(), buf.as_ptr().cast(), buf.len().min(MAX_BYTES))
        })
    }

    fn recv_flags(&self, buf: &mut [u8], flags: u32) -> Result<usize> {
        // SAFETY: The socket exists, `buf` is valid for writes of its length.
        count(unsafe {
            bindings::tcp_recv_bytes(
                self.sock(),
                buf.as_mut_ptr().cast(),
                buf.len().min(MAX_BYTES),
                flags as c_int,
            )
        })
    }

    /// Receives bytes into the kernel, as many as there are and fit; zero at the end of the stream,
    /// `EAGAIN` if there is nothing yet.
    pub fn recv(&self, buf: &mut [u8]) -> Result<usize> {
        self.recv_flags(buf, 0)
    }

    /// Like [`TcpSocket::recv`], leaving the bytes where they are.
    pub fn peek(&self, buf: &mut [u8]) -> Result<usize> {
        self.recv_flags(buf, bindings::MSG_PEEK)
    }

    /// Sends a user's message as the user's own TCP socket would: it may wait, if its flags allow. One that connects
    /// (MSG_FASTOPEN) does so if it `may` still, which is asked with the sock locked; `ECONNABORTED` otherwise.
    pub fn forward_send(&self, msg: &mut SendMsg<'_>, may: impl FnOnce() -> bool) -> Result<usize> {
        if msg.flags() & crate::sock::msg::FASTOPEN != 0 {
            return self.fast_open(msg, may);
        }
        // SAFETY: The socket exists, the message is that of a call in progress.
        count(unsafe { bindings::tcp_sendmsg(self.sock(), msg.as_ptr()) })
    }

    /// Sends a message that connects, if the socket is not connected yet, locked as by [`Self::connect`]. It offers no option.
    fn fast_open(&self, msg: &mut SendMsg<'_>, may: impl FnOnce() -> bool) -> Result<usize> {
        let (name, len) = msg.raw_name();
        if !name.is_null() {
            // SAFETY: The socket exists; the address is of that length.
            to_result(unsafe { bindings::tcp_may_connect(self.sock(), name, len) })?;
        }
        let sk = self.lock_to_connect();
        let sent = if may() {
            // SAFETY: The sock is locked, the message is that of a call in progress.
            count(unsafe { bindings::tcp_sendmsg_locked(sk, msg.as_ptr(), msg.len()) })
        } else {
            Err(errno::ECONNABORTED)
        };
        // SAFETY: Locked above.
        unsafe { bindings::release_sock(sk) };
        sent
    }

    /// Receives into a user's message as the user's own TCP socket would: it may wait, if its flags
    /// allow.
    pub fn forward_recv(&self, msg: &mut RecvMsg<'_>) -> Result<usize> {
        let flags = msg.flags() as c_int;
        // SAFETY: The socket exists, the message is that of a call in progress.
        count(unsafe { bindings::tcp_recvmsg(self.sock(), msg.as_ptr(), flags) })
    }

    /// The address that is asked for.
    pub fn name(&self, whose: Whose) -> Result<SockAddr> {
        let mut raw = RawAddr::new();
        let peer = match whose {
            Whose::Own => 0,
            Whose::Peer => 1,
            Whose::AcceptedPeer => 2,
        };
        // SAFETY: The socket exists; there is room for any address.
        let len = unsafe { bindings::tcp_getname(self.sock(), raw.as_mut_ptr(), peer) };
        to_result(len)?;
        raw.parse(len)
    }

    /// The local address.
    pub fn local_addr(&self) -> Result<SockAddr> {
        self.name(Whose::Own)
    }

    /// The peer's address; `ENOTCONN` if there is none.
    pub fn peer_addr(&self) -> Result<SockAddr> {
        self.name(Whose::Peer)
    }

    /// Ends directions; the end of sending follows what was sent.
    pub fn shutdown(&self, how: Shutdown) -> Result {
        // SAFETY: The socket exists.
        to_result(unsafe { bindings::tcp_shutdown(self.sock(), how.number()) })
    }

    /// Ends the connection by RST. `err` is what users of the socket get.
    pub fn abort(&self, err: Error) {
        // SAFETY: The sock exists. There is nothing to do if it is closed already.
        unsafe { bindings::tcp_abort(self.sk(), errno::number(err)) };
    }

    /// Sets an option to what a user gave. `EOPNOTSUPP` for what nobody may set on a socket below another one.
    pub fn setsockopt(&self, level: i32, name: i32, val: &OptVal<'_>) -> Result {
        use crate::sock::opt::{
            IPV6_FLOWLABEL_MGR,
            SOL_IPV6,
            SOL_TCP,
            TCP_SAVE_SYN, //
        };

        may_be_set(level, name)?;
        if (level, name) == (SOL_TCP, TCP_SAVE_SYN)
            && matches!(val.int()?, 0..=2)
            && !self.inner().option.user_saves(val.int()? != 0)
        {
            return Ok(());
        }
        let Some(mut value) = val.in_kernel()? else {
            // SAFETY: The socket exists, the value is that of a call in progress.
            return to_result(unsafe {
                bindings::tcp_setsockopt(self.sock(), level, name, val.raw(), val.raw_len())
            });
        };
        /// Where the label is in `struct in6_flowlabel_req`.
        const LABEL: core::ops::Range<usize> = 16..20;
        let before = value
            .get(LABEL)
            .and_then(|label| <[u8; 4]>::try_from(label).ok());
        // SAFETY: The socket exists; the value may be written to, and is of that length.
        to_result(unsafe {
            bindings::tcp_setsockopt_kernel(
                self.sock(),
                level,
                name,
                value.as_mut_ptr().cast(),
                value.len().try_into()?,
            )
        })?;
        // A label that was chosen stands in the request. Whether the program can be told is no matter, as with TCP.
        let answered = value
            .get(LABEL)
            .filter(|label| before.as_ref().map(|label| label.as_slice()) != Some(*label));
        if (level, name) == (SOL_IPV6, IPV6_FLOWLABEL_MGR) && answered.is_some() {
            let _ = val.answer(value.get(..LABEL.end).unwrap_or_default());
        }
        Ok(())
    }

    /// Sets an option to a value of the kernel. Errors as with [`Self::setsockopt`], and for what the kernel answers in the
    /// value.
    pub fn setsockopt_bytes(&self, level: i32, name: i32, val: &[u8]) -> Result {
        use crate::sock::opt::{
            IPV6_FLOWLABEL_MGR,
            SOL_IPV6, //
        };

        may_be_set(level, name)?;
        if (level, name) == (SOL_IPV6, IPV6_FLOWLABEL_MGR) {
            return Err(errno::EOPNOTSUPP);
        }
        // SAFETY: The socket exists; the value is of that length, and only read: the one option that is answered is not set.
        to_result(unsafe {
            bindings::tcp_setsockopt_kernel(
                self.sock(),
                level,
                name,
                val.as_ptr().cast_mut().cast(),
                val.len().try_into()?,
            )
        })
    }

    /// Gets an option for a user; not for `SOL_SOCKET`.
    pub fn getsockopt(&self, level: i32, name: i32, out: &mut OptOut<'_>) -> Result {
        if level == crate::sock::opt::SOL_SOCKET {
            return Err(errno::ENOPROTOOPT);
        }
        use crate::sock::opt::{
            SOL_TCP,
            TCP_SAVE_SYN, //
        };
        if (level, name) == (SOL_TCP, TCP_SAVE_SYN) && !self.inner().option.wants_saved() {
            return out.int(0);
        }
        let (val, len) = out.raw();
        // SAFETY: The socket exists, the pointers are the user's of a call in progress.
        to_result(unsafe { bindings::tcp_getsockopt_user(self.sock(), level, name, val, len) })
    }

    /// `ioctl` for a user.
    pub fn ioctl(&self, cmd: u32, arg: UserArg) -> Result<c_int> {
        // SAFETY: The socket exists, the argument is that of a call in progress.
        let ret = unsafe { bindings::tcp_ioctl(self.sock(), cmd, arg.raw() as c_ulong) };
        to_result(ret)?;
        Ok(ret)
    }

    /// What an `ioctl` counts.
    pub fn count(&self, cmd: u32) -> Result<c_int> {
        let mut count = 0;
        // SAFETY: The sock exists.
        to_result(unsafe { bindings::tcp_count(self.sk(), cmd as c_int, &mut count) })?;
        Ok(count)
    }

    /// `SO_PEEK_OFF`.
    pub fn set_peek_off(&self, val: i32) -> Result {
        // SAFETY: The sock exists.
        to_result(unsafe { bindings::tcp_set_peek_off(self.sk(), val) })
    }

    /// `SO_PEEK_OFF` as it is after peeking and reading; negative for none.
    pub fn peek_off(&self) -> i32 {
        // SAFETY: The sock exists.
        unsafe { bindings::tcp_peek_off(self.sk()) }
    }

    /// Are readers told how much is left (`TCP_INQ`)?
    pub fn tells_left(&self) -> bool {
        // SAFETY: The sock exists.
        unsafe { bindings::tcp_tells_left(self.sk()) }
    }

    /// Sends what was held back because more had been announced.
    pub fn splice_eof(&self) {
        // SAFETY: The socket exists.
        unsafe { bindings::tcp_splice_eof(self.sock()) }
    }

    /// The bits of [`poll`](crate::sock::poll) that hold now. May be called in events.
    pub fn poll(&self) -> u32 {
        // SAFETY: The socket exists.
        unsafe { bindings::tcp_poll(self.sock()) }
    }

    /// Calls `f` with the sock locked, so that no event is in progress meanwhile, nor any other
    /// change of the connection. What holds for events holds for `f`.
    pub fn locked<R>(&self, f: impl FnOnce() -> R) -> R {
        let sk = self.sk();
        // SAFETY: The sock exists.
        unsafe { bindings::lock_sock(sk) };
        let result = f();
        // SAFETY: Locked above.
        unsafe { bindings::release_sock(sk) };
        result
    }

    /// Sends small segments at once.
    pub fn set_nodelay(&self) {
        // SAFETY: The sock exists.
        unsafe { bindings::tcp_set_nodelay(self.sk()) }
    }

    /// Takes over what was set by `SOL_SOCKET` options of the socket above, which must not be
    /// locked by others for long, as it is read without its lock. For one that is not connected: whatever else has set some
    /// of that for the connection is undone.
    pub fn inherit_from<T: Socket>(&self, outer: &Sk<T>, stage: Stage) {
        // SAFETY: Both socks exist; only the inner one is locked here.
        unsafe {
            bindings::sk_copy_options(
                self.sk(),
                outer.as_ptr(),
                stage != Stage::Bind,
                stage == Stage::All,
                false,
            )
        }
    }

    /// Gives what TCP or programs of a control group have set when the socket was made, bound or connected to the one above
    /// it: device, mark, priority, `SO_KEEPALIVE`. That one is locked by the caller, or nobody else has it yet.
    pub fn inherit_back<T: Socket>(&self, outer: &Sk<T>) {
        // SAFETY: Both socks exist; the outer one is locked or the caller's alone, as he says.
        unsafe { bindings::sk_copy_back(outer.as_ptr(), self.sk()) }
    }

    /// Gives what a listener's `SOL_SOCKET` options have set, but for `SO_RCVLOWAT`, and the security
    /// label to the socket above an accepted one, which nobody has locked or labelled before; its
    /// listener may be locked.
    pub fn inherit_to<T: Socket>(&self, outer: &Sk<T>) {
        // SAFETY: Both socks exist; only the outer one is locked here.
        unsafe { bindings::sk_copy_options(outer.as_ptr(), self.sk(), true, false, true) }
    }

    /// How packets of the connection leave; `EHOSTUNREACH` if there is no route.
    pub fn route(&self) -> Result<Route> {
        let mut egress = bindings::kapi_egress::default();
        // SAFETY: The sock exists; `egress` is valid for writes.
        if !unsafe { bindings::tcp_egress(self.sk(), &mut egress) } {
            return Err(errno::EHOSTUNREACH);
        }
        // SAFETY: The sock exists and keeps its namespace.
        let net = unsafe { Net::from_ptr(bindings::sock_net(self.sk())) };
        Ok(Route {
            dev: NetDevice::by_index(net, egress.ifindex),
            ifindex: egress.ifindex,
            uses_xfrm: egress.xfrm,
        })
    }

    /// The namespace of the socket, which keeps it.
    pub fn net(&self) -> &Net {
        // SAFETY: The sock exists and keeps its namespace.
        unsafe { Net::from_ptr(bindings::sock_net(self.sk())) }
    }

    /// Has the next connect offer the registered TCP option on its SYN, or not, whatever a former one did.
    ///
    /// `ENODEV` if it is to, and no option is registered.
    pub fn offer_option(&self, yes: bool) -> Result {
        if yes {
            option::prepare(self.net())?;
        }
        let sk = self.sk();
        // SAFETY: The sock exists.
        unsafe { bindings::lock_sock(sk) };
        self.inner().option.offer(sk, yes);
        // SAFETY: Locked above.
        unsafe { bindings::release_sock(sk) };
        Ok(())
    }

    /// Has a listening socket answer the option on SYN-ACKs, or not, from now on.
    pub fn answer_option(&self, yes: bool) -> Result {
        if yes {
            option::prepare(self.net())?;
        }
        let sk = self.sk();
        // SAFETY: The sock exists.
        unsafe { bindings::lock_sock(sk) };
        self.inner().option.answer(sk, yes);
        // SAFETY: Locked above.
        unsafe { bindings::release_sock(sk) };
        Ok(())
    }

    /// Have both sides sent the option? To be asked once the connection is established.
    pub fn option_negotiated(&self) -> bool {
        self.inner().option.negotiated()
    }

    /// An accepted connection: has the client offered the option without being answered it?
    pub fn option_refused(&self) -> bool {
        self.inner().option.refused()
    }
}

/// The most bytes a call moves, so that counts fit.
const MAX_BYTES: usize = 1 << 30;

/// `EOPNOTSUPP` for options that would put somebody else's functions into a socket which has ours, or make it one of another
/// family.
fn may_be_set(level: i32, name: i32) -> Result {
    use crate::sock::opt::{
        IPV6_ADDRFORM,
        SOL_IPV6,
        SOL_TCP,
        TCP_REPAIR,
        TCP_ULP, //
    };

    match (level, name) {
        // Programs that ask for encryption in the kernel do it themselves without.
        (SOL_TCP, TCP_ULP | TCP_REPAIR) | (SOL_IPV6, IPV6_ADDRFORM) => Err(errno::EOPNOTSUPP),
        _ => Ok(()),
    }
}

/// A count or a negated error number.
fn count(ret: c_int) -> Result<usize> {
    to_result(ret)?;
    usize::try_from(ret).map_err(|_| EINVAL)
}

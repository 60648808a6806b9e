// SPDX-License-Identifier: GPL-2.0

//! The capability option of one TCP socket.
//!
//! On a kernel that knows the option, the TCP sock has a flag for it, and a function which a listener is asked by
//! whether to answer; what the client has offered is seen in the saved SYN. Elsewhere the option is put
//! into SYNs and SYN-ACKs at the local output hook of netfilter, before anybody else sees them:
//!
//! - A connecting sock is recognised by its callbacks. Whether the SYN-ACK brings the option is
//!   seen by `sk_rx_dst_set`, which TCP calls with that packet; it is replaced from the sending of
//!   the SYN on, with the sock locked all the time. So it is where the sock has a flag, which says nothing of who
//!   the peer is: two SYNs that cross have no server (simultaneous open), and TCP does not call it then.
//! - A listener saves SYNs. When the SYN-ACK leaves, the saved SYN says whether the client has
//!   offered the option. What was done is noted there, in the kind of the saved option: every
//!   repetition of the SYN-ACK does the same, and so does the accepted child know. With SYN
//!   cookies nothing is saved and the packet has no request, so that no option is sent.

use super::events;
use crate::bindings;
use core::net::{
    IpAddr,
    Ipv6Addr, //
};
use core::ptr;
use core::sync::atomic::{
    AtomicBool,
    AtomicPtr,
    AtomicU64,
    Ordering, //
};
use kernel::prelude::*;
use kernel::types::Opaque;

/// The option that is registered, as it goes on the wire; zero if there is none.
static OPTION: AtomicU64 = AtomicU64::new(0);

/// By what the identifier of an option that is marked differs from its own.
static SECRET: AtomicU64 = AtomicU64::new(0);

/// Length of an option with its padding.
pub(crate) const LEN: usize = 8;

const MAX_OPTIONS: usize = bindings::KAPI_TCP_OPTIONS as usize;

/// Option kinds of TCP.
mod kind {
    pub(super) const EOL: u8 = 0;
    pub(super) const NOP: u8 = 1;
    pub(super) const MD5: u8 = 19;
    pub(super) const AO: u8 = 29;
    /// Second of the two kinds for experiments.
    pub(super) const EXPERIMENT: u8 = 254;
}

/// Kinds by which the option of a saved SYN is replaced, once it is decided what to answer. A client may send
/// these as well: of an option that is marked, the identifier is another one, which only we know.
mod mark {
    pub(super) const ANSWERED: u8 = 253;
    pub(super) const REFUSED: u8 = 252;
}

/// Registers the option, or takes it back.
pub(crate) fn set_option(option: Option<[u8; LEN]>) -> Result {
    let Some(option) = option else {
        OPTION.store(0, Ordering::Release);
        return Ok(());
    };
    // Something to find it by: the kind, a length that ends with the bytes and is even, and an identifier.
    let core = strip(&option);
    if core.len() < 4
        || core.len() & 1 != 0
        || core.first() != Some(&kind::EXPERIMENT)
        || core.get(1).copied().map(usize::from) != Some(core.len())
    {
        return Err(EINVAL);
    }
    let mut secret = [0; LEN];
    crate::util::random_bytes(&mut secret);
    // That of an option which is registered already stays.
    if registered().is_none() {
        SECRET.store(u64::from_ne_bytes(secret), Ordering::Relaxed);
    }
    OPTION
        .compare_exchange(
            0,
            u64::from_ne_bytes(option),
            Ordering::AcqRel,
            Ordering::Relaxed,
        )
        .map_err(|_| EBUSY)?;
    Ok(())
}

fn registered() -> Option<[u8; LEN]> {
    match OPTION.load(Ordering::Acquire) {
        0 => None,
        option => Some(option.to_ne_bytes()),
    }
}

/// The option without its padding.
fn strip(option: &[u8; LEN]) -> &[u8] {
    let start = option.iter().take_while(|b| **b == kind::NOP).count();
    option.get(start..).unwrap_or_default()
}

/// Makes sure that packets of a namespace are looked at.
pub(super) fn prepare(net: &crate::net::Net) -> Result {
    registered().ok_or(ENODEV)?;
    crate::tcp_option::prepare(net)
}

/// Calls `f` with the place, the kind and the whole of each option, until it returns something.
/// Ends at what is malformed.
fn walk<R>(options: &[u8], mut f: impl FnMut(usize, u8, &[u8]) -> Option<R>) -> Option<R> {
    let mut at = 0_usize;
    while let Some(&kind) = options.get(at) {
        let len = match kind {
            kind::EOL => return f(at, kind, &[]),
            kind::NOP => 1,
            _ => usize::from(*options.get(at.checked_add(1)?)?),
        };
        if len == 0 || (len == 1 && kind != kind::NOP) {
            return None;
        }
        let end = at.checked_add(len)?;
        let option = options.get(at..end)?;
        if let Some(result) = f(at, kind, option) {
            return Some(result);
        }
        at = end;
    }
    None
}

/// The option as it is marked by this kind, in a form of this length: the beginning of that.
fn of_kind(option: &[u8; LEN], kind: u8, len: u8) -> [u8; LEN] {
    let secret = SECRET.load(Ordering::Relaxed).to_ne_bytes();
    let padding = LEN.saturating_sub(strip(option).len());
    let mut marked = *option;
    let mut bytes = marked.iter_mut().zip(secret).skip(padding);
    if let Some((byte, _)) = bytes.next() {
        *byte = kind;
    }
    if let Some((byte, _)) = bytes.next() {
        *byte = len;
    }
    if kind != kind::EXPERIMENT {
        for (byte, secret) in bytes {
            *byte ^= secret;
        }
    }
    marked
}

/// An option that was found.
struct Found {
    at: usize,
    /// May also be one of [`mark`].
    kind: u8,
    len: u8,
}

/// Finds the option, or a longer form of it: of even length, as the kernel's own code takes it.
fn find(options: &[u8], option: &[u8; LEN]) -> Option<Found> {
    walk(options, |at, kind, bytes| {
        let len = *bytes.get(1)?;
        let known = matches!(kind, kind::EXPERIMENT | mark::ANSWERED | mark::REFUSED);
        let found = known && len & 1 == 0 && bytes.starts_with(strip(&of_kind(option, kind, len)));
        found.then_some(Found { at, kind, len })
    })
}

/// Gives the option of a saved SYN another kind. False if it is not what was found any more, or a request's SYN belongs
/// to a connection by now.
///
/// # Safety
///
/// `place` is that of the options in which `found` was found, in the SYN of the request `req`, which exists and may have
/// lost it meanwhile; or `req` is null, and a locked sock has the SYN.
unsafe fn write_kind(
    req: *const bindings::request_sock,
    place: *mut u8,
    option: &[u8; LEN],
    found: &Found,
    to: u8,
) -> bool {
    let place = place.wrapping_add(found.at);
    let from = of_kind(option, found.kind, found.len);
    let to = of_kind(option, to, found.len);
    let (from, to) = (strip(&from), strip(&to));
    let len = from.len().min(to.len());
    // SAFETY: By the requirements of this function: the place is looked at only while the SYN is there, and the option is
    // at least as long, of any kind.
    unsafe { bindings::tcp_write_saved_syn(req, place, from.as_ptr(), to.as_ptr(), len) }
}

/// May another option follow these? Not behind the end of the list, nor in what is signed.
fn may_append(options: &[u8]) -> bool {
    let refused = walk(options, |_, kind, _| {
        matches!(kind, kind::EOL | kind::MD5 | kind::AO).then_some(())
    });
    refused.is_none() && options.len().saturating_add(LEN) <= MAX_OPTIONS
}

/// What is known about the option on one socket.
///
/// # Invariants
///
/// While a sock's `icsk_af_ops` is `ops`, `original` holds what it was before.
#[pin_data]
pub(super) struct OptionState {
    /// The next SYN is to carry the option.
    offer: AtomicBool,
    /// A SYN has carried the option.
    offered: AtomicBool,
    /// A listener answers the option.
    answer: AtomicBool,
    /// The user wants SYNs to be saved, or not.
    user_saves: AtomicBool,
    /// Both sides have sent the option.
    negotiated: AtomicBool,
    /// A child: the client has offered the option, and was not answered.
    refused: AtomicBool,
    original: AtomicPtr<c_void>,
    ops: Opaque<bindings::inet_connection_sock_af_ops>,
}

fn native() -> bool {
    // SAFETY: A constant of the kernel.
    unsafe { bindings::tcp_option_native() }
}

impl OptionState {
    pub(super) fn new() -> impl PinInit<Self> {
        pin_init!(Self {
            offer: AtomicBool::new(false),
            offered: AtomicBool::new(false),
            answer: AtomicBool::new(false),
            user_saves: AtomicBool::new(false),
            negotiated: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            original: AtomicPtr::new(ptr::null_mut()),
            ops: Opaque::zeroed(),
        })
    }

    /// The next connect is to offer the option, or not. The sock is locked.
    pub(super) fn offer(&self, sk: *mut bindings::sock, yes: bool) {
        self.negotiated.store(false, Ordering::Relaxed);
        self.offered.store(false, Ordering::Relaxed);
        self.offer.store(yes, Ordering::Relaxed);
        // SAFETY: The sock is locked. Without effect unless native.
        unsafe { bindings::tcp_option_native_set(sk, yes) };
    }

    /// The SYN has been sent: look at the answer. The sock is locked.
    pub(super) fn watch(&self, sk: *mut bindings::sock) {
        // SAFETY: The sock exists.
        let state = unsafe { bindings::sk_state(sk) };
        if !self.offer.load(Ordering::Relaxed) || state != crate::sock::state::SYN_SENT {
            return;
        }
        // SAFETY: The sock is locked; `ops` stays where it is until `unwatch`.
        let original = unsafe { bindings::tcp_watch_connect(sk, self.ops.get(), Some(rx_dst_set)) };
        if !original.is_null() {
            // INVARIANT: As returned. Nobody calls through `ops` while the sock is locked.
            self.original.store(original.cast_mut(), Ordering::Release);
        }
    }

    /// Ends looking. The sock is locked, or this is called from its input path.
    pub(super) fn unwatch(&self, sk: *mut bindings::sock) {
        let original = self.original.load(Ordering::Acquire);
        if !original.is_null() {
            // SAFETY: The sock is locked; `original` is what it had.
            unsafe { bindings::tcp_unwatch_connect(sk, self.ops.get(), original) };
        }
    }

    /// A listener is to answer the option, or not. The sock is locked.
    pub(super) fn answer(&self, sk: *mut bindings::sock, yes: bool) {
        if !yes {
            self.answer.store(false, Ordering::Release);
        }
        // SAFETY: The sock exists.
        let listens = unsafe { bindings::sk_state(sk) } == crate::sock::state::LISTEN;
        // A child has its listener's flag of the moment at which the client's ACK comes: whoever was answered before needs
        // it. A listener refuses by `is_full` alone.
        if native() && (yes || !listens) {
            // SAFETY: The sock is locked.
            unsafe { bindings::tcp_option_native_set(sk, yes) };
        }
        if yes {
            // SAFETY: The sock is locked. It keeps `is_full`, which asks whether the sock is hooked still, and which the
            // module has for as long: a sock stops listening before it is unhooked (`Inner::unhook`), so that no child
            // inherits it, and who called before has returned when the module is unloaded, which waits for readers of RCU.
            unsafe { bindings::tcp_option_native_ask(sk, Some(is_full)) };
            // SAFETY: The sock is locked.
            unsafe { bindings::tcp_save_syn(sk) };
            self.answer.store(true, Ordering::Release);
        }
    }

    /// The user has set whether SYNs are to be saved; false if that must not reach the sock.
    pub(super) fn user_saves(&self, yes: bool) -> bool {
        self.user_saves.store(yes, Ordering::Release);
        yes || !self.answer.load(Ordering::Acquire)
    }

    /// Does the user want SYNs to be saved? If not, they may be saved for us.
    pub(super) fn wants_saved(&self) -> bool {
        self.user_saves.load(Ordering::Acquire)
    }

    /// Learns what was negotiated for a child of `listener`, which nobody else has yet. The child is locked.
    pub(super) fn accepted(&self, sk: *mut bindings::sock, listener: &Self) {
        if let Some(option) = registered() {
            self.learn(sk, &option);
        }
        if !listener.wants_saved() {
            // SAFETY: The sock is locked.
            unsafe { bindings::tcp_forget_syn(sk) };
        }
    }

    fn learn(&self, sk: *mut bindings::sock, option: &[u8; LEN]) {
        let mut buf = [0; MAX_OPTIONS];
        let mut place = ptr::null_mut();
        // SAFETY: The sock is locked; there is room for all options.
        let len = unsafe { bindings::tcp_child_syn_options(sk, buf.as_mut_ptr(), &mut place) };
        let len = len as usize;
        let found = find(buf.get(..len).unwrap_or_default(), option);
        if native() {
            // SAFETY: The sock is locked.
            let answered = unsafe { bindings::tcp_option_native_get(sk) };
            self.negotiated.store(answered, Ordering::Release);
            self.refused
                .store(found.is_some() && !answered, Ordering::Release);
        } else if let Some(found) = found {
            self.negotiated
                .store(found.kind == mark::ANSWERED, Ordering::Release);
            self.refused
                .store(found.kind == mark::REFUSED, Ordering::Release);
            // The user sees the SYN as it was.
            // SAFETY: The place of the options in the saved SYN, which the locked sock keeps.
            unsafe { write_kind(ptr::null(), place, option, &found, kind::EXPERIMENT) };
        }
    }

    pub(super) fn refused(&self) -> bool {
        self.refused.load(Ordering::Acquire)
    }

    pub(super) fn negotiated(&self) -> bool {
        self.negotiated.load(Ordering::Acquire)
    }

    /// Is this, which the connecting sock has got, a SYN-ACK that answers the option it has offered?
    fn is_answered(&self, sk: *const bindings::sock, skb: *const bindings::sk_buff) -> bool {
        // SAFETY: A packet in TCP's input path, whose header is linear.
        if !unsafe { bindings::tcp_skb_is_synack(skb) } {
            return false;
        }
        if native() {
            // SAFETY: TCP's input path has the sock, and has looked for the option already.
            return unsafe { bindings::tcp_option_native_get(sk) };
        }
        self.offered.load(Ordering::Acquire) && has_option(skb)
    }
}

/// In place of `sk_rx_dst_set`: called with the SYN-ACK when a connection is established.
///
/// # Safety
///
/// Called by the kernel for a sock that is watched.
unsafe extern "C" fn rx_dst_set(sk: *mut bindings::sock, skb: *const bindings::sk_buff) {
    // SAFETY: The sock is hooked: unhooking it ends the watch first, with the sock locked.
    let original = unsafe {
        events::with_inner(sk, |inner| {
            let state = &inner.option;
            state.unwatch(sk);
            if state.is_answered(sk, skb) {
                state.negotiated.store(true, Ordering::Release);
            }
            state.original.load(Ordering::Acquire)
        })
    };
    if let Some(original) = original.filter(|original| !original.is_null()) {
        // SAFETY: By the invariant of `OptionState`.
        unsafe { bindings::tcp_call_rx_dst_set(original, sk, skb) };
    }
}

/// Does a packet in TCP's input path have the option?
fn has_option(skb: *const bindings::sk_buff) -> bool {
    let Some(option) = registered() else {
        return false;
    };
    // SAFETY: TCP has made its header linear, and changes nothing in it.
    unsafe { header_options(skb) }.is_some_and(|(options, _)| {
        find(options, &option).is_some_and(|found| found.kind == kind::EXPERIMENT)
    })
}

/// The options in a packet's TCP header, and whether the packet is a plain one that may grow.
///
/// # Safety
///
/// `skb` is a TCP packet, which nobody changes during the lifetime of the result.
unsafe fn header_options<'a>(skb: *const bindings::sk_buff) -> Option<(&'a [u8], bool)> {
    let mut len = 0;
    let mut plain = false;
    // SAFETY: By the requirements of this function.
    let options = unsafe { bindings::tcp_skb_options(skb, &mut len, &mut plain) };
    if options.is_null() {
        return None;
    }
    // SAFETY: As returned.
    let options = unsafe { core::slice::from_raw_parts(options, len as usize) };
    Some((options, plain))
}

/// Puts the option into a packet at the local output hook. False if there is no room.
///
/// # Safety
///
/// `skb` is a TCP packet at the local output hook of `pf`, ours to change.
unsafe fn insert(skb: *mut bindings::sk_buff, pf: u8, option: &[u8; LEN]) -> bool {
    // SAFETY: By the requirements of this function.
    let Some((options, plain)) = (unsafe { header_options(skb) }) else {
        return false;
    };
    if find(options, option).is_some() {
        // With a VRF, packets pass the hook twice.
        return true;
    }
    if !plain || !may_append(options) {
        return false;
    }
    // SAFETY: By the requirements of this function; a plain packet, and the header may be longer.
    let room = unsafe { bindings::tcp_skb_grow(skb, pf, LEN as c_uint) };
    if room.is_null() {
        return false;
    }
    // SAFETY: There is room for as much behind the header.
    unsafe { ptr::copy_nonoverlapping(option.as_ptr(), room, LEN) };
    true
}

const ACCEPT: c_uint = bindings::NF_ACCEPT;
const DROP: c_uint = bindings::NF_DROP;
const STOLEN: c_uint = bindings::NF_STOLEN;

/// The hook, for packets that may be a SYN or a SYN-ACK.
///
/// # Safety
///
/// Called at netfilter's local output hook, under RCU.
pub(crate) unsafe extern "C" fn hook(
    _priv: *mut c_void,
    skb: *mut bindings::sk_buff,
    state: *const bindings::nf_hook_state,
) -> c_uint {
    // SAFETY: By the requirements of this function.
    let pf = unsafe { (*state).pf };
    let mut owner = ptr::null_mut();
    let mut req = ptr::null_mut();
    // SAFETY: By the requirements of this function.
    let kind = unsafe { bindings::tcp_syn_kind(skb, pf, &mut owner, &mut req) };
    if kind == bindings::kapi_syn_kind_KAPI_SYN_NONE {
        return ACCEPT;
    }
    let answers = kind == bindings::kapi_syn_kind_KAPI_SYN_ANSWER;
    // SAFETY: As told by the kind, a sock that exists as long as the packet, and so does a request that is answered.
    let ours = unsafe { events::is_hooked(owner) || (answers && bindings::tcp_request_moves(req)) };
    if !ours {
        return ACCEPT;
    }
    let Some(option) = registered() else {
        return ACCEPT;
    };
    if kind == bindings::kapi_syn_kind_KAPI_SYN_OFFER {
        // SAFETY: A connecting sock with our callbacks, and its packet.
        unsafe { syn(owner, skb, pf, &option) }
    } else {
        // SAFETY: A listener, a request of it, and its packet.
        unsafe { syn_ack(owner, req, skb, pf, &option) }
    }
}

/// # Safety
///
/// `sk` is hooked, and `skb` its SYN.
unsafe fn syn(
    sk: *mut bindings::sock,
    skb: *mut bindings::sk_buff,
    pf: u8,
    option: &[u8; LEN],
) -> c_uint {
    let add = |inner: &super::Inner| {
        let state = &inner.option;
        // SAFETY: By the requirements of this function.
        if state.offer.load(Ordering::Acquire) && unsafe { insert(skb, pf, option) } {
            state.offered.store(true, Ordering::Release);
        }
    };
    // SAFETY: By the requirements of this function.
    unsafe { events::with_inner(sk, add) };
    ACCEPT
}

/// Does a listener answer the option of a client that has offered it?
///
/// # Safety
///
/// `listener` is hooked, or was, and exists meanwhile.
unsafe fn answers(listener: *mut bindings::sock, peer: Option<IpAddr>) -> bool {
    let look = |inner: &super::Inner| {
        let answer = inner.option.answer.load(Ordering::Acquire);
        // SAFETY: `owner` changes with the write lock held only; we have the read lock.
        answer.then(|| unsafe { &*inner.owner.get() }.clone())
    };
    // SAFETY: By the requirements of this function.
    let Some(Some(owner)) = (unsafe { events::with_inner(listener, look) }) else {
        return false;
    };
    // SAFETY: By the requirements of this function.
    let tcp = unsafe { super::TcpSock::from_ptr(listener) };
    owner.is_none_or(|owner| owner.answers(tcp, peer))
}

/// What a kernel that knows the option asks before it answers one, and before there is a request.
///
/// # Safety
///
/// Called by TCP, in a softirq, for a listener that answers the option, or did.
unsafe extern "C" fn is_full(listener: *const bindings::sock) -> bool {
    // SAFETY: By the requirements of this function.
    !unsafe { answers(listener.cast_mut(), None) }
}

/// Where a request comes from.
///
/// # Safety
///
/// `req` is a request that exists, to be answered by a packet of `pf`.
unsafe fn peer_of(req: *mut bindings::request_sock, pf: u8) -> IpAddr {
    let mut peer = [0; 16];
    // SAFETY: By the requirements of this function; there is room for an address.
    unsafe { bindings::tcp_request_peer(req, pf, peer.as_mut_ptr()) };
    Ipv6Addr::from(peer).to_canonical()
}

/// # Safety
///
/// `listener` is hooked, or has ended, `req` a request of it, and `skb` the request's SYN-ACK, ours to free.
unsafe fn syn_ack(
    listener: *mut bindings::sock,
    req: *mut bindings::request_sock,
    skb: *mut bindings::sk_buff,
    pf: u8,
    option: &[u8; LEN],
) -> c_uint {
    let mut buf = [0; MAX_OPTIONS];
    let mut place = ptr::null_mut();
    // SAFETY: The request exists as long as the packet; there is room for all options.
    let len = unsafe { bindings::tcp_request_syn_options(req, buf.as_mut_ptr(), &mut place) };
    if len == ENOENT.to_errno() {
        // An ACK has come on another CPU while this was being repeated, and nobody waits for it any more; or this is the
        // first one of a copy for another listener, which is hashed only if it goes well. Without the SYN, it would look like
        // another answer than the first. It counts as lost on its way: the copy repeats it.
        // SAFETY: By the requirements of this function; the hook says that it has taken the packet.
        unsafe { bindings::tcp_free_skb(skb) };
        return STOLEN;
    }
    let Ok(len) = usize::try_from(len) else {
        // The listener has ended, and the client's SYN has come again before the copy is made: that is to be as soon as it
        // would be without this.
        return DROP;
    };
    let Some(found) = find(buf.get(..len).unwrap_or_default(), option) else {
        return ACCEPT;
    };
    match found.kind {
        mark::REFUSED => ACCEPT,
        mark::ANSWERED => {
            // The client may know of the answer: better none than another one. It is repeated.
            // SAFETY: By the requirements of this function.
            if unsafe { insert(skb, pf, option) } {
                ACCEPT
            } else {
                DROP
            }
        }
        _ => {
            // SAFETY: The request exists as long as its packet.
            let peer = unsafe { peer_of(req, pf) };
            // SAFETY: The listener exists as long as the request.
            let answer = unsafe { answers(listener, Some(peer)) };
            // SAFETY: By the requirements of this function.
            let done = answer && unsafe { insert(skb, pf, option) };
            let mark = if done { mark::ANSWERED } else { mark::REFUSED };
            // SAFETY: The place of the options in the saved SYN of the request, which exists as long as its packet.
            if unsafe { write_kind(req, place, option, &found, mark) } {
                ACCEPT
            } else {
                // The SYN has come twice, and the other one was faster: only that is answered, since both answers have to
                // be the same.
                DROP
            }
        }
    }
}

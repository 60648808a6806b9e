// SPDX-License-Identifier: GPL-2.0

//! Generic netlink families.
//!
//! C header: [`include/net/genetlink.h`](srctree/include/net/genetlink.h)

use crate::bindings;
use crate::errno::EOPNOTSUPP;
use crate::gate::Gate;
use crate::grow::Grow;
use crate::net::Net;
pub use crate::netlink::{
    Attr,
    Attrs,
    Changes,
    Cursor,
    Kind,
    Writer, //
};
use crate::new_gate;
use core::marker::PhantomData;
use core::ptr::{
    self,
    NonNull, //
};
use kernel::error::{
    from_result,
    to_result, //
};
use kernel::prelude::*;
use kernel::types::Opaque;

/// An attribute of a request.
#[derive(Clone, Copy)]
pub struct Rule {
    /// Its number.
    pub number: u16,
    /// What it is called when something is wrong with it.
    pub name: &'static CStr,
    /// What it has to look like.
    pub kind: Kind,
}

/// The attributes of a request. Others are ignored, or refused by commands which say
/// [`Op::strict`]. Of an attribute that comes twice the last one counts.
pub type Policy = &'static [Rule];

/// A generic netlink family. The type is a tag.
pub trait Family: Sized + 'static {
    /// The name by which user space finds it.
    const NAME: &'static CStr;
    /// The version.
    const VERSION: u8;
    /// Its commands; several entries for a command are not allowed.
    const OPS: &'static [Op];
    /// The names of its multicast groups.
    const GROUPS: &'static [&'static CStr] = &[];
}

/// A command of a family.
#[derive(Clone, Copy)]
pub struct Op {
    cmd: u8,
    flags: u8,
    strict: bool,
    policy: Policy,
    doit: Option<fn(&mut Request<'_>) -> Result>,
    dump: Option<fn(&mut Dump<'_>) -> Result>,
}

impl Op {
    /// A command that does nothing yet.
    pub const fn new(cmd: u8) -> Self {
        Self {
            cmd,
            flags: 0,
            strict: false,
            policy: &[],
            doit: None,
            dump: None,
        }
    }

    /// What the command does.
    pub const fn doit(mut self, f: fn(&mut Request<'_>) -> Result) -> Self {
        self.doit = Some(f);
        self
    }

    /// What the command lists. Called again with the cursor where it was left, until it adds no
    /// message. Whoever asks before the module's `init` is over gets `EBUSY`.
    pub const fn dump(mut self, f: fn(&mut Dump<'_>) -> Result) -> Self {
        self.dump = Some(f);
        self
    }

    /// Only for the administrator of the host (`CAP_NET_ADMIN`).
    pub const fn admin(mut self) -> Self {
        self.flags = bindings::GENL_ADMIN_PERM as u8;
        self
    }

    /// Only for the administrator of the namespace (`CAP_NET_ADMIN` in its user namespace).
    pub const fn net_admin(mut self) -> Self {
        self.flags = bindings::GENL_UNS_ADMIN_PERM as u8;
        self
    }

    /// What its attributes have to look like.
    pub const fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Attributes that are not in the policy are refused, instead of ignored.
    pub const fn strict(mut self) -> Self {
        self.strict = true;
        self
    }
}

/// A request.
///
/// # Invariants
///
/// `info` is of a command in progress.
pub struct Request<'a> {
    info: &'a mut bindings::genl_info,
    policy: Policy,
}

/// The attributes of a request.
///
/// # Safety
///
/// `info` is of a command in progress, for the lifetime of the result.
unsafe fn attrs<'a>(info: *const bindings::genl_info) -> Attrs<'a> {
    // SAFETY: By the requirements of this function; all messages of a family begin alike.
    let bytes = unsafe {
        let nlh = (*info).nlhdr;
        let len = usize::try_from(bindings::nlmsg_payload_len(nlh)).unwrap_or(0);
        let payload = bindings::nlmsg_payload(nlh.cast_mut().cast()).cast::<u8>();
        core::slice::from_raw_parts(payload, len)
    };
    Attrs::new(
        bytes
            .get(size_of::<bindings::genlmsghdr>()..)
            .unwrap_or_default(),
    )
}

/// Looks at what a request says, and explains what is wrong with it.
///
/// # Safety
///
/// `info` is of a command in progress.
unsafe fn check(op: &Op, info: *mut bindings::genl_info) -> Result {
    // SAFETY: By the requirements of this function.
    let mut attrs = unsafe { attrs(info) };
    for attr in attrs.by_ref() {
        let Some(rule) = op.policy.iter().find(|rule| rule.number == attr.number()) else {
            if op.strict {
                // SAFETY: As above; the attribute lies whole in the request.
                unsafe { bindings::genl_explain_unknown(info, attr.as_ptr()) };
                return Err(EINVAL);
            }
            continue;
        };
        if let Err((error, text)) = rule.kind.check(attr.bytes()) {
            let (name, text) = (rule.name.as_char_ptr(), text.as_char_ptr());
            // SAFETY: As above; the texts live for ever.
            unsafe { bindings::genl_explain(info, attr.as_ptr(), name, text) };
            return Err(error);
        }
    }
    if op.strict && !attrs.rest().is_empty() {
        let text = c"the request ends with bytes that are no attribute".as_char_ptr();
        // SAFETY: As above.
        unsafe { bindings::genl_explain(info, core::ptr::null(), core::ptr::null(), text) };
        return Err(EINVAL);
    }
    Ok(())
}

impl<'a> Request<'a> {
    /// The namespace of whoever asks.
    pub fn net(&self) -> &'a Net {
        // SAFETY: By the type invariant; the asking socket keeps its namespace.
        unsafe { Net::from_ptr(bindings::genl_net(self.info)) }
    }

    /// The attribute of a number, if it is there. The last one, of several.
    pub fn attr(&self, number: u16) -> Option<Attr<'a>> {
        // SAFETY: By the type invariant.
        let attrs = unsafe { attrs(self.info) };
        attrs.filter(|attr| attr.number() == number).last()
    }

    fn name(&self, number: u16) -> &'static CStr {
        let rule = self.policy.iter().find(|rule| rule.number == number);
        rule.map_or(c"attribute", |rule| rule.name)
    }

    /// The attribute of a number; `EINVAL`, with an explanation, if it is missing.
    pub fn required(&mut self, number: u16) -> Result<Attr<'a>> {
        if let Some(attr) = self.attr(number) {
            return Ok(attr);
        }
        let name = self.name(number).as_char_ptr();
        // SAFETY: By the type invariant; the name lives for ever.
        unsafe { bindings::genl_missing(self.info, number, name) };
        Err(EINVAL)
    }

    /// Explains an error to whoever asks; returns it.
    pub fn fail(&mut self, error: Error, text: &'static CStr) -> Error {
        let (attr, name) = (core::ptr::null(), core::ptr::null());
        // SAFETY: By the type invariant; the text lives for ever.
        unsafe { bindings::genl_explain(self.info, attr, name, text.as_char_ptr()) };
        error
    }

    /// Explains what is wrong with an attribute; returns `error`.
    pub fn fail_at(&mut self, number: u16, error: Error, text: &'static CStr) -> Error {
        let attr = self
            .attr(number)
            .map_or(core::ptr::null(), |attr| attr.as_ptr());
        let name = self.name(number).as_char_ptr();
        // SAFETY: By the type invariant; the texts live for ever, and the attribute lies whole in
        // the request.
        unsafe { bindings::genl_explain(self.info, attr, name, text.as_char_ptr()) };
        error
    }

    /// Answers with a message of the command `cmd`, which `f` fills.
    pub fn reply(&mut self, cmd: u8, f: impl FnOnce(&mut Writer<'_>) -> Result) -> Result {
        let mut message = Message::new()?;
        message.write(
            self.info.family,
            self.info.snd_portid,
            self.info.snd_seq,
            0,
            cmd,
            f,
        )?;
        self.send(message)
    }

    /// Answers with as many messages as `f` makes, up to what one buffer holds, and one that says
    /// that this was all.
    pub fn reply_list(&mut self, f: impl FnOnce(&mut List<'_>) -> Result) -> Result {
        let mut message = Message::new()?;
        f(&mut List {
            message: &mut message,
            info: self.info,
        })?;
        let skb = message.0.as_ptr();
        let done = bindings::NLMSG_DONE as c_int;
        let flags = bindings::NLM_F_MULTI as c_int;
        let len = size_of::<c_int>() as c_int;
        // SAFETY: The message is ours.
        let nlh = unsafe {
            let (portid, seq) = (self.info.snd_portid, self.info.snd_seq);
            bindings::nlmsg_start(skb, portid, seq, done, len, flags)
        };
        if nlh.is_null() {
            return Err(EMSGSIZE);
        }
        // SAFETY: There is room for the number behind the header that was just written.
        unsafe {
            bindings::nlmsg_payload(nlh).cast::<c_int>().write(0);
            bindings::nlmsg_finish(skb, nlh);
        }
        self.send(message)
    }

    fn send(&self, message: Message) -> Result {
        let info = core::ptr::from_ref(&*self.info).cast_mut();
        // SAFETY: By the type invariant; the message is consumed, `info` is only read.
        to_result(unsafe { bindings::genl_reply(message.into_raw().as_ptr(), info) })
    }
}

/// An answer of several messages.
pub struct List<'a> {
    message: &'a mut Message,
    info: &'a bindings::genl_info,
}

impl List<'_> {
    /// Room that the message at the end needs.
    const END: usize = 32;

    /// Adds a message of the command `cmd`, which `f` fills. False if there is no room for it.
    pub fn message(&mut self, cmd: u8, f: impl FnOnce(&mut Writer<'_>) -> Result) -> Result<bool> {
        let flags = bindings::NLM_F_MULTI as c_int;
        let (family, portid, seq) = (self.info.family, self.info.snd_portid, self.info.snd_seq);
        let written = self
            .message
            .write(family, portid, seq, flags, cmd, |writer| {
                f(writer)?;
                // Not so much that the end would find no room.
                if writer.room() < Self::END {
                    return Err(EMSGSIZE);
                }
                Ok(())
            });
        match written {
            Ok(()) => Ok(true),
            Err(e) if e == EMSGSIZE => Ok(false),
            Err(e) => Err(e),
        }
    }
}

/// A list in progress.
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
    fn info(&self) -> *mut bindings::genl_info {
        // SAFETY: By the type invariant.
        unsafe { bindings::genl_dump_info(self.cb.as_ptr()) }
    }

    /// The namespace of whoever asks.
    pub fn net(&self) -> &'a Net {
        // SAFETY: By the type invariant; the asking socket keeps its namespace.
        unsafe { Net::from_ptr(bindings::genl_net(self.info())) }
    }

    /// The attribute of a number in the request, if it is there.
    pub fn attr(&self, number: u16) -> Option<Attr<'a>> {
        // SAFETY: By the type invariant.
        let attrs = unsafe { attrs(self.info()) };
        attrs.filter(|attr| attr.number() == number).last()
    }

    /// Where to go on. To be left so that the next call goes on behind the last message.
    pub fn cursor(&mut self) -> &mut Cursor {
        // SAFETY: By the type invariant.
        unsafe { crate::netlink::cursor(self.cb.as_ptr()) }
    }

    /// Says how often the list has changed until now: to be called before each look at it. Where it
    /// changes during a dump, the messages tell the reader (`NLM_F_DUMP_INTR`): nothing is missing that
    /// was there all the time, but what was listed need not have been there at one and the same moment.
    pub fn as_of(&mut self, changes: u32) {
        // SAFETY: By the type invariant. Zero would stand for a list that never changes.
        unsafe { (*self.cb.as_ptr()).seq = changes | 1 << 31 };
    }

    /// The same for readers who ask for lists of one moment (`NLM_F_ATOMIC`): for lists that others have defined, whose
    /// readers take that flag for an error.
    pub fn as_of_if_asked(&mut self, changes: u32) {
        // SAFETY: By the type invariant; the request stays for as long as the dump.
        let flags = unsafe { (*(*self.cb.as_ptr()).nlh).nlmsg_flags };
        if u32::from(flags) & bindings::NLM_F_ATOMIC != 0 {
            self.as_of(changes);
        }
    }

    /// Adds a message of the command `cmd`, which `f` fills. False if there was no room for it:
    /// nothing was added, and the caller should return.
    pub fn message(&mut self, cmd: u8, f: impl FnOnce(&mut Writer<'_>) -> Result) -> Result<bool> {
        if self.full {
            return Ok(false);
        }
        // SAFETY: By the type invariant.
        let (now, before) = unsafe { ((*self.cb.as_ptr()).seq, (*self.cb.as_ptr()).prev_seq) };
        // SAFETY: By the type invariant.
        let (family, seq, portid) = unsafe {
            (
                (*self.info()).family,
                (*(*self.cb.as_ptr()).nlh).nlmsg_seq,
                bindings::netlink_portid((*self.cb.as_ptr()).skb),
            )
        };
        let mut flags = bindings::NLM_F_MULTI;
        if before != 0 && before != now {
            flags |= bindings::NLM_F_DUMP_INTR;
        }
        // SAFETY: By the type invariant.
        match unsafe { write(self.skb, family, portid, seq, flags as c_int, cmd, f) } {
            Ok(()) => {
                // SAFETY: As above. The kernel compares in the same way at the end.
                unsafe { (*self.cb.as_ptr()).prev_seq = now };
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
}

/// Writes a message at the end of `skb`; if that fails, it is as if it had not been begun.
///
/// # Safety
///
/// `skb` is a message buffer that only we write to; `family` a registered family.
unsafe fn write(
    skb: NonNull<bindings::sk_buff>,
    family: *const bindings::genl_family,
    portid: u32,
    seq: u32,
    flags: c_int,
    cmd: u8,
    f: impl FnOnce(&mut Writer<'_>) -> Result,
) -> Result {
    // SAFETY: By the requirements of this function.
    let header = unsafe { bindings::genl_start(skb.as_ptr(), portid, seq, family, flags, cmd) };
    if header.is_null() {
        return Err(EMSGSIZE);
    }
    // SAFETY: By the requirements of this function.
    let result = f(&mut unsafe { Writer::from_raw(skb) });
    // SAFETY: The header was begun above.
    unsafe {
        match result {
            Ok(()) => bindings::genl_end(skb.as_ptr(), header),
            Err(_) => bindings::genl_cancel(skb.as_ptr(), header),
        }
    }
    result
}

/// Room for a message, as large as the usual buffer of a reader.
const SIZE: usize = 4000;

/// A message that belongs to us.
struct Message(NonNull<bindings::sk_buff>);

impl Message {
    fn new() -> Result<Self> {
        // SAFETY: Process context, as all of this module.
        let skb = unsafe { bindings::netlink_new(SIZE) };
        Ok(Self(NonNull::new(skb).ok_or(ENOMEM)?))
    }

    fn write(
        &mut self,
        family: *const bindings::genl_family,
        portid: u32,
        seq: u32,
        flags: c_int,
        cmd: u8,
        f: impl FnOnce(&mut Writer<'_>) -> Result,
    ) -> Result {
        // SAFETY: The message is ours; the callers give registered families.
        unsafe { write(self.0, family, portid, seq, flags, cmd, f) }
    }

    fn into_raw(self) -> NonNull<bindings::sk_buff> {
        core::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        // SAFETY: The message is ours.
        unsafe { bindings::netlink_free(self.0.as_ptr()) }
    }
}

/// # Safety
///
/// Called by the kernel for a command of the family `F`.
unsafe extern "C" fn doit<F: Family>(
    _skb: *mut bindings::sk_buff,
    info: *mut bindings::genl_info,
) -> c_int {
    from_result(|| {
        // SAFETY: The command is in progress.
        let info = unsafe { &mut *info };
        // SAFETY: As above.
        let cmd = unsafe { (*info.genlhdr).cmd };
        let op = F::OPS.iter().find(|op| op.cmd == cmd).ok_or(EOPNOTSUPP)?;
        let f = op.doit.ok_or(EOPNOTSUPP)?;
        // SAFETY: As above.
        unsafe { check(op, info) }?;
        f(&mut Request {
            info,
            policy: op.policy,
        })?;
        Ok(0)
    })
}

/// # Safety
///
/// Called by the kernel before the first call of [`dumpit`] for a list.
unsafe extern "C" fn start<F: Family>(cb: *mut bindings::netlink_callback) -> c_int {
    from_result(|| {
        // SAFETY: The dump is in progress.
        let (cmd, info) = unsafe { (bindings::genl_dump_cmd(cb), bindings::genl_dump_info(cb)) };
        let op = F::OPS.iter().find(|op| op.cmd == cmd).ok_or(EOPNOTSUPP)?;
        // A list may wait for its reader. Unregistering does not wait for that, nor is a module kept whose `init` fails.
        // SAFETY: As above.
        if !unsafe { bindings::genl_is_loaded(info) } {
            let text = c"the module is not loaded yet".as_char_ptr();
            // SAFETY: As above; the text lives for ever.
            unsafe { bindings::genl_explain(info, ptr::null(), ptr::null(), text) };
            return Err(EBUSY);
        }
        // SAFETY: As above.
        unsafe { check(op, info) }?;
        Ok(0)
    })
}

/// # Safety
///
/// Called by the kernel for a list of the family `F`.
unsafe extern "C" fn dumpit<F: Family>(
    skb: *mut bindings::sk_buff,
    cb: *mut bindings::netlink_callback,
) -> c_int {
    from_result(|| {
        // SAFETY: The dump is in progress.
        let cmd = unsafe { bindings::genl_dump_cmd(cb) };
        let op = F::OPS.iter().find(|op| op.cmd == cmd).ok_or(EOPNOTSUPP)?;
        let f = op.dump.ok_or(EOPNOTSUPP)?;
        let mut dump = Dump {
            skb: NonNull::new(skb).ok_or(EINVAL)?,
            cb: NonNull::new(cb).ok_or(EINVAL)?,
            full: false,
            written: false,
            _dump: PhantomData,
        };
        f(&mut dump)?;
        // What is in the buffer is delivered, and the kernel asks for more unless it is empty.
        // SAFETY: As above.
        Ok(unsafe { (*skb).len }.try_into()?)
    })
}

/// A registered family. Dropping it unregisters, and waits for commands and lists in progress: a
/// command must not do that, nor have a share in what does, see [`Registration::unregister`].
pub struct Registration<F: Family> {
    tables: Pin<KBox<Tables>>,
    _family: PhantomData<fn() -> F>,
}

#[pin_data]
struct Tables {
    #[pin]
    family: Opaque<bindings::genl_family>,
    ops: KVec<bindings::genl_ops>,
    groups: KVec<bindings::genl_multicast_group>,
    /// Open while it is registered, so that no message goes to groups that are somebody else's by then.
    #[pin]
    gate: Gate,
}

// SAFETY: Unregistering is possible on any thread.
unsafe impl<F: Family> Send for Registration<F> {}
// SAFETY: Multicasting is possible from several threads at once.
unsafe impl<F: Family> Sync for Registration<F> {}

/// Who gets a message of a namespace.
pub enum Audience<'a> {
    /// All who hear the namespace: its own sockets, and those of others that listen to it
    /// (`NETLINK_LISTEN_ALL_NSID`).
    All,
    /// The same without the sockets of another namespace, which is sent the message, too.
    NotOf(&'a Net),
    /// Its own sockets alone.
    Own,
}

/// Copies a name into a field of a C structure, which ends with NUL.
fn copy_name<C: Copy, const N: usize>(to: &mut [C; N], from: &CStr) -> Result
where
    u8: Into<C>,
{
    let bytes = from.to_bytes();
    if bytes.len() >= N {
        return Err(EINVAL);
    }
    for (to, from) in to.iter_mut().zip(bytes) {
        *to = (*from).into();
    }
    Ok(())
}

impl<F: Family> Registration<F> {
    /// Registers the family.
    pub fn new(module: &'static ThisModule) -> Result<Self> {
        let mut ops = KVec::with_capacity(F::OPS.len(), GFP_KERNEL)?;
        let (mut last, mut max) = (0_u8, 0_u16);
        for op in F::OPS {
            last = last.max(op.cmd);
            max = op.policy.iter().map(|rule| rule.number).fold(max, u16::max);
            // Attributes are looked at by `check`, which can say more about them than the kernel.
            let loose = bindings::genl_validate_flags_GENL_DONT_VALIDATE_STRICT
                | bindings::genl_validate_flags_GENL_DONT_VALIDATE_DUMP_STRICT;
            ops.append(
                bindings::genl_ops {
                    cmd: op.cmd,
                    doit: op
                        .doit
                        .map(|_| doit::<F> as unsafe extern "C" fn(_, _) -> _),
                    dumpit: op
                        .dump
                        .map(|_| dumpit::<F> as unsafe extern "C" fn(_, _) -> _),
                    start: op.dump.map(|_| start::<F> as unsafe extern "C" fn(_) -> _),
                    flags: op.flags,
                    validate: loose as u8,
                    ..pin_init::zeroed()
                },
                GFP_KERNEL,
            )?;
        }
        let mut groups = KVec::with_capacity(F::GROUPS.len(), GFP_KERNEL)?;
        for name in F::GROUPS {
            let mut group: bindings::genl_multicast_group = pin_init::zeroed();
            copy_name(&mut group.name, name)?;
            groups.append(group, GFP_KERNEL)?;
        }

        let mut family = bindings::genl_family {
            version: F::VERSION.into(),
            maxattr: max.into(),
            module: module.as_ptr(),
            n_ops: ops.len().try_into()?,
            ops: ops.as_ptr(),
            n_mcgrps: groups.len().try_into()?,
            mcgrps: groups.as_ptr(),
            // Commands from here on would be validated more strictly than those of old.
            resv_start_op: last.saturating_add(1),
            ..pin_init::zeroed()
        };
        family.set_netnsok(1);
        family.set_parallel_ops(1);
        copy_name(&mut family.name, F::NAME)?;

        // The vectors keep their contents where they are.
        let tables = KBox::pin_init(
            pin_init!(Tables {
                family: Opaque::new(family),
                ops: ops,
                groups: groups,
                gate <- new_gate!("genl_registered"),
            }),
            GFP_KERNEL,
        )?;
        // SAFETY: The tables stay where they are until unregistered.
        to_result(unsafe { bindings::genl_register_family(tables.family.get()) })?;
        Ok(Self {
            tables,
            _family: PhantomData,
        })
    }

    /// Unregisters, and waits for commands and lists in progress; nothing is sent any more. To be
    /// called by a module's exit, where the registration has other owners: nothing else keeps a
    /// command from running longer than the module is there. Not by a command.
    pub fn unregister(&self) {
        // Not held while waiting for commands: one may send something.
        if self.tables.gate.close() {
            // SAFETY: Registered in `new`, and unregistered once.
            unsafe { bindings::genl_unregister_family(self.tables.family.get()) };
        }
    }

    /// Whether a group has members in any namespace.
    pub fn has_listeners(&self, group: u32) -> bool {
        // SAFETY: The family is or was registered: only its numbers are looked at.
        unsafe { bindings::genl_listeners(self.tables.family.get(), group) }
    }

    /// Tells the members of a group in a namespace that they have missed something: their next read is `ENOBUFS`. May
    /// sleep, and does nothing after [`Registration::unregister`].
    pub fn overrun(&self, net: &Net, group: u32) {
        let Some(_inside) = self.tables.gate.enter() else {
            return;
        };
        // SAFETY: The family is registered while the gate is open, and the namespace exists.
        unsafe { bindings::genl_overrun(self.tables.family.get(), net.as_ptr(), group) }
    }

    /// Sends a message of a namespace to the members of a group. `ESRCH` if there are none, or
    /// after [`Registration::unregister`]. Sleeps, and runs what filters the members have, in any namespace.
    pub fn multicast(
        &self,
        net: &Net,
        audience: Audience<'_>,
        group: u32,
        cmd: u8,
        f: impl FnOnce(&mut Writer<'_>) -> Result,
    ) -> Result {
        let _inside = self.tables.gate.enter().ok_or(ESRCH)?;
        let family = self.tables.family.get();
        let mut message = Message::new()?;
        message.write(family, 0, 0, 0, cmd, f)?;
        let net = net.as_ptr();
        let (only, except) = match audience {
            Audience::All => (ptr::null(), ptr::null()),
            Audience::NotOf(other) => (ptr::null(), other.as_ptr().cast_const()),
            Audience::Own => (net.cast_const(), ptr::null()),
        };
        // SAFETY: The family is registered while the gate is open, the namespaces exist; the message is consumed.
        to_result(unsafe {
            bindings::genl_multicast(
                family,
                net,
                message.into_raw().as_ptr(),
                group,
                only,
                except,
            )
        })
    }
}

impl<F: Family> Drop for Registration<F> {
    fn drop(&mut self) {
        self.unregister();
    }
}

// SPDX-License-Identifier: GPL-2.0

//! A registered family: its tables, how its socks come and go, and the list of all of them.

use super::addr::{
    AF_INET,
    AF_INET6, //
};
use super::ops::proto_ops;
use super::{
    Extra,
    Family,
    Kind,
    Origin,
    Sk,
    Socket, //
};
use crate::bindings;
use crate::errno;
use crate::net::Net;
use core::any::TypeId;
use core::mem::{
    offset_of,
    MaybeUninit, //
};
use core::ptr::{
    self,
    NonNull, //
};
use core::sync::atomic::{
    AtomicPtr,
    Ordering, //
};
use kernel::error::{
    from_result,
    to_result, //
};
use kernel::prelude::*;
use kernel::sync::{aref::ARef, rcu};
use kernel::types::Opaque;

/// All that the kernel points to while a family is registered.
struct Tables {
    native: Opaque<bindings::proto>,
    native6: Opaque<bindings::proto>,
    inet: Opaque<bindings::proto>,
    inet6: Opaque<bindings::proto>,
    native_ops: bindings::proto_ops,
    inet_ops: bindings::proto_ops,
    inet6_ops: bindings::proto_ops,
    family: bindings::net_proto_family,
    inet_switch: Opaque<bindings::inet_protosw>,
    inet6_switch: Opaque<bindings::inet_protosw>,
    list: Opaque<bindings::kapi_sk_list>,
    /// The type of the value in the family's socks.
    socket: TypeId,
}

/// The tables of the one family that may be registered at a time: the kernel's `create` callback
/// brings nothing to find them by. Null if there is none.
static TABLES: AtomicPtr<Tables> = AtomicPtr::new(ptr::null_mut());

fn tables<'a>() -> Option<&'a Tables> {
    let tables = NonNull::new(TABLES.load(Ordering::Acquire))?;
    // SAFETY: Set from before registering until after unregistering, which waits for sockets to be
    // gone: every sock and every file of the family holds a reference to the module. Only these call this, and the kernel's
    // calls that make the first ones.
    Some(unsafe { tables.as_ref() })
}

/// Those of the family `T`, if it is the registered one, for callers that may have no reference to the module.
fn tables_of<T: Socket>(_reader: &rcu::Guard) -> Option<&Tables> {
    let tables = NonNull::new(TABLES.load(Ordering::Acquire))?;
    // SAFETY: They are freed only when all readers of RCU have gone that may have found them.
    let tables = unsafe { tables.as_ref() };
    (tables.socket == TypeId::of::<T>()).then_some(tables)
}

/// Makes a new sock one of the family `T`.
///
/// # Safety
///
/// `sk` was just allocated for a protocol of `T` and set up, and nobody else uses it.
pub(super) unsafe fn adopt<T: Socket, E>(
    sk: *mut bindings::sock,
    kind: Kind,
    init: impl PinInit<T, E>,
) -> Result
where
    Error: From<E>,
{
    let tables = tables().ok_or(ENODEV)?;
    let this = sk.cast::<Sk<T>>();
    // SAFETY: A protocol of `T` has objects of the size of `Sk<T>`.
    let data = unsafe { &raw mut (*this).data }.cast::<MaybeUninit<T>>();
    // SAFETY: As above.
    let extra = unsafe { &raw mut (*this).extra }.cast::<MaybeUninit<Extra>>();

    #[cfg(before_7_3)]
    // SAFETY: `data` is valid for writes; a sock never moves, and is not used if this fails.
    unsafe { init.__pinned_init(data.cast()) }?;
    #[cfg(not(before_7_3))]
    // SAFETY: As above.
    unsafe { pin_init::raw_try_init(data.cast(), init) }?;

    // From here on the sock is destroyed by our destructor, and the type invariant holds.
    // SAFETY: The sock exists and is ours alone.
    let parent_destruct = unsafe { bindings::sk_swap_destruct(sk, Some(destruct::<T>)) };
    // SAFETY: `extra` is valid for writes.
    unsafe {
        extra.write(MaybeUninit::new(Extra {
            kind,
            kept: AtomicPtr::new(ptr::null_mut()),
            parent_destruct,
            link: Opaque::uninit(),
        }))
    };
    // SAFETY: As above; the names live for ever.
    unsafe {
        bindings::sk_lock_class(sk, T::NAMES.spin.as_char_ptr(), T::NAMES.lock.as_char_ptr())
    };
    // SAFETY: As above.
    unsafe { bindings::sk_inuse(sk, 1) };
    // SAFETY: `extra` was just initialised.
    let link = unsafe { (*extra).assume_init_ref() }.link.get();
    // SAFETY: The list exists while there are socks; the link goes with the sock, which leaves the
    // list in `destruct`.
    unsafe { bindings::sk_list_add(tables.list.get(), link, sk) };
    // SAFETY: The type invariant holds, as said above.
    T::created(unsafe { Sk::from_ptr(sk) });
    Ok(())
}

/// # Safety
///
/// Called by the kernel for a sock made by [`adopt`], when its last reference is gone.
unsafe extern "C" fn destruct<T: Socket>(sk: *mut bindings::sock) {
    let this = sk.cast::<Sk<T>>();
    // SAFETY: Nobody else refers to the sock, no call either; `adopt` has initialised it.
    unsafe { Sk::<T>::from_ptr(sk).let_go() };
    // SAFETY: Initialised by `adopt`, and nobody else refers to the sock.
    let extra =
        unsafe { (*(&raw mut (*this).extra).cast::<MaybeUninit<Extra>>()).assume_init_mut() };
    if let Some(tables) = tables() {
        // SAFETY: Put into the list by `adopt`.
        unsafe { bindings::sk_list_del(tables.list.get(), extra.link.get()) };
    }
    // SAFETY: The sock is ours alone.
    unsafe { bindings::sk_inuse(sk, -1) };
    // SAFETY: As above.
    unsafe { bindings::sk_mark_dead(sk) };
    // SAFETY: Initialised by `adopt`; not used any more after this.
    unsafe { (*(&raw mut (*this).data).cast::<MaybeUninit<T>>()).assume_init_drop() };
    if let Some(parent) = extra.parent_destruct {
        // SAFETY: What the kernel had set for this sock.
        unsafe { parent(sk) };
    }
}

/// # Safety
///
/// Called by the kernel for a sock of `AF_INET` or `AF_INET6` with a protocol of `T`.
unsafe extern "C" fn proto_init<T: Socket>(sk: *mut bindings::sock) -> c_int {
    from_result(|| {
        // SAFETY: The sock exists.
        let family = match unsafe { bindings::sk_family(sk) } {
            AF_INET => Family::Inet,
            AF_INET6 => Family::Inet6,
            _ => return Err(errno::EAFNOSUPPORT),
        };
        let kind = Kind {
            origin: Origin::Inet,
            family,
        };
        // SAFETY: The sock exists and keeps its namespace.
        let net = unsafe { Net::from_ptr(bindings::sock_net(sk)) };
        // SAFETY: A new sock of a protocol of `T`, which nobody else uses yet.
        unsafe { adopt::<T, Error>(sk, kind, T::init(net, kind)) }?;
        // SAFETY: The sock exists and belongs to a socket.
        unsafe { bindings::sk_custom_options(sk) };
        Ok(0)
    })
}

/// # Safety
///
/// Called by the kernel for any sock of ours.
unsafe extern "C" fn proto_unhash(_sk: *mut bindings::sock) {}

/// # Safety
///
/// Called by the kernel for `socket(2)` of the family.
unsafe extern "C" fn create<T: Socket>(
    net: *mut kernel::bindings::net,
    sock: *mut bindings::socket,
    protocol: c_int,
    kern: c_int,
) -> c_int {
    from_result(|| {
        // SAFETY: `sock` exists.
        if c_int::from(unsafe { (*sock).type_ }) != bindings::sock_type_SOCK_STREAM as c_int {
            return Err(errno::ESOCKTNOSUPPORT);
        }
        let tables = tables().ok_or(errno::EAFNOSUPPORT)?;
        let (family, proto) = match protocol {
            0 => (Family::Inet, &tables.native),
            1 => (Family::Inet6, &tables.native6),
            _ => return Err(errno::EPROTONOSUPPORT),
        };
        let kind = Kind {
            origin: Origin::Native,
            family,
        };
        // SAFETY: The namespace exists during this call.
        let net = unsafe { Net::from_ptr(net.cast()) };
        // SAFETY: `sock` exists.
        unsafe { (*sock).ops = &tables.native_ops };
        // SAFETY: The protocol is registered; `sock` is new.
        let sk = unsafe {
            bindings::sk_new(
                net.as_ptr(),
                tables.family.family,
                proto.get(),
                sock,
                protocol,
                kern,
            )
        };
        if sk.is_null() {
            return Err(errno::ENOBUFS);
        }
        // SAFETY: A new sock of a protocol of `T`, which nobody else uses yet.
        if let Err(e) = unsafe { adopt::<T, Error>(sk, kind, T::init(net, kind)) } {
            // SAFETY: `sock` and `sk` exist; the reference is the one from `sk_new`.
            unsafe {
                bindings::sock_orphan(sk);
                (*sock).sk = ptr::null_mut();
                bindings::sock_put(sk);
            }
            return Err(e);
        }
        // SAFETY: The sock exists and belongs to a socket.
        unsafe { bindings::sk_custom_options(sk) };
        Ok(0)
    })
}

/// What `SIOCINQ` and the like count: the kernel asks here for io_uring.
///
/// # Safety
///
/// `sk` is a sock of `T`, `count` may be written to.
unsafe extern "C" fn proto_ioctl<T: Socket>(
    sk: *mut bindings::sock,
    cmd: c_int,
    count: *mut c_int,
) -> c_int {
    // SAFETY: Required of the caller.
    let sk = unsafe { Sk::<T>::from_ptr(sk) };
    from_result(|| {
        let n = T::count(sk, cmd as u32)?;
        // SAFETY: Required of the caller.
        unsafe { *count = n };
        Ok(0)
    })
}

fn proto<T: Socket>(
    module: &'static ThisModule,
    name: &'static CStr,
    init: Option<unsafe extern "C" fn(*mut bindings::sock) -> c_int>,
) -> Result<bindings::proto> {
    let mut proto = bindings::proto {
        owner: module.as_ptr(),
        init,
        ioctl: Some(proto_ioctl::<T>),
        unhash: Some(proto_unhash),
        obj_size: size_of::<Sk<T>>().try_into()?,
        ipv6_pinfo_offset: offset_of!(Sk<T>, inet6).try_into()?,
        ..pin_init::zeroed()
    };
    let bytes = name.to_bytes();
    // The last byte stays zero.
    let room = proto.name.len().saturating_sub(1);
    if bytes.len() > room {
        return Err(EINVAL);
    }
    for (to, from) in proto.name.iter_mut().zip(bytes) {
        *to = *from;
    }
    Ok(proto)
}

/// A registered socket family. Dropping it unregisters.
///
/// The module is in use while there are sockets. Set up last in a module and dropped first, as
/// sockets may come from the moment it exists.
pub struct Registration<T: Socket> {
    tables: NonNull<Tables>,
    protos: usize,
    inet: Stage,
    family: bool,
    _socket: core::marker::PhantomData<fn() -> T>,
}

#[derive(PartialEq, PartialOrd)]
enum Stage {
    Nothing,
    Inet,
    Both,
}

// SAFETY: Unregistering is possible on any thread.
unsafe impl<T: Socket> Send for Registration<T> {}
// SAFETY: A shared reference gives access to nothing.
unsafe impl<T: Socket> Sync for Registration<T> {}

impl<T: Socket> Registration<T> {
    /// Registers the address family `family`, and, if `protocol` is given, stream sockets of that
    /// protocol of `AF_INET` and `AF_INET6`.
    ///
    /// `EEXIST` if the family is taken, `EBUSY` if another family is registered through this crate.
    pub fn new(module: &'static ThisModule, family: u16, protocol: Option<u16>) -> Result<Self> {
        let names = T::NAMES;
        let inet_init = Some(proto_init::<T> as unsafe extern "C" fn(_) -> _);
        let tables = KBox::new(
            Tables {
                native: Opaque::new(proto::<T>(module, names.native, None)?),
                native6: Opaque::new(proto::<T>(module, names.native6, None)?),
                inet: Opaque::new(proto::<T>(module, names.inet, inet_init)?),
                inet6: Opaque::new(proto::<T>(module, names.inet6, inet_init)?),
                native_ops: proto_ops::<T>(module, family),
                inet_ops: proto_ops::<T>(module, AF_INET),
                inet6_ops: proto_ops::<T>(module, AF_INET6),
                family: bindings::net_proto_family {
                    family: family.into(),
                    create: Some(create::<T>),
                    owner: module.as_ptr(),
                },
                inet_switch: Opaque::uninit(),
                inet6_switch: Opaque::uninit(),
                list: Opaque::uninit(),
                socket: TypeId::of::<T>(),
            },
            GFP_KERNEL,
        )?;
        // SAFETY: The list is new, and does not move any more.
        unsafe { bindings::sk_list_init(tables.list.get()) };
        let tables = KBox::into_raw(tables);
        if TABLES
            .compare_exchange(ptr::null_mut(), tables, Ordering::AcqRel, Ordering::Relaxed)
            .is_err()
        {
            // SAFETY: From `into_raw` just above, unknown to others.
            drop(unsafe { KBox::from_raw(tables) });
            return Err(EBUSY);
        }

        // From here on `drop` undoes what has been done.
        let mut this = Self {
            // SAFETY: Not null, as it comes from a box.
            tables: unsafe { NonNull::new_unchecked(tables) },
            protos: 0,
            inet: Stage::Nothing,
            family: false,
            _socket: core::marker::PhantomData,
        };
        for proto in this.protos() {
            // SAFETY: The protocol stays where it is until unregistered.
            to_result(unsafe { bindings::proto_register(proto, 1) })?;
            this.protos = this.protos.saturating_add(1);
        }
        // First: this fails where others have the family, and there must be no sockets then. What follows has
        // no others to fail for.
        // SAFETY: The family stays where it is until unregistered.
        to_result(unsafe { bindings::sock_register(&(*tables).family) })?;
        this.family = true;
        if let Some(protocol) = protocol {
            this.register_inet(protocol)?;
        }
        Ok(this)
    }

    fn tables(&self) -> &Tables {
        // SAFETY: Ours until dropped; only shared references are made.
        unsafe { self.tables.as_ref() }
    }

    fn protos(&self) -> [*mut bindings::proto; 4] {
        let tables = self.tables();
        [
            tables.native.get(),
            tables.native6.get(),
            tables.inet.get(),
            tables.inet6.get(),
        ]
    }

    fn register_inet(&mut self, protocol: u16) -> Result {
        let tables = self.tables();
        let switch = |proto: &Opaque<bindings::proto>, ops| bindings::inet_protosw {
            type_: bindings::sock_type_SOCK_STREAM as u16,
            protocol,
            prot: proto.get(),
            ops,
            ..pin_init::zeroed()
        };
        // SAFETY: Valid for writes, not in use yet.
        unsafe {
            tables
                .inet_switch
                .get()
                .write(switch(&tables.inet, &tables.inet_ops))
        };
        // SAFETY: As above.
        unsafe {
            tables
                .inet6_switch
                .get()
                .write(switch(&tables.inet6, &tables.inet6_ops))
        };
        // SAFETY: The entry stays where it is until unregistered.
        unsafe { bindings::inet_register_protosw(tables.inet_switch.get()) };
        self.inet = Stage::Inet;
        // SAFETY: As above.
        to_result(unsafe { bindings::inet6_register_protosw(self.tables().inet6_switch.get()) })?;
        self.inet = Stage::Both;
        Ok(())
    }
}

impl<T: Socket> Drop for Registration<T> {
    fn drop(&mut self) {
        let tables = self.tables();
        // SAFETY: Everything is unregistered once, if it was registered, in reverse order; no
        // sockets are left, since they hold references to the module.
        unsafe {
            if self.inet >= Stage::Both {
                bindings::inet6_unregister_protosw(tables.inet6_switch.get());
            }
            if self.inet >= Stage::Inet {
                bindings::inet_unregister_protosw(tables.inet_switch.get());
            }
            if self.family {
                bindings::sock_unregister(tables.family.family);
            }
            for proto in self.protos().into_iter().take(self.protos).rev() {
                bindings::proto_unregister(proto);
            }
        }
        TABLES.store(ptr::null_mut(), Ordering::Release);
        crate::util::wait_for_readers();
        // SAFETY: From `KBox::into_raw`; the kernel has forgotten it, and readers of RCU have.
        drop(unsafe { KBox::from_raw(self.tables.as_ptr()) });
    }
}

/// The number of the newest socket of the family `T`, in whatever namespace: above those of all that are there, and below
/// those of all to come. 0 if it is not the registered family. Any context but hard interrupts.
pub fn last_number<T: Socket>() -> u64 {
    let reader = rcu::read_lock();
    // SAFETY: The list exists as the tables do.
    tables_of::<T>(&reader).map_or(0, |tables| unsafe {
        bindings::sk_list_last(tables.list.get())
    })
}

/// Calls `f` for each socket of the family in a namespace, in order of age, with the number of the
/// socket, which is above `after` and not above `last`. Stops when `f` returns false.
///
/// `T` must be the registered family: nothing is found otherwise.
pub fn for_each<T: Socket>(
    net: &Net,
    after: u64,
    last: u64,
    mut f: impl FnMut(&ARef<Sk<T>>, u64) -> bool,
) {
    let mut number = after;
    let next = |number| {
        let reader = rcu::read_lock();
        let tables = tables_of::<T>(&reader)?;
        // SAFETY: The list exists as the tables do.
        let next = unsafe { bindings::sk_list_next(tables.list.get(), number, net.as_ptr()) };
        NonNull::new(next)
    };
    while let Some(next) = next(number) {
        // SAFETY: A sock of the family, with a reference for us.
        let next = unsafe { ARef::from_raw(next.cast::<Sk<T>>()) };
        // SAFETY: Written once, before the sock was put into the list.
        number = unsafe { (*next.extra().link.get()).seq };
        if number > last || !f(&next, number) {
            return;
        }
    }
}

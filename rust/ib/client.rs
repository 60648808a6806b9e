// SPDX-License-Identifier: GPL-2.0

//! Being told of devices: the `ib_client` side.

use super::device::Device;
use crate::bindings;
use core::{
    ffi::c_void,
    marker::PhantomPinned,
    ptr,
    sync::atomic::{
        AtomicPtr,
        Ordering, //
    },
};
use kernel::{
    error::{
        from_result,
        to_result, //
    },
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

/// What happens to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Packets go through this port from now on.
    PortActive(u32),
    /// Packets go through this port no longer.
    PortError(u32),
    /// The GID table of this port changed.
    GidChange(u32),
    /// The device is broken.
    DeviceFatal,
    /// Anything else, as the C number.
    Other(u32),
}

/// A user of RDMA devices. All methods run in process context.
pub trait Client: Send + Sync + Sized + 'static {
    /// What the client keeps for a device.
    type Data: Send + Sync + 'static;

    /// The name ib_core knows the client by.
    const NAME: &'static CStr;

    /// Where the registered client is noted: C's `add` callback does not say whose it is.
    fn slot() -> &'static ClientSlot<Self>;

    /// A device is there. With an error it is ignored until it comes again.
    fn add(&self, device: &Device) -> Result<Arc<Self::Data>>;

    /// From now on [`Client::event`] is called for the device: what happened between [`Client::add`] and
    /// this was not told.
    fn watched(&self, data: &Self::Data);

    /// The device goes. All references to it must be given up soon: unregistration, and with it
    /// the driver's unloading or the end of a network namespace, waits for them.
    fn remove(&self, device: &Device, data: Arc<Self::Data>);

    /// Something happened to the device. Never runs before `add` or after `remove`.
    fn event(&self, data: &Self::Data, event: Event);
}

/// A place for a [`Client`] in a static item.
pub struct ClientSlot<T: Client>(AtomicPtr<Context<T>>);

impl<T: Client> ClientSlot<T> {
    /// An empty place.
    #[expect(clippy::new_without_default)]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }
}

/// # Invariants
///
/// The client in `raw` is registered from the end of [`Registration::new`] until the drop, and
/// the slot of `T` points here for as long and a little longer at both ends.
#[pin_data]
struct Context<T: Client> {
    raw: Opaque<bindings::ib_client>,
    client: T,
    #[pin]
    _pin: PhantomPinned,
}

/// A registered client. Dropping it removes it from all devices, and waits for that.
pub struct Registration<T: Client> {
    context: Pin<KBox<Context<T>>>,
}

// SAFETY: `T` is `Send` and `Sync`, the C client is used by ib_core only, under its locks.
unsafe impl<T: Client> Send for Registration<T> {}
// SAFETY: As above.
unsafe impl<T: Client> Sync for Registration<T> {}

impl<T: Client> Registration<T> {
    /// Registers a client; [`Client::add`] is called for the devices that exist already.
    pub fn new(client: T) -> Result<Self> {
        let mut raw = pin_init::zeroed::<bindings::ib_client>();
        raw.name = T::NAME.as_char_ptr();
        raw.add = Some(add::<T>);
        raw.remove = Some(remove::<T>);
        let context = KBox::pin_init(
            pin_init!(Context {
                raw: Opaque::new(raw),
                client,
                _pin: PhantomPinned,
            }),
            GFP_KERNEL,
        )?;
        let place = &T::slot().0;
        let this = ptr::from_ref(&*context).cast_mut();
        place
            .compare_exchange(ptr::null_mut(), this, Ordering::Release, Ordering::Relaxed)
            .map_err(|_| EBUSY)?;
        // SAFETY: The C client is pinned, complete, and lives until the drop unregisters it.
        if let Err(e) = to_result(unsafe { bindings::ib_register_client(context.raw.get()) }) {
            place.store(ptr::null_mut(), Ordering::Relaxed);
            return Err(e);
        }
        // INVARIANT: Registered, and the slot is set.
        Ok(Self { context })
    }
}

impl<T: Client> Drop for Registration<T> {
    fn drop(&mut self) {
        // SAFETY: By the invariant the client is registered. No callback runs after this returns.
        unsafe { bindings::ib_unregister_client(self.context.raw.get()) };
        T::slot().0.store(ptr::null_mut(), Ordering::Relaxed);
    }
}

/// What ib_core keeps for us on each device.
///
/// # Invariants
///
/// `handler` is registered with the device from the end of `add` to the start of `remove`.
#[repr(C)]
#[pin_data]
struct DeviceContext<T: Client> {
    handler: Opaque<bindings::ib_event_handler>,
    context: *const Context<T>,
    data: Arc<T::Data>,
    #[pin]
    _pin: PhantomPinned,
}

/// # Safety
///
/// To be called by ib_core only, as the `add` of the client that the slot of `T` points to.
unsafe extern "C" fn add<T: Client>(device: *mut bindings::ib_device) -> c_int {
    from_result(|| {
        let context = T::slot().0.load(Ordering::Acquire);
        // SAFETY: ib_core calls this between registration and unregistration only, and by the
        // invariant of `Context` the slot points to it for that time.
        let client = unsafe { &(*context).client };
        // SAFETY: ib_core holds a registration reference while it calls `add`.
        let this_device = unsafe { Device::from_raw(device) };
        let data = client.add(this_device)?;
        let shared = data.clone();
        let mut handler = pin_init::zeroed::<bindings::ib_event_handler>();
        handler.device = device;
        handler.handler = Some(event::<T>);
        let this = KBox::pin_init(
            pin_init!(DeviceContext::<T> {
                handler: Opaque::new(handler),
                context,
                data: shared,
                _pin: PhantomPinned,
            }),
            GFP_KERNEL,
        );
        let this = match this {
            Ok(this) => this,
            Err(e) => {
                client.remove(this_device, data);
                return Err(e);
            }
        };
        let raw = this.handler.get();
        // SAFETY: Nothing is moved out of the box: it goes back into a pinned box in `remove`.
        let this = KBox::into_raw(unsafe { Pin::into_inner_unchecked(this) });
        // SAFETY: `context` is the registered client, and `device` calls it just now.
        unsafe { bindings::ib_set_client_data(device, (*context).raw.get(), this.cast()) };
        // SAFETY: The handler is pinned in `this` and complete; `remove` unregisters it.
        // INVARIANT: Registered from here.
        unsafe { bindings::ib_register_event_handler(raw) };
        client.watched(&data);
        Ok(0)
    })
}

/// # Safety
///
/// To be called by ib_core only, as the `remove` that belongs to [`add`].
unsafe extern "C" fn remove<T: Client>(device: *mut bindings::ib_device, data: *mut c_void) {
    if data.is_null() {
        return;
    }
    // SAFETY: `data` was made by `add` with `KBox::into_raw`, and ib_core calls `remove` once.
    let this = unsafe { KBox::from_raw(data.cast::<DeviceContext<T>>()) };
    // SAFETY: By the invariant of `DeviceContext` it is registered. No event runs after this.
    unsafe { bindings::ib_unregister_event_handler(this.handler.get()) };
    // SAFETY: As in `add`, the client outlives its callbacks.
    let client = unsafe { &(*this.context).client };
    // SAFETY: ib_core holds a registration reference while it calls `remove`.
    client.remove(unsafe { Device::from_raw(device) }, this.data.clone());
}

/// # Safety
///
/// To be called by ib_core only, with the handler of a [`DeviceContext`] that is registered.
unsafe extern "C" fn event<T: Client>(
    handler: *mut bindings::ib_event_handler,
    event: *mut bindings::ib_event,
) {
    // SAFETY: `DeviceContext` is `repr(C)` with the (transparently wrapped) handler first.
    let this = unsafe { &*handler.cast::<DeviceContext<T>>() };
    // SAFETY: ib_core gives a valid event.
    let event = unsafe { &*event };
    // SAFETY: All members of the union are plain values; the port is read by events of ports only.
    let port = unsafe { event.element.port_num };
    // SAFETY: As in `add`, the client outlives its callbacks.
    let client = unsafe { &(*this.context).client };
    let event = match event.event {
        bindings::ib_event_type_IB_EVENT_PORT_ACTIVE => Event::PortActive(port),
        bindings::ib_event_type_IB_EVENT_PORT_ERR => Event::PortError(port),
        bindings::ib_event_type_IB_EVENT_GID_CHANGE => Event::GidChange(port),
        bindings::ib_event_type_IB_EVENT_DEVICE_FATAL => Event::DeviceFatal,
        other => Event::Other(other),
    };
    client.event(&this.data, event);
}

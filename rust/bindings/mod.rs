// SPDX-License-Identifier: GPL-2.0

//! Raw bindings, private to this crate: what `bindgen` makes of `bindings_helper.h` and of the C
//! helpers, over the kernel's own bindings.

#![allow(
    clippy::all,
    clippy::arithmetic_side_effects,
    clippy::as_underscore,
    clippy::cast_lossless,
    clippy::indexing_slicing,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::undocumented_unsafe_blocks,
    clippy::unwrap_used,
    dead_code,
    improper_ctypes,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    unsafe_op_in_unsafe_fn
)]

mod raw {
    // What is defined in this module shadows the glob.
    pub use kernel::bindings::*;
    use kernel::ffi;
    use pin_init::{MaybeZeroable, Zeroable};

    // Types which `bindgen` would map by their width.
    type __kernel_size_t = usize;
    type __kernel_ssize_t = isize;
    type __kernel_ptrdiff_t = isize;

    // SAFETY: A newtype around `Storage`.
    unsafe impl<Storage: Zeroable> Zeroable for __BindgenBitfieldUnit<Storage> {}
    // SAFETY: A marker of size zero.
    unsafe impl<T> Zeroable for __BindgenUnionField<T> {}

    pub use super::helper::*;
    include!(concat!(
        env!("SMC_OBJ"),
        "/rust/bindings/bindings_generated.rs"
    ));
}

mod helper {
    use super::raw::*;
    use kernel::ffi;
    include!(concat!(
        env!("SMC_OBJ"),
        "/rust/bindings/bindings_helpers_generated.rs"
    ));
}

pub(crate) use raw::*;

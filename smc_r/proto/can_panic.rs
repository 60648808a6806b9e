// SPDX-License-Identifier: GPL-2.0

//! Functions that can panic, in all the ways there are. Who looks for panics in compiled code has to find one in each of
//! these, or finding none elsewhere says nothing: `check-panics.sh`, `tools/env/objects`.

pub fn add(a: u32, b: u32) -> u32 {
    a + b
}

pub fn divide(a: u32, b: u32) -> u32 {
    a / b
}

pub fn index(a: &[u8], i: usize) -> u8 {
    a[i]
}

pub fn part(a: &[u8], i: usize, j: usize) -> &[u8] {
    &a[i..j]
}

pub fn rest(a: &[u8], i: usize) -> &[u8] {
    &a[i..]
}

pub fn text(a: &str, i: usize) -> &str {
    &a[i..]
}

pub fn copy(a: &mut [u8], b: &[u8]) {
    a.copy_from_slice(b)
}

pub fn unwrap(a: Option<u8>) -> u8 {
    a.unwrap()
}

pub fn expect(a: Option<u8>) -> u8 {
    a.expect("some")
}

pub fn result(a: Result<u8, u8>) -> u8 {
    a.unwrap()
}

pub fn borrow(a: &std::cell::RefCell<u8>) -> u8 {
    *a.borrow()
}

pub fn assert(a: u8, b: u8) {
    assert_eq!(a, b)
}

pub fn called(a: &[u8], i: usize) -> u8 {
    inner(a, i)
}

#[inline(never)]
fn inner(a: &[u8], i: usize) -> u8 {
    a[i]
}

// SPDX-License-Identifier: GPL-2.0

//! The TCP option by which both sides of a handshake announce SMC (RFC 3.1, A.1, RFC 6994).

use crate::wire::EyeCatcher;

/// The option as it is added to a SYN: two NOPs for alignment, kind, length, experiment ID.
pub const OPTION: [u8; 8] = [NOP, NOP, EXPERIMENTAL, 6, 0xe2, 0xd4, 0xc3, 0xd9];

const END: u8 = 0;
const NOP: u8 = 1;
const EXPERIMENTAL: u8 = 254;

/// Tells whether the options of a TCP header contain the one of SMC.
///
/// `options` is what follows the 20 bytes of the fixed header. Longer forms of even length are
/// recognised, as a later extension might send them; other users of kind 254 are passed over.
/// A malformed option ends the search.
pub fn find(mut options: &[u8]) -> bool {
    loop {
        match *options {
            [] | [END, ..] => return false,
            [NOP, ref rest @ ..] => options = rest,
            [kind, len, ..] => {
                let Some((option, rest)) = options.split_at_checked(usize::from(len)) else {
                    return false;
                };
                let [_, _, payload @ ..] = option else {
                    return false;
                };
                let id = payload
                    .first_chunk()
                    .and_then(|id| EyeCatcher::from_bytes(*id));
                if kind == EXPERIMENTAL && len & 1 == 0 && id == Some(EyeCatcher::SmcR) {
                    return true;
                }
                options = rest;
            }
            [_] => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn finds_the_option_at_any_place() {
        assert!(find(&OPTION));
        assert!(find(&OPTION[2..]));
        // Maximum segment size, SACK permitted with timestamps, then ours.
        let mut options = vec![2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 0];
        assert!(!find(&options));
        options.extend_from_slice(&OPTION);
        assert!(find(&options));
        // Another experiment of the same kind in front: Fast Open with its 16-bit ID.
        let mut options = vec![254, 4, 0xf9, 0x89];
        options.extend_from_slice(&OPTION);
        assert!(find(&options));
    }

    #[test]
    fn takes_longer_even_forms_only() {
        assert!(find(&[254, 8, 0xe2, 0xd4, 0xc3, 0xd9, 1, 2]));
        assert!(!find(&[254, 7, 0xe2, 0xd4, 0xc3, 0xd9, 1]));
        assert!(!find(&[254, 4, 0xe2, 0xd4, 0xc3, 0xd9]));
        assert!(!find(&[253, 6, 0xe2, 0xd4, 0xc3, 0xd9]));
        assert!(!find(&[254, 6, 0xe2, 0xd4, 0xc3, 0xc4]));
    }

    #[test]
    fn stops_at_the_end_and_at_nonsense() {
        assert!(!find(&[]));
        assert!(!find(&[254]));
        assert!(!find(&[0, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9]));
        assert!(!find(&[2, 0, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9]));
        assert!(!find(&[2, 1, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9]));
        assert!(!find(&[2, 40, 254, 6, 0xe2, 0xd4, 0xc3, 0xd9]));
        assert!(!find(&OPTION[..7]));
    }
}

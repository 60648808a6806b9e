// SPDX-License-Identifier: GPL-2.0

//! Where the kernel that runs keeps what the program reads, from its type information (BTF).

use btf_rs::{Btf, BtfType, Type};
use std::fmt;

/// The kernel's type information.
pub const FILE: &str = "/sys/kernel/btf/vmlinux";
/// The function whose value the program gives.
pub const HOOK: &str = "update_socket_protocol";

/// Places in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Id of [`HOOK`].
    pub hook: u32,
    /// `task_struct.nsproxy`.
    pub nsproxy: i16,
    /// `nsproxy.net_ns`.
    pub net_ns: i16,
    /// `net.net_cookie`.
    pub net_cookie: i16,
}

/// What is missing.
#[derive(Debug, PartialEq, Eq)]
pub enum Missing {
    /// The type information cannot be read.
    Types(String),
    /// There is no such function.
    Hook,
    /// There is no such member.
    Member(&'static str, &'static str),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Types(why) => write!(f, "no type information of the kernel: {FILE}: {why}"),
            Missing::Hook => write!(f, "this kernel has no function {HOOK}"),
            Missing::Member(owner, name) => write!(f, "this kernel's struct {owner} has no {name}"),
        }
    }
}

impl Layout {
    /// Finds them.
    pub fn read(bytes: &[u8]) -> Result<Self, Missing> {
        let btf = Btf::from_bytes(bytes).map_err(|error| Missing::Types(error.to_string()))?;
        let hook = btf
            .resolve_ids_by_name(HOOK)
            .unwrap_or_default()
            .into_iter()
            .find(|id| matches!(btf.resolve_type_by_id(*id), Ok(Type::Func(_))));
        Ok(Layout {
            hook: hook.ok_or(Missing::Hook)?,
            nsproxy: offset(&btf, "task_struct", "nsproxy")?,
            net_ns: offset(&btf, "nsproxy", "net_ns")?,
            net_cookie: offset(&btf, "net", "net_cookie")?,
        })
    }
}

/// Bytes before a member of a structure.
fn offset(btf: &Btf, owner: &'static str, name: &'static str) -> Result<i16, Missing> {
    let types = btf.resolve_types_by_name(owner).unwrap_or_default();
    let bits = types
        .iter()
        .find_map(|found| bits_before(btf, found, name, 0));
    bits.filter(|bits| bits % 8 == 0)
        .and_then(|bits| i16::try_from(bits / 8).ok())
        .ok_or(Missing::Member(owner, name))
}

/// Also in the nameless structures that are part of one, as deep as anybody writes them.
fn bits_before(btf: &Btf, owner: &Type, name: &str, depth: u32) -> Option<u32> {
    let (Type::Struct(owner) | Type::Union(owner)) = owner else {
        return None;
    };
    owner.members.iter().find_map(|member| {
        let called = btf.resolve_name(member).unwrap_or_default();
        if called == name {
            return Some(member.bit_offset());
        }
        if !called.is_empty() || depth == 8 {
            return None;
        }
        let inner = btf.resolve_type_by_id(member.get_type_id()?).ok()?;
        member
            .bit_offset()
            .checked_add(bits_before(btf, &inner, name, depth + 1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Type information in the making: types and names.
    #[derive(Default)]
    struct Make {
        types: Vec<u8>,
        names: Vec<u8>,
    }

    const INT: u32 = 1 << 24;
    const STRUCT: u32 = 4 << 24;
    const FUNC: u32 = 12 << 24;
    const FUNC_PROTO: u32 = 13 << 24;

    impl Make {
        fn name(&mut self, name: &str) -> u32 {
            if self.names.is_empty() {
                self.names.push(0);
            }
            if name.is_empty() {
                return 0;
            }
            let place = u32::try_from(self.names.len()).unwrap();
            self.names.extend(name.bytes().chain([0]));
            place
        }

        fn words(&mut self, words: &[u32]) {
            self.types
                .extend(words.iter().flat_map(|word| word.to_le_bytes()));
        }

        fn structure(&mut self, name: &str, members: &[(&str, u32, u32)]) {
            let name = self.name(name);
            self.words(&[name, STRUCT | u32::try_from(members.len()).unwrap(), 64]);
            for (name, id, bits) in members {
                let name = self.name(name);
                self.words(&[name, *id, *bits]);
            }
        }

        fn function(&mut self, name: &str, prototype: u32) {
            let name = self.name(name);
            self.words(&[name, FUNC, prototype]);
        }

        fn finish(self) -> Vec<u8> {
            let (types, names) = (self.types, self.names);
            let lengths = [0, types.len(), types.len(), names.len()];
            let mut bytes = vec![0x9f, 0xeb, 1, 0, 24, 0, 0, 0];
            for length in lengths {
                bytes.extend(u32::try_from(length).unwrap().to_le_bytes());
            }
            [bytes, types, names].concat()
        }
    }

    /// Types 1 to 7 of a small kernel.
    fn kernel(hook: &str, cookie: &str) -> Vec<u8> {
        let mut make = Make::default();
        let name = make.name("int");
        make.words(&[name, INT, 4, 32]);
        make.structure("net", &[("count", 1, 0), ("", 3, 64)]);
        make.structure("", &[("other", 1, 0), (cookie, 1, 128)]);
        make.structure("nsproxy", &[("count", 1, 0), ("net_ns", 1, 320)]);
        make.structure("task_struct", &[("stack", 1, 256), ("nsproxy", 1, 24000)]);
        make.words(&[0, FUNC_PROTO, 1]);
        make.function(hook, 6);
        make.finish()
    }

    #[test]
    fn members_are_found_also_in_nameless_parts() {
        let want = Layout {
            hook: 7,
            nsproxy: 3000,
            net_ns: 40,
            net_cookie: 24,
        };
        assert_eq!(Layout::read(&kernel(HOOK, "net_cookie")), Ok(want));
    }

    #[test]
    fn what_is_missing_is_said() {
        let other = Layout::read(&kernel("another", "net_cookie"));
        assert_eq!(other, Err(Missing::Hook));
        let other = Layout::read(&kernel(HOOK, "another"));
        assert_eq!(other, Err(Missing::Member("net", "net_cookie")));
        // A place that is no whole byte is none.
        let whole = kernel(HOOK, "net_cookie");
        for end in [0, 10, 24, whole.len() / 2] {
            assert!(Layout::read(&whole[..end]).is_err(), "{end}");
        }
    }
}

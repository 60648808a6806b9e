// SPDX-License-Identifier: GPL-2.0

//! The program, as instructions of BPF: so few that no compiler is needed to make them.

use crate::layout::Layout;

/// The protocol of SMC for sockets of IPv4 and IPv6.
pub const IPPROTO_SMC: i32 = 256;
const IPPROTO_TCP: i32 = 6;
const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;
const SOCK_STREAM: i32 = 1;
/// The type of a socket without its flags, such as `SOCK_CLOEXEC`.
const TYPE_MASK: i32 = 15;

/// Functions of the kernel for programs.
const MAP_LOOKUP: i32 = 1;
const CURRENT_TASK: i32 = 158;

/// An instruction as the kernel takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    value: i32,
}

const fn make(code: u8, to: u8, from: u8, offset: i16, value: i32) -> Instruction {
    let registers = if cfg!(target_endian = "big") {
        (to << 4) | from
    } else {
        (from << 4) | to
    };
    Instruction {
        code,
        registers,
        offset,
        value,
    }
}

const LOAD: u8 = 0x79;
const STORE: u8 = 0x7b;
const LOAD_MAP: u8 = 0x18;
const AND32: u8 = 0x54;
const ADD: u8 = 0x07;
const MOVE: u8 = 0xb7;
const MOVE_REGISTER: u8 = 0xbf;
const EQUAL: u8 = 0x15;
const EQUAL32: u8 = 0x16;
const OTHER32: u8 = 0x56;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// `to = *(u64 *)(from + offset)`
const fn load(to: u8, from: u8, offset: i16) -> Instruction {
    make(LOAD, to, from, offset, 0)
}

/// Jumps to the place if the comparison with the value holds.
const fn jump(code: u8, register: u8, value: i32, place: i16) -> Instruction {
    make(code, register, 0, place, value)
}

const fn call(function: i32) -> Instruction {
    make(CALL, 0, 0, 0, function)
}

/// Register of the frame, below which is the stack.
const FRAME: u8 = 10;
const TYPE: i16 = 3;
const SPACE: i16 = 9;
const OUT: i16 = 22;
const LENGTH: usize = 24;

/// The program. 0 lets the function itself answer, which gives the protocol that was asked for.
///
/// The arguments are read as 64 bits and compared as 32: the upper halves of registers with an `int` are
/// undefined.
pub fn program(layout: &Layout, map: i32) -> [Instruction; LENGTH] {
    let mut code = [
        // Family.
        load(2, 1, 0),
        jump(EQUAL32, 2, AF_INET, TYPE),
        jump(OTHER32, 2, AF_INET6, OUT),
        // TYPE
        load(2, 1, 8),
        make(AND32, 2, 0, 0, TYPE_MASK),
        jump(OTHER32, 2, SOCK_STREAM, OUT),
        // Protocol.
        load(2, 1, 16),
        jump(EQUAL32, 2, 0, SPACE),
        jump(OTHER32, 2, IPPROTO_TCP, OUT),
        // SPACE: the number of the namespace of the caller, onto the stack.
        call(CURRENT_TASK),
        load(1, 0, layout.nsproxy),
        load(1, 1, layout.net_ns),
        load(1, 1, layout.net_cookie),
        make(STORE, FRAME, 1, -8, 0),
        // Is it in the map? Its number in the instruction makes two of it.
        make(MOVE_REGISTER, 2, FRAME, 0, 0),
        make(ADD, 2, 0, 0, -8),
        make(LOAD_MAP, 1, 1, 0, map),
        make(0, 0, 0, 0, 0),
        call(MAP_LOOKUP),
        jump(EQUAL, 0, 0, OUT),
        make(MOVE, 0, 0, 0, IPPROTO_SMC),
        make(EXIT, 0, 0, 0, 0),
        // OUT
        make(MOVE, 0, 0, 0, 0),
        make(EXIT, 0, 0, 0, 0),
    ];
    // Jumps count from the instruction after them.
    for (place, instruction) in (1..).zip(&mut code) {
        if matches!(instruction.code, EQUAL | EQUAL32 | OTHER32) {
            instruction.offset -= place;
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    const LAYOUT: Layout = Layout {
        hook: 1,
        nsproxy: 3000,
        net_ns: 40,
        net_cookie: 24,
    };
    const CONTEXT: u64 = 0x1000;
    const TASK: u64 = 0x10_0000;
    const STACK: u64 = 0x20_0000;
    const MAP: i32 = 5;

    /// Runs the program for these arguments, in a namespace with that number, while 77 is in the map.
    fn run(family: u64, kind: u64, protocol: u64, space: u64) -> u64 {
        let mut memory = HashMap::from([
            (CONTEXT, family),
            (CONTEXT + 8, kind),
            (CONTEXT + 16, protocol),
            (TASK + 3000, 0x11_0000),
            (0x11_0000 + 40, 0x12_0000),
            (0x12_0000 + 24, space),
        ]);
        let mut register = [0xdead_beefu64; 11];
        register[1] = CONTEXT;
        register[10] = STACK;
        let code = program(&LAYOUT, MAP);
        let mut place = 0usize;
        loop {
            let now = code[place];
            let (to, from) = (
                usize::from(now.registers & 15),
                usize::from(now.registers >> 4),
            );
            let value = i64::from(now.value) as u64;
            let at = |base: u64| base.wrapping_add_signed(i64::from(now.offset));
            place += 1;
            let low = register[to] & 0xffff_ffff;
            let jumps = match now.code {
                EQUAL => register[to] == value,
                EQUAL32 => low == value,
                OTHER32 => low != value,
                _ => false,
            };
            match now.code {
                LOAD => register[to] = memory[&at(register[from])],
                STORE => drop(memory.insert(at(register[to]), register[from])),
                AND32 => register[to] = low & value,
                ADD => register[to] = register[to].wrapping_add(value),
                MOVE => register[to] = value,
                MOVE_REGISTER => register[to] = register[from],
                LOAD_MAP => {
                    assert_eq!((from, code[place].code), (1, 0));
                    register[to] = value;
                    place += 1;
                }
                CALL => {
                    let found = match now.value {
                        CURRENT_TASK => TASK,
                        MAP_LOOKUP => {
                            assert_eq!(register[1], 5);
                            u64::from(memory[&register[2]] == 77)
                        }
                        other => panic!("function {other}"),
                    };
                    // What a call leaves in these is nothing to rely on.
                    register[1..6].fill(0xdead_beef);
                    register[0] = found;
                }
                EXIT => return register[0],
                EQUAL | EQUAL32 | OTHER32 => {}
                other => panic!("instruction {other:#x}"),
            }
            if jumps {
                place = place.checked_add_signed(isize::from(now.offset)).unwrap();
            }
        }
    }

    #[test]
    fn tcp_sockets_of_the_namespace_become_smc() {
        for family in [2, 10] {
            for protocol in [0, 6] {
                for flags in [0, 0o4000, 0o2_000_000, 0o2_004_000] {
                    assert_eq!(run(family, 1 | flags, protocol, 77), 256);
                    assert_eq!(run(family, 1 | flags, protocol, 78), 0);
                }
            }
        }
    }

    #[test]
    fn upper_halves_of_arguments_do_not_matter() {
        let high = 0xffff_ffff_0000_0000;
        assert_eq!(run(2 | high, 1 | high, 6 | high, 77), 256);
        assert_eq!(run(2 | high, 1 | high, high, 77), 256);
    }

    #[test]
    fn all_others_are_left_alone() {
        for family in 0..64 {
            for kind in 0..16 {
                for protocol in [0, 1, 6, 17, 132, 256, 262, 0xffff_ffff] {
                    let tcp = matches!(family, 2 | 10) && kind == 1 && matches!(protocol, 0 | 6);
                    let want = if tcp { 256 } else { 0 };
                    assert_eq!(
                        run(family, kind, protocol, 77),
                        want,
                        "{family} {kind} {protocol}"
                    );
                }
            }
        }
    }
}

// SPDX-License-Identifier: GPL-2.0

//! A small source of numbers: random ones, the same on every machine (xorshift64*), or those that
//! a fuzzer wants.

pub enum Rng {
    Seeded(u64),
    /// Bytes to be used up, the next one at the end.
    Scripted(Vec<u8>),
}

impl Rng {
    pub fn new(seed: u64) -> Rng {
        let mut rng = Rng::Seeded(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..4 {
            rng.next();
        }
        rng
    }

    /// Numbers made of these bytes, and after them of 0xff: what is unlikely does not happen then.
    pub fn scripted(bytes: &[u8]) -> Rng {
        Rng::Scripted(bytes.iter().rev().copied().collect())
    }

    /// Has a script come to its end?
    pub fn is_over(&self) -> bool {
        matches!(self, Rng::Scripted(bytes) if bytes.is_empty())
    }

    pub fn next(&mut self) -> u64 {
        self.bits(64)
    }

    /// A number; one of a script has as many bytes as it takes for so many bits.
    fn bits(&mut self, bits: u32) -> u64 {
        match self {
            Rng::Seeded(state) => {
                *state ^= *state >> 12;
                *state ^= *state << 25;
                *state ^= *state >> 27;
                state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
            }
            Rng::Scripted(bytes) => (0..bits.div_ceil(8)).fold(0, |number, _| {
                (number << 8) | u64::from(bytes.pop().unwrap_or(0xff))
            }),
        }
    }

    /// From 0 to `n - 1`.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 {
            0
        } else {
            self.bits(64 - (n - 1).leading_zeros()) % n
        }
    }

    /// From `low` to `high`, small numbers as likely as large ones.
    pub fn size(&mut self, low: u32, high: u32) -> u32 {
        let bits = 32 - (high.saturating_sub(low)).leading_zeros() as u64;
        let top = 1u64 << self.below(bits + 1);
        (low as u64 + self.below(top)).min(high as u64) as u32
    }

    pub fn percent(&mut self, p: u32) -> bool {
        self.below(100) < p as u64
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

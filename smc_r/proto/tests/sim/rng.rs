// SPDX-License-Identifier: GPL-2.0

//! A small generator of random numbers, the same on every machine (xorshift64*).

pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..4 {
            rng.next();
        }
        rng
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    /// From 0 to `n - 1`.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 {
            0
        } else {
            self.next() % n
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

// SPDX-License-Identifier: GPL-2.0

//! A pseudo-random stream of bytes that can be made and checked at any offset, and random sizes.

/// Weyl increment of the generator.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

fn mix(mut word: u64) -> u64 {
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The bytes of a seed: byte `n` is a function of the seed and `n` alone.
#[derive(Clone, Copy, Debug)]
pub struct Stream(u64);

impl Stream {
    /// The stream of a seed; `lane` gives the two directions of a connection different bytes.
    pub fn new(seed: u64, lane: u64) -> Self {
        Self(mix(seed ^ mix(lane.wrapping_add(STEP))))
    }

    fn word(self, index: u64) -> [u8; 8] {
        mix(self.0.wrapping_add(index.wrapping_mul(STEP))).to_le_bytes()
    }

    /// Fills the buffer with the bytes from `offset` on.
    pub fn fill(self, offset: u64, buffer: &mut [u8]) {
        let skip = (offset % 8) as usize;
        let mut index = offset / 8;
        let head = buffer.len().min((8 - skip) % 8);
        let (head, body) = buffer.split_at_mut(head);
        if !head.is_empty() {
            head.copy_from_slice(&self.word(index)[skip..skip + head.len()]);
            index += 1;
        }
        let mut words = body.chunks_exact_mut(8);
        for word in &mut words {
            word.copy_from_slice(&self.word(index));
            index += 1;
        }
        let tail = words.into_remainder();
        let length = tail.len();
        tail.copy_from_slice(&self.word(index)[..length]);
    }

    /// The offset of the first byte of `data` that is wrong, `data` being what came at `offset`.
    /// `scratch` is overwritten and must be as long as `data`.
    pub fn mismatch(self, offset: u64, data: &[u8], scratch: &mut [u8]) -> Option<u64> {
        let expected = &mut scratch[..data.len()];
        self.fill(offset, expected);
        if expected == data {
            return None;
        }
        let at = data
            .iter()
            .zip(expected.iter())
            .position(|(have, want)| have != want)?;
        Some(offset + at as u64)
    }
}

/// Sizes of reads and writes: a quarter small, a quarter the largest, the others anything between.
#[derive(Clone, Debug)]
pub struct Sizes {
    state: u64,
    min: usize,
    max: usize,
}

impl Sizes {
    /// Sizes from `min` to `max`, both included.
    pub fn new(seed: u64, min: usize, max: usize) -> Self {
        let min = min.max(1);
        Self {
            state: seed,
            min,
            max: max.max(min),
        }
    }

    /// The next size.
    pub fn next_size(&mut self) -> usize {
        self.state = self.state.wrapping_add(STEP);
        let random = mix(self.state);
        let pick = |max: usize| self.min + (random >> 2) as usize % (max - self.min + 1);
        match random & 3 {
            0 => pick(self.max.min(self.min.max(64))),
            1 => self.max,
            _ => pick(self.max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_the_whole() {
        let stream = Stream::new(7, 1);
        let mut whole = vec![0; 1000];
        stream.fill(0, &mut whole);
        let mut sizes = Sizes::new(3, 1, 40);
        let mut pieces = Vec::new();
        while pieces.len() < whole.len() {
            let mut piece = vec![0; sizes.next_size().min(whole.len() - pieces.len())];
            stream.fill(pieces.len() as u64, &mut piece);
            pieces.extend(piece);
        }
        assert_eq!(pieces, whole);
        let mut empty = [];
        stream.fill(3, &mut empty);
    }

    #[test]
    fn seeds_and_lanes_differ() {
        let take = |seed, lane| {
            let mut bytes = [0; 32];
            Stream::new(seed, lane).fill(5, &mut bytes);
            bytes
        };
        assert_ne!(take(1, 0), take(2, 0));
        assert_ne!(take(1, 0), take(1, 1));
        assert_eq!(take(1, 1), take(1, 1));
    }

    #[test]
    fn a_wrong_byte_is_found() {
        let stream = Stream::new(9, 0);
        let mut data = vec![0; 100];
        let mut scratch = vec![0; 100];
        stream.fill(1000, &mut data);
        assert_eq!(stream.mismatch(1000, &data, &mut scratch), None);
        assert_eq!(stream.mismatch(1001, &data, &mut scratch), Some(1001));
        data[37] ^= 1;
        assert_eq!(stream.mismatch(1000, &data, &mut scratch), Some(1037));
    }

    #[test]
    fn sizes_stay_in_range_and_vary() {
        let mut sizes = Sizes::new(1, 10, 1000);
        let seen: Vec<_> = (0..1000).map(|_| sizes.next_size()).collect();
        assert!(seen.iter().all(|size| (10..=1000).contains(size)));
        assert!(seen.contains(&1000) && seen.iter().any(|size| *size <= 64));
        assert_eq!(Sizes::new(1, 0, 0).next_size(), 1);
        assert_eq!(Sizes::new(1, 8, 4).next_size(), 8);
    }
}

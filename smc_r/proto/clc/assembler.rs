// SPDX-License-Identifier: GPL-2.0

//! Reads one CLC message from a stream that brings it in pieces of any length.

use super::{
    Header,
    Message,
    Raw,
    HEADER_LEN,
    MAX_KEEP,
    TRAILER_LEN, //
};
use crate::wire::ParseError;

/// Reader of exactly one message.
///
/// The byte after a Decline can be the first one of the application's data. So read from the
/// stream at most [`want`](Self::want) bytes at a time, and hand them to [`push`](Self::push).
///
/// # Invariants
///
/// The first `min(got, MAX_KEEP)` bytes of `kept` are those of the message; of the `got` bytes the
/// last four, or all if there are fewer, are the last ones of `tail`.
#[derive(Debug, Clone)]
pub struct Assembler {
    kept: [u8; MAX_KEEP],
    tail: [u8; TRAILER_LEN],
    got: usize,
    header: Option<Header>,
    over: bool,
}

impl Assembler {
    /// Makes a reader which waits for the first byte of a message.
    pub const fn new() -> Self {
        // INVARIANT: Nothing was read.
        Self {
            kept: [0; MAX_KEEP],
            tail: [0; TRAILER_LEN],
            got: 0,
            header: None,
            over: false,
        }
    }

    /// Returns how many bytes to read now: never more than belong to the message, and 0 once it is
    /// complete or found invalid.
    pub fn want(&self) -> usize {
        if self.over {
            return 0;
        }
        let end = self.header.map_or(HEADER_LEN, |header| header.len.into());
        end.saturating_sub(self.got)
    }

    /// Tells whether no byte was read yet, so that an end of the stream cuts off no message.
    pub fn is_empty(&self) -> bool {
        self.got == 0
    }

    /// Returns the header as soon as it is complete and valid.
    pub fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    /// Takes the next bytes, and returns the message if these were its last ones.
    ///
    /// # Errors
    ///
    /// With [`Reaction::Reset`](crate::wire::Reaction::Reset) as soon as the bytes cannot be the
    /// start of a message, or if more bytes are given than wanted. With
    /// [`Reaction::Decline`](crate::wire::Reaction::Decline) only at the end of the message.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Option<Message>, ParseError> {
        let result = self.take(bytes);
        if !matches!(result, Ok(None)) {
            self.over = true;
        }
        result
    }

    fn take(&mut self, bytes: &[u8]) -> Result<Option<Message>, ParseError> {
        if bytes.len() > self.want() {
            return Err(ParseError::Overrun);
        }
        self.store(bytes);
        if self.want() != 0 {
            return Ok(None);
        }
        let Some(header) = self.header else {
            if let Some((first, _)) = self.kept.split_first_chunk() {
                self.header = Some(Header::parse(first)?);
            }
            return Ok(None);
        };
        let body = self.got.saturating_sub(TRAILER_LEN);
        let body = self.kept.get(..body).unwrap_or(&self.kept);
        let raw = Raw::from_parts(header, body, self.tail)?;
        Message::from_raw(&raw).map(Some)
    }

    fn store(&mut self, bytes: &[u8]) {
        let free = self.kept.get_mut(self.got..).unwrap_or_default();
        free.iter_mut()
            .zip(bytes)
            .for_each(|(to, from)| *to = *from);
        let newest = bytes
            .get(bytes.len().saturating_sub(TRAILER_LEN)..)
            .unwrap_or_default();
        for byte in newest {
            let [_, b, c, d] = self.tail;
            self.tail = [b, c, d, *byte];
        }
        // INVARIANT: `kept` and `tail` took the same bytes.
        self.got = self.got.saturating_add(bytes.len());
    }
}

impl Default for Assembler {
    fn default() -> Self {
        Self::new()
    }
}

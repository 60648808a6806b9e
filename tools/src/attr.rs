// SPDX-License-Identifier: GPL-2.0

//! Netlink attributes as values.

use crate::netlink::Malformed;
use netlink_packet_core::NlasIterator;

/// The attributes of a message or of a nest.
#[derive(Clone, Debug, Default)]
pub struct Attrs<'a>(Vec<(u16, &'a [u8])>);

/// A terminated or padded string, fit to be printed: what a peer or a driver put into it cannot
/// steer the terminal.
pub fn text(bytes: &[u8]) -> String {
    let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = String::from_utf8_lossy(bytes);
    text.trim_end_matches(' ')
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

impl<'a> Attrs<'a> {
    /// Reads the attributes in order.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut attributes = Vec::new();
        for attribute in NlasIterator::new(bytes) {
            let attribute = attribute.map_err(|error| Malformed(error.to_string()))?;
            let value = attribute.into_inner();
            let length = usize::from(attribute.length());
            attributes.push((attribute.kind(), value.get(4..length).unwrap_or_default()));
        }
        Ok(Self(attributes))
    }

    /// A value as it is.
    pub fn bytes(&self, kind: u16) -> Option<&'a [u8]> {
        self.0
            .iter()
            .find(|(number, _)| *number == kind)
            .map(|(_, value)| *value)
    }

    /// The values of all attributes of a kind.
    pub fn all(&self, kind: u16) -> impl Iterator<Item = &'a [u8]> + '_ {
        let same = move |(number, _): &&(u16, &'a [u8])| *number == kind;
        self.0.iter().filter(same).map(|(_, value)| *value)
    }

    /// The values of all attributes, for lists whose numbers mean nothing.
    pub fn values(&self) -> impl Iterator<Item = &'a [u8]> + '_ {
        self.0.iter().map(|(_, value)| *value)
    }

    fn fixed<const N: usize>(&self, kind: u16) -> Result<Option<[u8; N]>, Malformed> {
        self.bytes(kind)
            .map(|value| {
                value.first_chunk().copied().ok_or_else(|| {
                    Malformed(format!(
                        "attribute {kind} has {} bytes, not {N}",
                        value.len()
                    ))
                })
            })
            .transpose()
    }

    /// A byte.
    pub fn u8(&self, kind: u16) -> Result<Option<u8>, Malformed> {
        Ok(self.fixed(kind)?.map(u8::from_ne_bytes))
    }

    /// A number of two bytes.
    pub fn u16(&self, kind: u16) -> Result<Option<u16>, Malformed> {
        Ok(self.fixed(kind)?.map(u16::from_ne_bytes))
    }

    /// A number of four bytes.
    pub fn u32(&self, kind: u16) -> Result<Option<u32>, Malformed> {
        Ok(self.fixed(kind)?.map(u32::from_ne_bytes))
    }

    /// A number of eight bytes.
    pub fn u64(&self, kind: u16) -> Result<Option<u64>, Malformed> {
        Ok(self.fixed(kind)?.map(u64::from_ne_bytes))
    }

    /// A number of four or eight bytes.
    pub fn uint(&self, kind: u16) -> Result<Option<u64>, Malformed> {
        match self.bytes(kind) {
            Some(value) if value.len() == 4 => Ok(self.u32(kind)?.map(u64::from)),
            _ => self.u64(kind),
        }
    }

    /// A string, without its padding.
    pub fn text(&self, kind: u16) -> Option<String> {
        self.bytes(kind).map(text)
    }

    /// The attributes inside an attribute.
    pub fn nest(&self, kind: u16) -> Result<Option<Attrs<'a>>, Malformed> {
        self.bytes(kind).map(Attrs::parse).transpose()
    }

    /// The nest that a message consists of.
    pub fn need_nest(&self, kind: u16) -> Result<Attrs<'a>, Malformed> {
        self.nest(kind)?
            .ok_or_else(|| Malformed(format!("attribute {kind} is missing")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::push_attribute;

    #[test]
    fn numbers_strings_and_nests() {
        let mut inner = Vec::new();
        push_attribute(&mut inner, 0, &[7]);
        let mut bytes = Vec::new();
        push_attribute(&mut bytes, 1, &5u32.to_ne_bytes());
        push_attribute(&mut bytes, 2, b"host          \0");
        push_attribute(&mut bytes, 3 | 0x8000, &inner);
        push_attribute(&mut bytes, 4, &9u64.to_ne_bytes());
        let attrs = Attrs::parse(&bytes).unwrap();
        assert_eq!(attrs.u32(1), Ok(Some(5)));
        assert_eq!(attrs.uint(1), Ok(Some(5)));
        assert_eq!(attrs.uint(4), Ok(Some(9)));
        assert_eq!(attrs.text(2).as_deref(), Some("host"));
        assert_eq!(attrs.need_nest(3).unwrap().u8(0), Ok(Some(7)));
        assert_eq!(attrs.u8(99), Ok(None));
        assert!(attrs.need_nest(99).is_err());
    }

    #[test]
    fn short_values_are_refused() {
        let mut bytes = Vec::new();
        push_attribute(&mut bytes, 1, &[1, 2, 3]);
        push_attribute(&mut bytes, 2, &[]);
        let attrs = Attrs::parse(&bytes).unwrap();
        assert!(attrs.u32(1).is_err() && attrs.u64(1).is_err() && attrs.uint(1).is_err());
        assert!(attrs.u8(2).is_err());
        assert!(attrs.nest(1).is_err());
        assert_eq!(attrs.text(2).as_deref(), Some(""));
    }

    #[test]
    fn hostile_attributes() {
        for bytes in [
            &[4, 0, 1][..],
            &[3, 0, 1, 0],
            &[0, 0, 0, 0],
            &[9, 0, 1, 0, 0],
            &[255; 6],
        ] {
            assert!(Attrs::parse(bytes).is_err(), "{bytes:?}");
        }
        // The last attribute's padding may be missing.
        assert!(Attrs::parse(&[5, 0, 1, 0, 9]).is_ok());
        assert!(Attrs::parse(&[]).is_ok());
    }

    #[test]
    fn strings_cannot_steer_the_terminal() {
        assert_eq!(text(b"a\x1b[2Jb\n\0rest"), "a?[2Jb?");
        assert_eq!(text(&[0xff, b'x']), "\u{fffd}x");
        assert_eq!(text(b""), "");
    }
}

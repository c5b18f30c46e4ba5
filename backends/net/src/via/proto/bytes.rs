//! Reads and writes consecutive fields, little-endian.

use super::MESSAGE_MAX;

/// Writes fields into a message. Fields beyond the end are not written, but no message is that long
/// (a test emits each kind).
pub(super) struct Writer<'a> {
    bytes: &'a mut [u8; MESSAGE_MAX],
    at: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(bytes: &'a mut [u8; MESSAGE_MAX]) -> Self {
        Writer { bytes, at: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.at
    }

    pub(super) fn bytes(&mut self, field: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.at..self.at + field.len()) {
            place.copy_from_slice(field);
            self.at += field.len();
        }
    }
}

/// Reads fields; beyond the end every byte is zero.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Reader { rest: bytes }
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut field = [0; N];
        let n = N.min(self.rest.len());
        let (head, rest) = self.rest.split_at(n);
        field[..n].copy_from_slice(head);
        self.rest = rest;
        field
    }

    pub(super) fn rest_is_zero(&self) -> bool {
        self.rest.iter().all(|&b| b == 0)
    }
}

//! Text in a field of fixed length.

use super::body::Codec;
use super::bytes::{Reader, Writer};
use super::Fault;
use core::fmt;

/// UTF-8, at most `N` bytes, padded with zeroes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Text<const N: usize>([u8; N]);

impl<const N: usize> Text<N> {
    /// No text.
    pub const EMPTY: Text<N> = Text([0; N]);

    /// As much of a text as fits, cut between characters and at a zero.
    pub fn new(text: &str) -> Self {
        let text = text.split('\0').next().unwrap_or_default();
        let fits = |end: &usize| text.is_char_boundary(*end);
        let end = (0..=text.len().min(N)).rev().find(fits).unwrap_or(0);
        let mut t = Text::EMPTY;
        t.0[..end].copy_from_slice(&text.as_bytes()[..end]);
        t
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|&b| b == 0).unwrap_or(N);
        core::str::from_utf8(&self.0[..end]).unwrap_or("")
    }
}

impl<const N: usize> Codec for Text<N> {
    fn emit(&self, to: &mut Writer<'_>) {
        to.bytes(&self.0);
    }

    /// Reads only the form that [`Text::new`] makes, so that equal texts are equal bytes.
    fn parse(from: &mut Reader<'_>) -> Result<Self, Fault> {
        let t = Text(from.bytes());
        let end = t.0.iter().position(|&b| b == 0).unwrap_or(N);
        let padded = t.0[end..].iter().all(|&b| b == 0);
        if padded && core::str::from_utf8(&t.0[..end]).is_ok() {
            Ok(t)
        } else {
            Err(Fault::Value)
        }
    }
}

impl<const N: usize> fmt::Debug for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl<const N: usize> fmt::Display for Text<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

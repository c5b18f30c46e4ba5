//! The words of one call: a line in fixed memory, and whether the filter wants it.

use super::Trace;
use core::fmt::{self, Write};
use core::mem::MaybeUninit;
use gdrcore_calls::Object;

/// Longest line, so that one write of it into a pipe is not mixed with others.
pub const LINE_MAX: usize = 4096;
/// Room that the arguments leave for the result and the reason of a refusal.
const RESULT_ROOM: usize = 700;
/// Room that an element of a list may need.
const ELEMENT_ROOM: usize = 400;
/// Behind what is cut.
const CUT: &str = "...";

/// Text in fixed memory; what does not fit is cut between characters.
pub struct Line {
    bytes: [MaybeUninit<u8>; LINE_MAX],
    len: usize,
    limit: usize,
    is_cut: bool,
}

impl Line {
    /// No text yet, and room for the result kept.
    pub fn new() -> Line {
        Line {
            bytes: [const { MaybeUninit::uninit() }; LINE_MAX],
            len: 0,
            limit: LINE_MAX - RESULT_ROOM,
            is_cut: false,
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        // SAFETY: so many bytes were written, from whole characters.
        unsafe {
            let bytes = core::slice::from_raw_parts(self.bytes.as_ptr().cast::<u8>(), self.len);
            core::str::from_utf8_unchecked(bytes)
        }
    }

    /// Opens the room for the result.
    pub fn results(&mut self) {
        self.limit = LINE_MAX - 1;
        self.is_cut = false;
    }

    /// Removes the text.
    pub fn clear(&mut self) {
        (self.len, self.is_cut) = (0, false);
    }

    fn push(&mut self, text: &str) {
        for (to, from) in self.bytes[self.len..].iter_mut().zip(text.bytes()) {
            to.write(from);
        }
        self.len += text.len();
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.is_cut {
            return Ok(());
        }
        let room = self.limit - CUT.len() - self.len.min(self.limit - CUT.len());
        let mut take = text.len().min(room);
        while !text.is_char_boundary(take) {
            take -= 1;
        }
        self.push(&text[..take]);
        if take < text.len() {
            self.is_cut = true;
            self.push(CUT);
        }
        Ok(())
    }
}

/// The beginning of a line: time in microseconds, thread.
pub fn head(to: &mut impl Write, trace: &Trace, (at, thread): (u64, u32)) -> fmt::Result {
    let ns = at.saturating_sub(trace.start_ns);
    write!(to, "{:>9}.{:03} {thread:>7} ", ns / 1000, ns % 1000)
}

/// The line of a call that is being made.
pub struct Words<'a> {
    pub trace: &'static Trace,
    pub line: &'a mut Line,
    /// What a continued line begins with: its time in nanoseconds and its thread.
    pub begins: (u64, u32),
    /// The clauses of the filter that no object has met.
    open: u32,
}

impl Write for Words<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.line.write_str(text)
    }
}

impl<'a> Words<'a> {
    /// Nothing yet. `open`: the filter's clauses about objects.
    pub fn new(
        trace: &'static Trace,
        line: &'a mut Line,
        begins: (u64, u32),
        open: u32,
    ) -> Words<'a> {
        Words { trace, line, begins, open }
    }

    /// Whether the filter wants the call, by the objects that it has named so far.
    pub fn is_wanted(&self) -> bool {
        self.open == 0
    }

    /// Notes an object that the call names.
    pub fn names(&mut self, object: Object, number: u32) {
        if self.open != 0 {
            self.open = self.trace.filter.close(self.open, object, number);
        }
    }

    /// Begins an element of a list. A text that has no room for it goes on in another line.
    pub fn element(&mut self, i: usize) {
        let _ = self.write_str(if i > 0 { ", " } else { "" });
        if self.line.len + ELEMENT_ROOM > self.line.limit && self.is_wanted() {
            if let Some(text) = self.trace.text() {
                let _ = self.line.write_str("\\\n");
                text.write(self.line.as_str());
                let is_result = self.line.limit > LINE_MAX - RESULT_ROOM;
                self.line.clear();
                let _ = head(self.line, self.trace, self.begins);
                let _ = self.line.write_str(if is_result { "    = " } else { "    " });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_line_is_cut_and_keeps_room_for_its_result() {
        let mut line = Line::new();
        for _ in 0..LINE_MAX {
            let _ = line.write_str("ä");
        }
        let cut = line.as_str().len();
        assert!(line.as_str().ends_with("ä...") && cut <= LINE_MAX - RESULT_ROOM, "{cut}");
        line.results();
        let _ = line.write_str(" = 0");
        assert!(line.as_str().ends_with("... = 0"));
        let _ = line.write_str(&"x".repeat(LINE_MAX));
        assert_eq!(line.as_str().len(), LINE_MAX - 1);
        line.clear();
        let _ = line.write_str("y");
        assert_eq!(line.as_str(), "y");
    }
}

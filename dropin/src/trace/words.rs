//! The words of one call: a line in fixed memory, and whether the filter wants it.

use super::Trace;
use core::fmt::{self, Write};
use core::mem::MaybeUninit;
use gdrcore_calls::Object;

/// Longest line, so that one write of it into a pipe is not mixed with others.
pub const LINE_MAX: usize = 4096;
/// Room that the arguments leave for the result and the reason of a refusal.
const RESULT_ROOM: usize = 700;
/// Room that the text leaves for its end: a duration, or what says that the line goes on.
pub const END_ROOM: usize = 40;
/// Room that an element of a list may need.
const ELEMENT_ROOM: usize = 400;
/// Behind what is cut.
const CUT: &str = "...";

/// Text in fixed memory; what does not fit is cut between characters.
pub struct Line<const SIZE: usize = LINE_MAX> {
    bytes: [MaybeUninit<u8>; SIZE],
    len: usize,
    limit: usize,
    is_cut: bool,
}

impl Line {
    /// No text yet, and room for the result kept.
    pub fn new() -> Line {
        Line::with_room(RESULT_ROOM)
    }
}

impl<const SIZE: usize> Line<SIZE> {
    /// No text yet. `room`: bytes that are kept.
    pub fn with_room(room: usize) -> Self {
        Line {
            bytes: [const { MaybeUninit::uninit() }; SIZE],
            len: 0,
            limit: SIZE - room,
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
        self.limit = SIZE - END_ROOM;
        self.is_cut = false;
    }

    /// Writes the end of the line into the room that is kept for it.
    pub fn end(&mut self, text: fmt::Arguments<'_>) {
        let limit = core::mem::replace(&mut self.limit, SIZE);
        self.is_cut = false;
        let _ = self.write_fmt(text);
        self.limit = limit;
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

impl<const SIZE: usize> Write for Line<SIZE> {
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
                self.line.end(format_args!("\\\n"));
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
    use crate::trace::{Output, Sink};
    use gdrcore_calls::Filter;

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
        assert_eq!(line.as_str().len(), LINE_MAX - END_ROOM);
        line.end(format_args!(" <{:.3}>\n", u64::MAX as f64 / 1e3));
        assert!(line.as_str().ends_with("x... <18446744073709552.000>\n"));
        line.clear();
        let _ = line.write_str("y");
        assert_eq!(line.as_str(), "y");
    }

    #[test]
    fn a_line_that_is_cut_in_an_element_ends_before_it_goes_on() {
        let file = std::env::temp_dir().join(format!("gdrcore-words-{}", std::process::id()));
        let output = Some(Output::Text(Sink::new(Some(file.clone()), libc::O_APPEND)));
        let trace = Trace { output, counting: false, filter: Filter::default(), start_ns: 0 };
        let mut line = Line::new();
        let mut w = Words::new(Box::leak(Box::new(trace)), &mut line, (0, 1), 0);
        let _ = w.write_str(&"x".repeat(LINE_MAX - RESULT_ROOM - ELEMENT_ROOM - 3));
        w.element(1);
        let _ = w.write_str(&"y".repeat(2 * ELEMENT_ROOM));
        w.element(2);
        assert!(w.line.as_str().ends_with(" 1     "), "{}", w.line.as_str());
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(text.ends_with("yyy...\\\n") && text.len() < LINE_MAX, "{text}");
    }
}

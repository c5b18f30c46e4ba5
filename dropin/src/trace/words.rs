//! The words of one call: a line in fixed memory, and whether the filter wants it.

use super::Trace;
use core::fmt::{self, Write};
use core::mem::MaybeUninit;
use core::net::{IpAddr, Ipv6Addr};
use gdrcore_calls::Object;

/// Longest line, so that one write of it into a pipe is not mixed with others.
pub const LINE_MAX: usize = 4096;
/// Room that the arguments leave for the result and the reason of a refusal.
const RESULT_ROOM: usize = 700;
/// Room that the text leaves for its end: a duration, or what says that the line goes on.
const END_ROOM: usize = 40;
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
    pub fn new() -> Self {
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

    /// The line itself, for [`put`].
    pub fn line(&mut self) -> &mut Line {
        self
    }

    /// Opens the room for the result.
    pub fn results(&mut self) {
        self.limit = LINE_MAX - END_ROOM;
        self.is_cut = false;
    }

    /// Writes the end of the line into the room that is kept for it.
    pub fn end(&mut self, text: &(impl Put + ?Sized)) {
        let limit = core::mem::replace(&mut self.limit, LINE_MAX);
        self.is_cut = false;
        text.put(self);
        self.limit = limit;
    }

    /// Removes the text.
    pub fn clear(&mut self) {
        (self.len, self.is_cut) = (0, false);
    }

    fn push(&mut self, text: &str) {
        // Both of one length, so that it is one copy.
        let room = &mut self.bytes[self.len..][..text.len()];
        for (to, from) in room.iter_mut().zip(text.as_bytes()) {
            to.write(*from);
        }
        self.len += text.len();
    }

    #[cold]
    fn push_cut(&mut self, text: &str) {
        if self.is_cut {
            return;
        }
        let room = (self.limit - CUT.len()).saturating_sub(self.len);
        let mut take = text.len().min(room);
        while !text.is_char_boundary(take) {
            take -= 1;
        }
        self.push(&text[..take]);
        self.is_cut = true;
        self.push(CUT);
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.put(self);
        Ok(())
    }
}

/// A value that a line can have. It is written without `core::fmt`, which takes three times as
/// long, except for what is rare.
pub trait Put {
    /// Writes it.
    fn put(&self, to: &mut Line);
}

/// Writes values into a line, one behind the other.
macro_rules! put {
    ($to:expr, $($value:expr),+ $(,)?) => {{ $($value.put($to.line());)+ }};
}
pub(super) use put;

impl Put for str {
    #[inline]
    fn put(&self, to: &mut Line) {
        match to.is_cut || to.len + self.len() + CUT.len() > to.limit {
            false => to.push(self),
            true => to.push_cut(self),
        }
    }
}

impl Put for fmt::Arguments<'_> {
    fn put(&self, to: &mut Line) {
        let _ = to.write_fmt(*self);
    }
}

impl Put for IpAddr {
    fn put(&self, to: &mut Line) {
        format_args!("{self}").put(to);
    }
}

/// A GID, as an address of IPv6.
impl Put for [u8; 16] {
    fn put(&self, to: &mut Line) {
        format_args!("{}", Ipv6Addr::from(*self)).put(to);
    }
}

/// Writes a number to a base of 10 or 16, padded on the left with `before` to `width` characters.
fn digits<const BASE: u64>(to: &mut Line, mut number: u64, (before, width): (u8, usize)) {
    let mut text = [before; 20];
    let mut at = text.len();
    loop {
        at -= 1;
        text[at] = b"0123456789abcdef"[(number % BASE) as usize];
        number /= BASE;
        if number == 0 {
            break;
        }
    }
    let text = &text[at.min(text.len() - width)..];
    // SAFETY: digits, and a character of ASCII before them.
    unsafe { core::str::from_utf8_unchecked(text) }.put(to);
}

/// A number in hexadecimal.
pub struct Hex<N>(pub N);

macro_rules! put_numbers {
    ($($number:ty)*) => {
        $(
            impl Put for $number {
                fn put(&self, to: &mut Line) {
                    digits::<10>(to, *self as u64, (b' ', 0));
                }
            }

            impl Put for Hex<$number> {
                fn put(&self, to: &mut Line) {
                    "0x".put(to);
                    digits::<16>(to, self.0 as u64, (b' ', 0));
                }
            }
        )*
    };
}
put_numbers! { u8 u16 u32 u64 usize }

impl Put for i32 {
    fn put(&self, to: &mut Line) {
        if *self < 0 {
            "-".put(to);
        }
        self.unsigned_abs().put(to);
    }
}

/// Nanoseconds, shown as microseconds of at least so many characters before the dot.
pub struct Us(pub u64, pub usize);

impl Put for Us {
    fn put(&self, to: &mut Line) {
        digits::<10>(to, self.0 / 1000, (b' ', self.1));
        ".".put(to);
        digits::<10>(to, self.0 % 1000, (b'0', 3));
    }
}

/// The end of a line: how long its call took, in nanoseconds.
pub struct Taken(pub u64);

impl Put for Taken {
    fn put(&self, to: &mut Line) {
        put!(to, " <", Us(self.0, 0), ">\n");
    }
}

/// The beginning of a line: time in microseconds, thread.
pub fn head(to: &mut Line, trace: &Trace, (at, thread): (u64, u32)) {
    put!(to, Us(at.saturating_sub(trace.start_ns), 9), " ");
    digits::<10>(to, thread.into(), (b' ', 7));
    " ".put(to);
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

    /// The line, for [`put`].
    pub fn line(&mut self) -> &mut Line {
        self.line
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
        put!(self, if i > 0 { ", " } else { "" });
        if self.line.len + ELEMENT_ROOM > self.line.limit && self.is_wanted() {
            if let Some(text) = self.trace.text() {
                self.line.end("\\\n");
                text.write(self.line.as_str());
                let is_result = self.line.limit > LINE_MAX - RESULT_ROOM;
                self.line.clear();
                head(self.line, self.trace, self.begins);
                put!(self, if is_result { "    = " } else { "    " });
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
            put!(line, "ä");
        }
        let cut = line.as_str().len();
        assert!(line.as_str().ends_with("ä...") && cut <= LINE_MAX - RESULT_ROOM, "{cut}");
        line.results();
        put!(line, " = 0");
        assert!(line.as_str().ends_with("... = 0"));
        put!(line, "x".repeat(LINE_MAX));
        assert_eq!(line.as_str().len(), LINE_MAX - END_ROOM);
        line.end(&Taken(u64::MAX));
        assert!(line.as_str().ends_with("x... <18446744073709551.615>\n"));
        line.clear();
        put!(line, "y");
        assert_eq!(line.as_str(), "y");
    }

    #[test]
    fn numbers_are_written_as_core_writes_them() {
        let mut line = Line::new();
        for n in [0, 9, 10, 255, u64::from(u32::MAX), u64::MAX] {
            line.clear();
            put!(line, n, " ", Hex(n), " ", n as u8, " ", Hex(n as u32), " ", n as i32);
            let own = format!("{n} {n:#x} {} {:#x} {}", n as u8, n as u32, n as i32);
            assert_eq!(line.as_str(), own);
            line.clear();
            put!(line, i32::MIN, " ", Us(n, 9), Taken(n));
            let (us, ns) = (n / 1000, n % 1000);
            assert_eq!(line.as_str(), format!("{} {us:>9}.{ns:03} <{us}.{ns:03}>\n", i32::MIN));
        }
    }

    #[test]
    fn a_line_that_is_cut_in_an_element_ends_before_it_goes_on() {
        let file = std::env::temp_dir().join(format!("gdrcore-words-{}", std::process::id()));
        let output = Some(Output::Text(Sink::new(Some(file.clone()), libc::O_APPEND)));
        let trace = Trace { output, counting: false, filter: Filter::default(), start_ns: 0 };
        let mut line = Line::new();
        let mut w = Words::new(Box::leak(Box::new(trace)), &mut line, (0, 1), 0);
        put!(w, "x".repeat(LINE_MAX - RESULT_ROOM - ELEMENT_ROOM - 3));
        w.element(1);
        put!(w, "y".repeat(2 * ELEMENT_ROOM));
        w.element(2);
        assert!(w.line.as_str().ends_with(" 1     "), "{}", w.line.as_str());
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(text.ends_with("yyy...\\\n") && text.len() < LINE_MAX, "{text}");
    }
}

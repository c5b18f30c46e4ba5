//! The reason text of a thread's last refused call, which `gdrc_error_detail` copies and the
//! drop-in prints.
//!
//! A refusal writes its text here when it is made ([`gdrcore_core::refuse!`], through [`install`]).
//! The surface that returns the error to the program calls [`note_returned`], which drops the text
//! of an earlier error. The memory is fixed, without allocation, so that a call that fails for lack
//! of memory has a reason too.

use crate::signals::without_signals;
use core::cell::RefCell;
use core::fmt::{self, Write};
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{qp_state, Handle};
use gdrcore_core::{reason, Error};
use std::io::Write as _;
use std::sync::OnceLock;

/// Longest text in bytes; longer ones are cut between characters.
pub const TEXT_MAX: usize = 512;

/// Text in fixed memory. Not a `heapless::String`: that has a destructor, which a thread's first
/// use of [`RECORD`] would have to register, and so to allocate.
struct Text {
    len: usize,
    bytes: [u8; TEXT_MAX],
}

impl Text {
    const EMPTY: Text = Text { len: 0, bytes: [0; TEXT_MAX] };

    fn as_str(&self) -> &str {
        self.bytes.get(..self.len).and_then(|b| core::str::from_utf8(b).ok()).unwrap_or("")
    }
}

impl Write for Text {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let mut take = s.len().min(TEXT_MAX - self.len);
        while !s.is_char_boundary(take) {
            take -= 1;
        }
        self.bytes[self.len..self.len + take].copy_from_slice(&s.as_bytes()[..take]);
        self.len += take;
        // Nothing may be appended after a cut.
        if take < s.len() {
            return Err(fmt::Error);
        }
        Ok(())
    }
}

struct Record {
    /// The error that the text explains.
    error: Option<Error>,
    /// Whether the call has returned the error.
    returned: bool,
    /// Empty: the error's own text.
    text: Text,
    /// How often the record was written.
    changes: u64,
}

thread_local! {
    // Const and without drop: no allocation, no destructor to register.
    static RECORD: RefCell<Record> =
        const {
            RefCell::new(Record { error: None, returned: true, text: Text::EMPTY, changes: 0 })
        };
}

/// Keeps the reasons of refusals from now on. Idempotent. Any thread.
pub fn install() {
    reason::install(set);
}

/// Sets the reason of an error that this thread is about to return.
pub fn set(e: Error, words: fmt::Arguments<'_>) {
    RECORD.with(|r| {
        // The record is already borrowed only if the formatting itself makes a refusal. Then the
        // outer text counts.
        let Ok(mut r) = r.try_borrow_mut() else { return };
        r.error = Some(e);
        r.returned = false;
        r.changes += 1;
        r.text.len = 0;
        // Cut where it is too long.
        let _ = r.text.write_fmt(words);
    });
}

/// Puts `words`, such as the name of the refused part of an argument, before the reason of `e`, or
/// before the text of `e` if it has no reason.
pub fn prefix(e: Error, words: fmt::Arguments<'_>) {
    let mut old = Text::EMPTY;
    let known = read(|said, text| said == Some(e) && old.write_str(text).is_ok());
    match known {
        true => set(e, format_args!("{words}{}", old.as_str())),
        false => set(e, format_args!("{words}{e}")),
    }
}

/// Whether the last reason is that of `e`.
pub fn has_reason(e: Error) -> bool {
    read(|said, text| said == Some(e) && !text.is_empty())
}

/// Makes the last reason that of `e`, which replaces the error that the reason was written for.
pub fn assign_to(e: Error) -> Error {
    RECORD.with(|r| {
        if let Ok(mut r) = r.try_borrow_mut() {
            r.error = Some(e);
        }
    });
    e
}

/// Puts the transition before the reason of a modify that failed with `e`: from the QP's state to
/// the requested one, if any.
#[cold]
pub fn prefix_transition(e: Error, device: &dyn Device, qp: Handle, to: Option<u32>) -> Error {
    if let (Ok((now, _)), Some(to)) = (device.qp_query(qp), to) {
        prefix(e, format_args!("{} to {}: ", qp_state::name(now.qp_state), qp_state::name(to)));
    }
    e
}

/// Notes that a call returns `e` to the program. Drops the reason of another error, which the call
/// handled itself.
#[cold]
pub fn note_returned(e: Error) {
    RECORD.with(|r| {
        let Ok(mut r) = r.try_borrow_mut() else { return };
        let said = !r.returned && r.error.is_some_and(|of| of.errno() == e.errno());
        if !said {
            r.error = Some(e);
            r.text.len = 0;
        }
        r.returned = true;
        r.changes += 1;
    });
}

/// How often this thread has recorded an error. If a call that fails has not changed it, the record
/// is of an earlier one.
pub fn change_count() -> u64 {
    RECORD.with(|r| r.try_borrow().map_or(0, |r| r.changes))
}

/// Drops the record.
pub fn clear() {
    RECORD.with(|r| {
        let Ok(mut r) = r.try_borrow_mut() else { return };
        (r.error, r.returned, r.text.len) = (None, true, 0);
    });
}

/// Passes the last error and its reason to `f`: an empty text if the error has only the text of
/// [`Error`].
fn read<T>(f: impl FnOnce(Option<Error>, &str) -> T) -> T {
    RECORD.with(|r| match r.try_borrow() {
        Ok(r) => f(r.error, r.text.as_str()),
        Err(_) => f(None, ""),
    })
}

/// Whether `GDRC_VERBOSE` requests a line for each refusal. Reads the variable once, because a
/// program may repeat an impossible call without end.
pub fn is_verbose() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var("GDRC_VERBOSE").is_ok_and(|v| !v.is_empty() && v != "0"))
}

/// A line on standard error.
pub fn say(words: fmt::Arguments<'_>) {
    // One write, so that lines of several threads and processes do not mix. The program may have
    // closed standard error, or the reader of its pipe may have ended.
    let line = format!("gdrcore: {words}\n");
    let _ = without_signals(|| std::io::stderr().write_all(line.as_bytes()));
}

/// Passes the text of this thread's last error to `f`: its reason, or the error's own text; empty
/// if there was none.
pub fn with_text<T>(f: impl FnOnce(fmt::Arguments<'_>) -> T) -> T {
    read(|e, text| match e {
        Some(e) if text.is_empty() => f(format_args!("{e}")),
        _ => f(format_args!("{text}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_core::refuse;

    fn words() -> String {
        with_text(|words| words.to_string())
    }

    #[test]
    fn a_refusal_keeps_its_words_until_the_next_error() {
        install();
        clear();
        let e = refuse!(Invalid, "cqe {}: at most {}", 9, 8);
        assert_eq!(e, Error::from_errno(22));
        note_returned(e);
        assert_eq!(words(), "cqe 9: at most 8");
        // The next error has no reason. The last reason must not be reported for it, although the
        // errno is the same.
        note_returned(Error::StaleHandle);
        assert_eq!(words(), Error::StaleHandle.to_string());
        clear();
        assert_eq!(words(), "");
    }

    #[test]
    fn each_record_is_a_change() {
        install();
        let before = change_count();
        let e = refuse!(Invalid, "cqe 9: at most 8");
        let refused = change_count();
        note_returned(e);
        assert!(before < refused && refused < change_count());
    }

    #[test]
    fn words_of_an_error_that_was_handled_inside_do_not_count() {
        install();
        let _ = refuse!(Busy, "cq: another thread polls it");
        note_returned(Error::NoMemory);
        assert_eq!(words(), Error::NoMemory.to_string());
    }

    #[test]
    fn the_part_is_named_before_the_reason() {
        install();
        let e = refuse!(Invalid, "port 'x': not a number");
        prefix(e, format_args!("'soft:[::1]:x': "));
        assert_eq!(words(), "'soft:[::1]:x': port 'x': not a number");
        assert_eq!(assign_to(Error::NoDevice), Error::NoDevice);
        note_returned(Error::NoDevice);
        assert_eq!(words(), "'soft:[::1]:x': port 'x': not a number");
        prefix(Error::TimedOut, format_args!("'nothing': "));
        assert_eq!(words(), format!("'nothing': {}", Error::TimedOut));
    }

    #[test]
    fn a_text_is_cut_between_characters_and_is_each_threads_own() {
        install();
        let long = "ä".repeat(TEXT_MAX);
        note_returned(refuse!(Invalid, "x{long}{}", "never"));
        assert_eq!(words(), format!("x{}", "ä".repeat((TEXT_MAX - 1) / 2)));
        std::thread::spawn(|| assert_eq!(words(), "")).join().unwrap();
    }
}

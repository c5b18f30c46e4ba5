//! Strings of JSON.

use core::fmt::Write;

/// Appends a text as a string of JSON.
pub fn quoted(to: &mut String, text: &str) {
    to.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => to.extend(['\\', c]),
            c if c < ' ' => _ = write!(to, "\\u{:04x}", c as u32),
            c => to.push(c),
        }
    }
    to.push('"');
}

//! Faults of a file with their places, and checks of values.

use super::Fault;
use toml::Spanned;

/// Longest name of a tenant or a network; the protocol has 64 bytes for each.
const NAME_MAX: usize = 63;

/// A fault: its byte offset in the text, and what is wrong.
pub(super) struct Wrong(pub(super) usize, pub(super) String);

pub(super) type Checked<T> = Result<T, Wrong>;

pub(super) fn wrong<T, V>(at: &Spanned<T>, what: impl Into<String>) -> Checked<V> {
    Err(Wrong(at.span().start, what.into()))
}

/// A fault at a place in a text.
pub(super) fn fault(text: &str, at: usize, what: String) -> Fault {
    // An error at the end of the text has an offset behind the last byte.
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
    Fault { line, column, what }
}

/// Checks the name of a tenant, a network or a host.
pub(super) fn check_name(name: &Spanned<String>) -> Checked<()> {
    check_name_text(name.get_ref()).or_else(|what| wrong(name, what))
}

/// The same for a text outside a file; the error is in words.
pub(super) fn check_name_text(text: &str) -> Result<(), String> {
    let fits = !text.is_empty() && text.len() <= NAME_MAX;
    if fits && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
        return Ok(());
    }
    Err(format!("name '{text}': up to {NAME_MAX} letters, digits, '-', '_' and '.'"))
}

pub(super) fn number(
    at: Option<&Spanned<i64>>,
    name: &str,
    least: i64,
    most: i64,
) -> Checked<Option<i64>> {
    match at {
        Some(n) if !(least..=most).contains(n.get_ref()) => {
            wrong!(n, "{name} {}: from {least} to {most}", n.get_ref())
        }
        other => Ok(other.map(|n| *n.get_ref())),
    }
}

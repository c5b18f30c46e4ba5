//! Faults of a file with their places, and checks of values.

use super::address::{self, Cidr};
use super::Fault;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
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

/// Reads the tables of a file.
pub(super) fn read_toml<T: DeserializeOwned>(text: &str) -> Result<T, Fault> {
    toml::from_str(text).map_err(|e| {
        let start = e.span().map_or(0, |span| span.start);
        fault(text, start, e.message().trim().replace('\n', " "))
    })
}

/// Tables by name, in the order of the file.
pub(super) fn in_order<T>(tables: &BTreeMap<Spanned<String>, T>) -> Vec<(&Spanned<String>, &T)> {
    let mut all: Vec<_> = tables.iter().collect();
    all.sort_by_key(|(name, _)| name.span().start);
    all
}

/// The value of a key that has one of a few words; `default` without the key.
pub(super) fn one_of<T: Copy>(
    at: Option<&Spanned<String>>,
    key: &str,
    default: T,
    words: &[(&str, T)],
) -> Checked<T> {
    let Some(at) = at else { return Ok(default) };
    match words.iter().find(|(word, _)| word == at.get_ref()) {
        Some((_, value)) => Ok(*value),
        None => {
            let words: Vec<_> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
            wrong!(at, "{key} '{}': {}", at.get_ref(), words.join(" or "))
        }
    }
}

/// The virtual address of a tenant.
pub(super) fn vip(at: &Spanned<String>) -> Checked<[u8; 16]> {
    match address::parse(at.get_ref()) {
        Some(gid) => Ok(gid),
        None => wrong!(at, "vip '{}': an address that a host can have", at.get_ref()),
    }
}

/// A range of addresses.
pub(super) fn range(at: &Spanned<String>, key: &str) -> Checked<Cidr> {
    let text = at.get_ref();
    match Cidr::parse(text) {
        Some(range) => Ok(range),
        None => wrong!(at, "{key} '{text}': a range such as 10.99.0.0/16 or fd99::/64"),
    }
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

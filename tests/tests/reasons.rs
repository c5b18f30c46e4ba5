//! Checks that refusals have reasons: code that makes an EINVAL, an ENOMEM, an EBUSY, an EFAULT or
//! an EOPNOTSUPP names the argument, bound or object by `refuse!`.

use gdrcore_tests::source::{code, files, relative, root, without_tests};

/// Errors that need words: which argument, which bound and its option, which object and its user.
/// The numbers of the others tell the caller what to do: poll, or wait.
const NEED_WORDS: &[&str] = &["Invalid", "StaleHandle", "Unsupported", "NoMemory", "Busy", "Fault"];
/// The folders of sources that programs call.
const SOURCES: &[&str] = &["core/src", "backends", "ffi/src", "dropin"];
/// Files that make no refusals of their own: the error numbers, and devices of tests.
const LEFT_OUT: &[&str] = &[
    "core/src/error.rs",
    "core/src/reason.rs",
    "ffi/src/tests/fake_device.rs",
    "dropin/ucma/src/session/tests/session_lab.rs",
];
/// Files that carve memory whose size they, or their callers, have computed: an open without enough
/// of it is explained by `ffi/src/open_error.rs`, and pools and the heap name the bound.
const CARVE: &[&str] = &[
    "core/src/arena.rs",
    "core/src/arena/heap.rs",
    "core/src/arena/table.rs",
    "core/src/wheel.rs",
    "backends/net/src/map.rs",
    "backends/net/src/pcap.rs",
    "backends/net/src/shm/port/tx.rs",
    "backends/net/src/shm/segment.rs",
    "backends/net/src/soft/device.rs",
    "backends/net/src/soft/layout.rs",
    "backends/net/src/soft/open.rs",
    "backends/net/src/udp.rs",
    "backends/verbs/src/slots.rs",
    "ffi/src/lifecycle.rs",
    "dropin/src/hca.rs",
];
/// Errors that they make without words.
const CARVED: &[&str] = &["Error::NoMemory", "Error::Busy"];
/// A comment on one of the two lines before such an error, which says why it has no words.
const EXCUSE: &str = "// No words";

/// Lines of `text` that make such an error without words. A pattern (`Err(Error::Invalid) =>`)
/// makes none.
fn mute(file: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let shipped = without_tests(&code(text));
    let makes = |line: &str| {
        NEED_WORDS.iter().any(|name| {
            let path = format!("Error::{name}");
            line.match_indices(&path).any(|(at, _)| {
                let after = &line[at + path.len()..];
                let whole = !after.starts_with(|c: char| c.is_alphanumeric() || c == '_');
                let own = !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
                let compared =
                    line[..at].trim_end().ends_with("==") || line[..at].trim_end().ends_with("!=");
                let carved = CARVE.contains(&file) && CARVED.contains(&path.as_str());
                whole
                    && own
                    && !carved
                    && !after.contains("=>")
                    && !compared
                    && !line.contains("matches!")
                    && !line.contains("assert")
            })
        })
    };
    let excused =
        |n: usize| lines[n.saturating_sub(2)..n].iter().any(|l| l.trim_start().starts_with(EXCUSE));
    let faults = shipped.lines().enumerate().filter(|(n, line)| makes(line) && !excused(*n));
    faults.map(|(n, line)| format!("{file}:{}: {}", n + 1, line.trim())).collect()
}

#[test]
fn every_refusal_has_a_reason() {
    let mut faults = Vec::new();
    let mut seen = 0;
    for file in SOURCES.iter().flat_map(|dir| files(&root().join(dir), &["rs"])) {
        let name = relative(&file);
        if LEFT_OUT.contains(&name.as_str())
            || name.contains("/tests/")
            || name.ends_with("/tests.rs")
        {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("a source");
        seen += text.matches("refuse!(").count();
        faults.extend(mute(&name, &text));
    }
    assert!(seen > 300, "only {seen} refusals were found");
    assert!(faults.is_empty(), "no words (use refuse!):\n{}", faults.join("\n"));
}

#[test]
fn the_check_finds_refusals_without_reason() {
    for bad in [
        "return Err(Error::Invalid);",
        "x.ok_or(crate::Error::StaleHandle)?;",
        "_ => Err(Error::Unsupported),",
        "let e = if a { Error::Invalid } else { Error::Again };",
        "x.ok_or(Error::NoMemory)?;",
        "return Err(Error::Busy);",
    ] {
        assert_eq!(mute("x", bad).len(), 1, "{bad}");
    }
    for good in [
        "Err(Error::Invalid | Error::NoDevice) => return Err(Error::AddressNotLocal),",
        "return Err(refuse!(Invalid, \"cqe 0\"));",
        "/// [`Error::Invalid`]: no such state.",
        "// No words: the record has them.\nErr(Error::Unsupported)",
        "if e != Error::Invalid {}",
        "return Err(Error::Again);",
        "KeyError::Invalid",
        "#[cfg(test)]\nmod tests {\n    fn f() { Err(Error::Invalid) }\n}",
    ] {
        assert!(mute("x", good).is_empty(), "{good}: {:?}", mute("x", good));
    }
}

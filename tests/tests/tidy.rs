//! Rules of this repository that a machine can check: sizes, unsafe code, names, deliberate faults.

use gdrcore_tests::or_skip;
use gdrcore_tests::source::{code, files, is_test_only, relative, root, without_tests, words};
use gdrcore_tests::tools::{installed, run};
use std::path::PathBuf;
use std::process::Command;

/// Longest file, in lines.
const LINES_MAX: usize = 900;

/// Modules of core that may hold unsafe code, each with its purpose.
const UNSAFE_IN_CORE: &[&str] = &[
    "arena",           // deals out raw memory
    "ring",            // slots in raw memory, shared by two threads
    "mem/host",        // copies to and from program memory
    "wire/icrc/clmul", // vector instructions
    "wire/icrc/cpu",   // checks which of them the CPU has
    "wire/icrc/armv8", // asks the CPU for its instructions
    "verbs/post",      // reads the request lists of C programs
    "verbs/shared",    // the engine's ends of the rings
    "engine/control",  // installs rings
    "engine/layout",   // lays the engine out in its arena
    "engine/mod",      // the lock, and the device trait's unsafe calls
    "device",          // declares them
];

/// Our own sources; generated and third-party files left out.
fn sources(extensions: &[&str]) -> Vec<(PathBuf, String)> {
    let generated = |name: &str| name == "include/gdrcore.h" || name.contains("/golden/");
    files(&root(), extensions)
        .into_iter()
        .filter(|f| !generated(&relative(f)))
        .filter_map(|f| std::fs::read_to_string(&f).ok().map(|text| (f, text)))
        .collect()
}

fn check(extensions: &[&str], fault: impl Fn(&str, &str) -> Vec<String>) {
    let sources = sources(extensions);
    assert!(sources.len() > 5, "sources were not found");
    let faults: Vec<String> =
        sources.iter().flat_map(|(f, text)| fault(&relative(f), text)).collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn no_file_is_too_long_to_read() {
    check(&["rs", "c", "h", "py", "sh"], |file, text| {
        let lines = text.lines().count();
        if lines > LINES_MAX {
            vec![format!("{file}: {lines} lines")]
        } else {
            vec![]
        }
    });
}

/// Longest line, in characters.
const COLUMNS_MAX: usize = 100;

/// Lines of a file that are too long and could be broken. Not counted are rows of Markdown tables,
/// single words (links), and what a Markdown page quotes, between fences or indented by four.
fn wide_lines(file: &str, text: &str) -> Vec<String> {
    let markdown = file.ends_with(".md");
    let mut quoted = false;
    let mut wide = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let bare = line.trim_start();
        quoted ^= markdown && bare.starts_with("```");
        let prose = bare.strip_prefix("//!").or(bare.strip_prefix("///")).map(str::trim_start);
        let is_row = if markdown { bare } else { prose.unwrap_or_default() }.starts_with('|');
        // The marker of a comment or list item is not a word.
        let mut words = bare.split_whitespace().skip_while(|w| !w.contains(char::is_alphanumeric));
        let is_word = words.next().is_some() && words.next().is_none();
        let columns = line.chars().count();
        let quoted = quoted || (markdown && line.starts_with("    "));
        if columns > COLUMNS_MAX && !quoted && !is_row && !is_word {
            wide.push(format!("{file}:{}: {columns} columns", n + 1));
        }
    }
    wide
}

#[test]
fn no_line_is_longer_than_100_columns() {
    check(&["rs", "c", "h", "py", "sh", "md"], wide_lines);
    let wide = |file: &str, line: &str| wide_lines(file, line).len();
    let words = format!("// {}", "ä b ".repeat(24));
    assert_eq!((words.chars().count(), wide("x.rs", &words)), (99, 0), "characters, not bytes");
    assert_eq!(wide("x.rs", &format!("{words}cd")), 1);
    let row = format!("| {words} |");
    let tables = [("x.md", row.clone()), ("x.rs", format!("//! {row}"))];
    assert!(tables.iter().all(|(file, row)| wide(file, row) == 0));
    assert_eq!(wide("x.py", &row), 1, "no table");
    let link = format!("  - https://example.org/{}", "x".repeat(90));
    assert_eq!((wide("x.md", &link), wide("x.md", &format!("see {link}"))), (0, 1));
    let page = format!("```\n{words}cd\n```\n{words}cd\n");
    assert_eq!(wide_lines("x.md", &page), ["x.md:4: 101 columns"]);
}

/// Lines of code (comments and literals blanked) that hold one of `marks`.
fn marked(file: &str, text: &str, marks: &[String]) -> Vec<String> {
    let code = code(text);
    let hit = |line: &str| marks.iter().any(|m| line.contains(m.as_str()));
    code.lines()
        .enumerate()
        .filter(|(_, l)| hit(l))
        .map(|(n, l)| format!("{file}:{}: {}", n + 1, l.trim()))
        .collect()
}

#[test]
fn nothing_is_unfinished_or_switched_off() {
    // The marks are composed of parts, so that the search does not find them here.
    let marks = ["#[ign-ore", "to-do!(", "unimpl-emented!("].map(|m| m.replace('-', ""));
    check(&["rs"], |file, text| marked(file, text, &marks));
    assert_eq!(marked("x", &format!("fn f() {{ {}) }}", marks[1]), &marks).len(), 1);
}

#[test]
fn no_path_of_a_machine_is_named() {
    let marks =
        ["/ho-me/", "/ro-ot/", "/wo-rk/", "/fa-rm/", "../sha-red"].map(|m| m.replace('-', ""));
    check(&["rs", "c", "h", "py", "sh", "toml", "md", "in", "cmake"], |file, text| {
        let hit = |line: &str| {
            marks.iter().any(|m| {
                line.match_indices(m.as_str()).any(|(at, _)| {
                    !line[..at].ends_with(|c: char| {
                        c.is_alphanumeric() || c == '_' || c == '.' || c == '}'
                    })
                })
            })
        };
        text.lines()
            .enumerate()
            .filter(|(_, l)| hit(l))
            .map(|(n, l)| format!("{file}:{}: {}", n + 1, l.trim()))
            .collect()
    });
}

/// Functions whose names ask a question and which may change what they ask.
fn acting_questions(file: &str, text: &str) -> Vec<String> {
    let code = code(text);
    let signatures = code.match_indices("fn ").map(|(at, _)| {
        let rest = &code[at + 3..];
        &rest[..rest.find(['{', ';']).unwrap_or(rest.len())]
    });
    let asks = |s: &str| ["is_", "has_", "may_"].iter().any(|word| s.starts_with(word));
    signatures
        .filter(|s| asks(s) && s.contains("&mut self"))
        .map(|s| format!("{file}: {}", s.lines().next().unwrap_or_default()))
        .collect()
}

#[test]
fn what_asks_changes_nothing() {
    check(&["rs"], acting_questions);
    let faults = |text: &str| acting_questions("x", text).len();
    assert_eq!(faults("fn is_late<'a>(\n    &mut self,\n) -> bool {"), 1);
    assert_eq!(faults("fn is_late(&self) -> bool { f(&mut self) } fn may(&mut self);"), 0);
}

/// Whether the module file `rel` (below core/src) belongs to an allowed module.
fn may_be_unsafe(rel: &str) -> bool {
    let module = rel.trim_end_matches(".rs");
    UNSAFE_IN_CORE.iter().any(|m| module == *m || module.starts_with(&format!("{m}/")))
}

#[test]
fn unsafe_stays_in_its_modules() {
    let lib = std::fs::read_to_string(root().join("core/src/lib.rs")).expect("core/src/lib.rs");
    check(&["rs"], |file, text| {
        let Some(rel) = file.strip_prefix("core/src/") else { return vec![] };
        let shipped = without_tests(&code(text));
        let uses = !is_test_only(rel, &lib) && words(&shipped).any(|w| w == "unsafe");
        if uses && !may_be_unsafe(rel) {
            vec![format!("{file}: unsafe outside its modules")]
        } else {
            vec![]
        }
    });
    assert!(
        may_be_unsafe("mem/host/copy.rs")
            && !may_be_unsafe("mem/region.rs")
            && !may_be_unsafe("wire/mod.rs")
    );
    assert!(lib.contains("#![deny(unsafe_code)]"));
}

/// Lines with an unsafe block or impl without a SAFETY comment before it.
fn unproved(file: &str, text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let blanked = code(text);
    let opens = |line: &str| {
        line.match_indices("unsafe").any(|(at, _)| {
            let after = line[at + 6..].trim_start();
            after.starts_with('{') || after.starts_with("impl")
        })
    };
    let mut faults = Vec::new();
    for (n, line) in blanked.lines().enumerate().filter(|(_, l)| opens(l)) {
        let proved = lines[n.saturating_sub(10)..=n].iter().any(|l| l.contains("SAFETY"));
        if !proved {
            faults.push(format!("{file}:{}: no SAFETY: {}", n + 1, line.trim()));
        }
    }
    faults
}

#[test]
fn every_unsafe_block_has_its_proof() {
    check(&["rs"], unproved);
    assert_eq!(unproved("x", "fn f() {\n    unsafe { g() }\n}").len(), 1);
    assert_eq!(unproved("x", "// SAFETY: g needs nothing.\nunsafe { g() }"), [""; 0]);
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    for lint in ["undocumented_unsafe_blocks", "too_many_lines"] {
        assert!(manifest.contains(&format!("{lint} = \"deny\"")), "clippy looks for {lint}");
    }
    for crate_manifest in files(&root(), &["toml"]).iter().filter(|f| f.ends_with("Cargo.toml")) {
        let text = std::fs::read_to_string(crate_manifest).expect("readable manifest");
        let inherits = text.contains("[lints]") && text.contains("workspace = true");
        assert!(
            inherits || text.contains("[workspace.lints"),
            "{} lacks [lints]",
            relative(crate_manifest)
        );
    }
}

/// Who notices the faults of tests/faults is found by a long command; one whose text is gone would
/// silently prove nothing.
#[test]
fn every_deliberate_fault_has_its_place_in_the_sources() {
    let python = or_skip!(installed("python3"));
    let done = run(Command::new(python).arg(root().join("scripts/mutate.py")).arg("--stale"), 60);
    assert!(done.ok(), "{done}");
}

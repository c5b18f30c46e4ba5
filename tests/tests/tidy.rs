//! Habits of this repository that a machine can check.

use gdrcore_tests::skip;
use gdrcore_tests::source::{code, files, is_test_only, relative, root, without_tests, words};
use gdrcore_tests::tools::{find, run};
use std::path::PathBuf;
use std::process::Command;

/// Longer files hold a second idea that wants its own home.
const LINES_MAX: usize = 900;

/// Modules of core that may hold unsafe code, each with what for.
const UNSAFE_IN_CORE: &[&str] = &[
    "arena",           // deals out raw memory
    "ring",            // slots in raw memory, shared by two threads
    "mem/host",        // copies to and from program memory
    "wire/icrc/clmul", // vector instructions
    "wire/icrc/cpu",   // which of them there are
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

/// Functions that are longer than [`FUNCTION_MAX`], and their lines. The list may only shrink, and
/// so may its numbers.
const LONG_FUNCTIONS: &[(&str, &str, usize)] = &[
    ("backends/net/src/soft/open.rs", "init", 117),
    ("core/src/mem/host/x86_64.rs", "transfer", 127),
    ("core/src/roce/answers.rs", "transmit_answers", 101),
    ("core/tests/engine/single.rs", "compare", 102),
    ("dropin/ucma/src/proto/mod.rs", "parse", 134),
    ("dropin/ucma/src/proto/tests.rs", "all", 119),
    ("ffi/tests/reasons.rs", "objects_and_memory", 108),
    ("ffi/tests/reasons.rs", "queue_pairs", 139),
    ("fuzz/src/capi/wild.rs", "wild", 110),
    ("sim/src/link.rs", "post", 170),
    ("tests/tests/hostile_peers.rs", "processes_stopped_for_five_seconds", 104),
];
/// Lines of the longest function otherwise, from `fn` to its closing brace.
const FUNCTION_MAX: usize = 100;

/// The functions of a source file: name and lines.
fn functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (i, line) in lines.iter().enumerate() {
        let indent = &line[..line.len() - line.trim_start().len()];
        let words: Vec<&str> = line.split_whitespace().collect();
        let leads = |w: &&str| {
            w.starts_with("pub")
                || matches!(*w, "const" | "unsafe" | "extern" | "\"C\"" | "in" | "async")
        };
        let Some(at) = words
            .iter()
            .position(|w| !leads(w) && !w.ends_with(')'))
            .filter(|at| words[*at] == "fn")
        else {
            continue;
        };
        let name: String = words
            .get(at + 1)
            .map_or("", |w| w)
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect();
        let end = lines[i..].iter().position(|l| l.strip_prefix(indent) == Some("}"));
        let whole = !line.ends_with('}') && !line.ends_with(';');
        found.extend(end.filter(|_| whole).map(|n| (name, n + 1)));
    }
    found
}

#[test]
fn no_function_is_too_long_to_read() {
    assert_eq!(
        functions("fn a() {\n    b\n}\n    pub(crate) unsafe fn c(x: u8)\n    {\n    }\n"),
        [("a".into(), 3), ("c".into(), 3)]
    );
    let mut known: Vec<_> = LONG_FUNCTIONS.to_vec();
    check(&["rs"], |file, text| {
        let long = functions(text).into_iter().filter(|(_, lines)| *lines > FUNCTION_MAX);
        let fault = |(name, lines): (String, usize)| {
            let allowed = LONG_FUNCTIONS
                .iter()
                .any(|(f, n, most)| *f == file && *n == name && lines <= *most);
            (!allowed).then(|| format!("{file}: {name} has {lines} lines"))
        };
        long.filter_map(fault).collect()
    });
    known.retain(|(file, name, most)| {
        let text = std::fs::read_to_string(root().join(file)).unwrap_or_default();
        !functions(&text).iter().any(|(n, lines)| n == name && lines == most)
    });
    assert!(known.is_empty(), "shorter by now, or gone: {known:?}");
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
    // Put together from parts, so that a search for the marks themselves finds none here.
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

/// Lines with an unsafe block or impl that no SAFETY comment goes before.
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
    assert!(
        manifest.contains("undocumented_unsafe_blocks = \"deny\""),
        "clippy looks too, and exactly"
    );
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

/// The table of docs/records/PROOF.md is made by a command that takes long; a fault whose place has
/// changed would silently prove nothing.
#[test]
fn every_deliberate_fault_has_its_place_in_the_sources() {
    let Some(python) = find("python3") else { skip!("no python3") };
    let done = run(Command::new(python).arg(root().join("scripts/mutate.py")).arg("--stale"), 60);
    assert!(done.ok(), "{}", done.output);
}

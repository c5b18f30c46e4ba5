//! The man pages of libibverbs and librdmacm, sentence by sentence: what a call returns, its
//! errors, and what is ignored, rounded, must hold or is not supported. `tests/data/man-pages.tsv`
//! has a row for each of Debian 12's sentences: its checksum, its pages, what it says in our words,
//! and the function that checks it, or the reason why none does.
//!
//! The failed test of the table prints the sentences that have no row.

use gdrcore_tests::or_skip;
use gdrcore_tests::rdmacm::command;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{compile, loopback, run, scratch, verbs_compiler};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

const TABLE: &str = "tests/data/man-pages.tsv";
/// The packages, and the version that the table is of.
const PACKAGES: [&str; 2] = ["libibverbs-dev", "librdmacm-dev"];
const VERSION: &str = "44.0-2";
/// Pages of hardware's own calls: docs/using/DROPIN.md lists those of mlx5dv that work.
const HARDWARE: [&str; 5] = ["mlx4dv", "mlx5dv", "efadv", "manadv", "hnsdv"];
/// Sections of which each sentence counts.
const SECTIONS: [&str; 2] = ["RETURN", "ERROR"];
/// Elsewhere those with one of these count, and those with the name of an errno.
const KINDS: [&str; 8] =
    ["ignore", "rounded", "at least", "must", "fail ", "fails ", "not supported", "unsupported"];

/// A paragraph of a page, in plain text, and its section.
type Paragraph = (String, String);

/// The text of a line without fonts and escapes.
fn plain(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        // `\fB`, `\f(CW`, `\f[B]`, `\-`, `\(bu`, `\[cq]`, `\&`.
        let mut escape = rest.next();
        let is_font = escape == Some('f');
        if is_font {
            escape = rest.next();
        }
        match escape {
            Some('(') => _ = rest.nth(1),
            Some('[') => rest.by_ref().take_while(|c| *c != ']').for_each(drop),
            Some('-') => out.push('-'),
            Some(' ') => out.push(' '),
            _ => {}
        }
    }
    out
}

fn paragraphs(page: &str) -> Vec<Paragraph> {
    let (mut found, mut section, mut text) = (Vec::new(), String::new(), String::new());
    let mut example = false;
    for line in page.lines().chain([".PP"]) {
        let (name, arguments) = line.split_once(' ').unwrap_or((line, ""));
        match name {
            _ if !name.starts_with(['.', '\'']) && !line.trim().is_empty() => {
                if !example {
                    text += &plain(line);
                    text.push(' ');
                }
            }
            ".B" | ".I" | ".R" | ".BR" | ".BI" | ".IR" | ".IB" | ".RB" | ".RI" if !example => {
                text += &plain(&arguments.replace('"', ""));
                text.push(' ');
            }
            _ if name.starts_with(".\\\"") || name.starts_with("'\\\"") => {}
            _ => {
                found.push((section.clone(), std::mem::take(&mut text)));
                example = match name {
                    ".nf" | ".EX" => true,
                    ".fi" | ".EE" => false,
                    _ => example,
                };
                if name == ".SH" {
                    section = plain(arguments).trim_matches('"').to_owned();
                }
            }
        }
    }
    found
}

/// Its sentences, with the names of calls left out, so that pages share them.
fn sentences(paragraph: &str) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut ended = false;
    for word in paragraph.split_whitespace() {
        if ended && word.starts_with(|c: char| c.is_uppercase() || "\"(".contains(c)) {
            all.push(String::new());
        }
        ended = word.ends_with(['.', ':', ';']);
        let last = all.last_mut().expect("one");
        if !last.is_empty() {
            last.push(' ');
        }
        match word.split_once("()") {
            Some((call, more)) if call.contains('_') => *last += &format!("(){more}"),
            _ => *last += word,
        }
    }
    all
}

fn counts(section: &str, sentence: &str) -> bool {
    let lower = sentence.to_lowercase();
    let errno = |w: &str| w.len() > 3 && w.starts_with('E') && w.chars().all(char::is_uppercase);
    !sentence.is_empty()
        && (SECTIONS.iter().any(|s| section.starts_with(s))
            || KINDS.iter().any(|k| lower.contains(k))
            || sentence.split(|c: char| !c.is_alphanumeric() && c != '_').any(errno))
}

/// FNV-1a.
fn checksum(sentence: &str) -> String {
    let sum =
        sentence.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    format!("{sum:08x}")
}

/// The sentences that count, by checksum: the words, and the pages. `Err`: why they cannot be had.
fn of_debian() -> Result<BTreeMap<String, (String, BTreeSet<String>)>, String> {
    let mut all: BTreeMap<String, (String, BTreeSet<String>)> = BTreeMap::new();
    for package in PACKAGES {
        let asked = run(Command::new("dpkg-query").args(["-W", "-f", "${Version}", package]), 20);
        if !asked.ok() || asked.output.trim() != VERSION {
            return Err(format!("{package} {VERSION} is not installed: {}", asked.output.trim()));
        }
        let listed = run(Command::new("dpkg-query").args(["-L", package]), 20).output;
        let pages = listed.lines().filter(|l| l.contains("/man3/") && l.ends_with(".3.gz"));
        let mut read = 0;
        for path in pages.map(Path::new).filter(|p| p.exists() && !p.is_symlink()) {
            let name = path.file_name().and_then(|n| n.to_str()).expect("a name");
            let name = name.trim_end_matches(".3.gz").to_owned();
            if HARDWARE.iter().any(|h| name.starts_with(h)) {
                continue;
            }
            let page = run(Command::new("gzip").arg("-dc").arg(path), 20);
            assert!(page.ok(), "{}: {page}", path.display());
            read += 1;
            for (section, text) in paragraphs(&page.output) {
                for sentence in sentences(&text).into_iter().filter(|s| counts(&section, s)) {
                    let row = all.entry(checksum(&sentence)).or_default();
                    row.0 = sentence;
                    row.1.insert(name.clone());
                }
            }
        }
        if read == 0 {
            return Err(format!("the man pages of {package} are left out here"));
        }
    }
    Ok(all)
}

/// What is wrong with the last column of a row: a test, or a reason.
fn fault_of(home: &str) -> Option<String> {
    let (kind, what) = home.split_once(": ")?;
    let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap_or_default();
    let is_there = match kind {
        "c" => what.split_once(' ').is_some_and(|(file, function)| {
            let text = read(&format!("tests/c/{file}.c"));
            text.contains(&format!("static void {function}(void)\n"))
                && text.contains(&format!("    {function}"))
        }),
        "test" => what.split_once(' ').is_some_and(|(file, function)| {
            read(&format!("tests/tests/{file}.rs"))
                .contains(&format!("#[test]\nfn {function}() {{"))
        }),
        "DROPIN.md" => read("docs/using/DROPIN.md").contains(what),
        "reason" => what.len() > 8,
        _ => false,
    };
    (!is_there).then(|| format!("no such test or words: {home}"))
}

#[test]
fn every_sentence_has_a_test_or_a_reason() {
    let mut known = or_skip!(of_debian());
    let table = std::fs::read_to_string(root().join(TABLE)).expect(TABLE);
    let mut faults = Vec::new();
    for line in table.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [sum, pages, words, home] = columns[..] else {
            faults.push(format!("not four columns: {line}"));
            continue;
        };
        if words.is_empty() || !home.contains(": ") {
            faults.push(format!("an empty column: {line}"));
        }
        faults.extend(fault_of(home));
        let pages: BTreeSet<String> = pages.split(' ').map(str::to_owned).collect();
        match known.remove(sum) {
            Some((sentence, of)) if of != pages => {
                faults.push(format!("{sum}: on {of:?}, not {pages:?}: {sentence}"));
            }
            Some(_) => {}
            None => faults.push(format!("{sum}: no page has this sentence, or it has two rows")),
        }
    }
    let lacks = known.iter().map(|(sum, (sentence, pages))| {
        let pages: Vec<&str> = pages.iter().map(String::as_str).collect();
        format!("no row: {sum}\t{}\t{sentence}", pages.join(" "))
    });
    faults.extend(lacks);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Runs a program of `tests/c` that checks them, on a device of one engine and of several.
#[track_caller]
fn says_ok(name: &str, n: u32, takes_address: bool) {
    or_skip!(verbs_compiler());
    let dir = scratch(name);
    let program = compile("cc", name, &dir, &["-libverbs", "-lrdmacm", "-lpthread"]);
    for engines in ["1", "2"] {
        let address = loopback(n, 1);
        let mut c = command(Some(&address), &["--engines", engines], &program);
        if takes_address {
            c.arg(&address);
        }
        let done = run(&mut c, 60);
        let ok = done.ok() && done.output.ends_with("ok\n");
        assert!(ok, "{engines} engines: {done}");
    }
}

#[test]
fn libibverbs_does_what_its_pages_say() {
    says_ok("man_verbs", 180, false);
}

#[test]
fn librdmacm_does_what_its_pages_say() {
    says_ok("man_cm", 181, true);
}

#[test]
fn sentences_are_found_in_pages() {
    let page = ".TH X 3\n.\\\" at least a comment\n.SH DESCRIPTION\nThe \\fBcqe\\fR is at \
                least\n.I one.\nPlain. It must\n.PP\nbe.\n.nf\nint must(void);\n.fi\n\
                .SH \"RETURN VALUE\"\nibv_x() returns 0\\&. EINVAL\\[cq]s\n";
    let all: Vec<String> = paragraphs(page)
        .iter()
        .flat_map(|(section, text)| {
            let section = section.clone();
            sentences(text).into_iter().filter(move |s| counts(&section, s)).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(all, ["The cqe is at least one.", "It must", "() returns 0.", "EINVALs"]);
    assert_eq!(checksum(""), "811c9dc5");
    assert_ne!(checksum("a"), checksum("b"));
    for bad in ["c: man_verbs no_such", "test: man_pages no_such", "reason: x", "nothing"] {
        assert!(fault_of(bad).is_some() || !bad.contains(": "), "{bad}");
    }
    assert_eq!(fault_of("test: man_pages every_sentence_has_a_test_or_a_reason"), None);
    assert_eq!(fault_of("c: man_verbs names_and_numbers"), None);
}

//! docs/records/SPEC-MAP.md: the rules of the wire, of the transport and of the connection manager,
//! each with the code that is its home and the tests that would fail without it. Its tables are
//! made from citations in the sources, and those of operations and queue pairs from the tables of
//! opcodes and kinds; `GDRC_BLESS=1 cargo test -p gdrcore-tests --test spec_map` writes them.
//!
//! A citation is a comment that begins with its source and, where several rules have one source, a
//! name. At the home a sentence of ours follows; a test has the citation alone:
//!
//! ```text
//! // IBTA C9-94: The DMA length of a READ or WRITE is at most 2^31 bytes.
//! // rxe rxe_resp.c check_psn, gap: A request ahead of the expected PSN draws one NAK.
//! // Linux cm.c cm_dup_req_handler
//! ```

use gdrcore_core::verbs::kind::QpKind;
use gdrcore_core::wire::{Class, Opcode, PacketKind};
use gdrcore_tests::source::{files, relative, root};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;

/// Folders that are searched for citations.
const FOLDERS: [&str; 4] = ["core", "backends", "tests/tests", "tests/src/rxe"];

/// Cases against Linux's rxe, which `tests/tests/interop.rs` runs: they are functions, not tests of
/// their own.
const CASES: &str = "tests/src/rxe/";

/// Rules that lack a test. This list may only shrink.
const UNTESTED: &[&str] = &[];

/// The parts of the map, by the folder or file of a rule's home; the first that matches counts.
const PARTS: &[(&str, &str)] = &[
    ("core/src/wire/", "Packets"),
    ("core/src/roce/run.rs", "Packets"),
    ("core/src/engine/rx.rs", "Packets in"),
    ("core/src/roce/mod.rs", "Packets in"),
    ("core/src/roce/rules/receive.rs", "Packets in"),
    ("core/src/roce/multicast.rs", "Datagrams"),
    ("core/src/roce/datagram.rs", "Datagrams"),
    ("core/src/roce/requester.rs", "Requester"),
    ("core/src/roce/rules/send.rs", "Requester"),
    ("core/src/roce/rnr.rs", "Requester"),
    ("core/src/roce/timers.rs", "Requester"),
    ("core/src/roce/responder.rs", "Responder"),
    ("core/src/roce/answers.rs", "Responder"),
    ("core/src/roce/rules/accept.rs", "Responder"),
    ("core/src/roce/rules/recv.rs", "Responder"),
    ("core/src/roce/completer.rs", "Completer"),
    ("core/src/roce/siege.rs", "Completer"),
    ("core/src/roce/rules/ack.rs", "Completer"),
    ("core/src/roce/congestion.rs", "Congestion"),
    ("core/src/dcqcn.rs", "Congestion"),
    ("core/src/mem/", "Keys"),
    ("core/src/roce/", "Queue pairs and completions"),
    ("core/src/verbs/", "Queue pairs and completions"),
    ("core/src/engine/cm.rs", "Connection manager"),
    ("core/src/engine/", "Queue pairs and completions"),
    ("core/src/cm/", "Connection manager"),
];

const PAGE: &str = "docs/records/SPEC-MAP.md";
/// This test writes the page from this line on.
const MARK: &str = "<!-- Written by tests/tests/spec_map.rs from here on. -->\n";

/// A comment that cites a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Citation {
    rule: String,
    /// The rule in our words; `None` where it is only cited.
    sentence: Option<String>,
    /// `file:function`.
    place: String,
    of_tests: bool,
}

/// Whether a comment begins with a source: a number of the standard, or a file of Linux and its
/// function.
fn is_citation(comment: &str) -> bool {
    let mut words = comment.split([' ', ',', ':']);
    let (source, place) = (words.next(), words.next().unwrap_or_default());
    match source {
        Some("IBTA") => {
            let number = place.trim_start_matches(|c: char| c.is_ascii_alphabetic());
            number.starts_with(|c: char| c.is_ascii_digit()) && number.contains(['-', '.'])
        }
        Some("rxe" | "Linux") => place.ends_with(".c") || place.ends_with(".h"),
        _ => false,
    }
}

/// The name of the item that begins at a line of code; the line is not part of a comment.
fn item(line: &str) -> Option<&str> {
    let end = |s: &str| s.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(s.len());
    let mut rest = line.trim_start();
    loop {
        let (word, after) = rest.split_at(end(rest));
        match word {
            "fn" | "const" | "static" | "struct" | "enum" if after.starts_with(' ') => {
                let name = after.trim_start();
                if !name.starts_with("fn ") && !name.starts_with("unsafe ") {
                    return Some(&name[..end(name)]);
                }
                rest = name;
            }
            "pub" | "unsafe" | "async" => {
                rest = after.trim_start();
                if let Some((_, behind)) = rest.strip_prefix('(').and_then(|r| r.split_once(')')) {
                    rest = behind.trim_start();
                }
            }
            _ if !word.is_empty() && after.starts_with('!') => return Some(word),
            _ => return None,
        }
    }
}

fn is_function(line: &str) -> bool {
    item(line).is_some() && line.split_whitespace().any(|w| w == "fn")
}

/// The function that contains a line, or else the item that follows: its first line and its name.
fn home(lines: &[&str], at: usize) -> Option<(usize, String)> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let inside = (0..at).rev().find(|&i| {
        is_function(lines[i])
            && !lines[i].ends_with(['}', ';'])
            && lines[i + 1..]
                .iter()
                .position(|l| l.trim_start() == "}" && indent(l) == indent(lines[i]))
                .is_some_and(|end| i + 1 + end > at)
    });
    let next = (at..lines.len()).find(|&i| {
        let line = lines[i].trim_start();
        !(line.is_empty() || line.starts_with("//") || line.starts_with("#["))
    });
    let first = inside.or(next)?;
    Some((first, item(lines[first])?.to_string()))
}

/// The first line of a source file that is compiled for tests only.
fn tests_begin(file: &str, lines: &[&str]) -> usize {
    if file.contains("/tests/") || file.ends_with("tests.rs") || file.starts_with(CASES) {
        return 0;
    }
    let inline = |pair: &[&str]| pair[0] == "#[cfg(test)]" && pair[1] == "mod tests {";
    lines.windows(2).position(inline).unwrap_or(lines.len())
}

/// The citations of a source file. The error names one outside of any item.
fn citations(file: &str, text: &str) -> Result<Vec<Citation>, String> {
    let lines: Vec<&str> = text.lines().collect();
    let tests = tests_begin(file, &lines);
    let comment = |i: usize| lines.get(i).and_then(|l| l.trim_start().strip_prefix("// "));
    let mut found = Vec::new();
    for at in 0..lines.len() {
        let Some(words) = comment(at).filter(|c| is_citation(c)) else { continue };
        let (rule, sentence) = match words.split_once(": ") {
            None => (words.to_string(), None),
            Some((rule, begin)) => {
                let mut sentence = begin.to_string();
                for i in at + 1.. {
                    match comment(i).filter(|c| !sentence.ends_with('.') && !is_citation(c)) {
                        Some(more) => sentence += &format!(" {more}"),
                        None => break,
                    }
                }
                (rule.to_string(), Some(sentence))
            }
        };
        let wrong = || format!("{file}:{}: a citation in no function", at + 1);
        let (first, name) = home(&lines, at).ok_or_else(wrong)?;
        let of_tests = at >= tests;
        let marks = &lines[first.saturating_sub(4)..first];
        let is_test = marks.iter().any(|l| l.trim() == "#[test]") || file.starts_with(CASES);
        let macros = lines[first].trim_start().starts_with("proptest!");
        if of_tests && !is_test && !macros {
            return Err(format!("{file}:{}: {name} is no test", at + 1));
        }
        found.push(Citation { rule, sentence, place: format!("{file}:{name}"), of_tests });
    }
    Ok(found)
}

/// A rule, its home, and its tests.
#[derive(Debug, Default)]
struct Rule {
    sentence: String,
    home: String,
    tests: Vec<String>,
}

/// All rules by their citations, and the faults of the citations.
fn rules(all: &[Citation], untested: &[&str]) -> (BTreeMap<String, Rule>, Vec<String>) {
    let mut rules: BTreeMap<String, Rule> = BTreeMap::new();
    let mut faults = Vec::new();
    for c in all.iter().filter(|c| !c.of_tests) {
        let Some(sentence) = &c.sentence else { continue };
        if !sentence.starts_with(|c: char| c.is_uppercase()) || !sentence.ends_with('.') {
            faults.push(format!("{}: {}: no sentence: {sentence}", c.place, c.rule));
        }
        let home = c.place.clone();
        let rule = Rule { sentence: sentence.clone(), home, tests: Vec::new() };
        if let Some(other) = rules.insert(c.rule.clone(), rule) {
            faults.push(format!("{}: {}: {} states it as well", c.place, c.rule, other.home));
        }
    }
    for c in all {
        match rules.get_mut(&c.rule) {
            None => faults.push(format!("{}: {}: no code states the rule", c.place, c.rule)),
            Some(_) if c.of_tests && c.sentence.is_some() => {
                faults.push(format!("{}: {}: the sentence belongs to the code", c.place, c.rule));
            }
            Some(rule) if c.of_tests && !rule.tests.contains(&c.place) => {
                rule.tests.push(c.place.clone());
            }
            Some(_) => {}
        }
    }
    for (name, rule) in &rules {
        if rule.tests.is_empty() != untested.contains(&name.as_str()) {
            faults.push(format!("{}: {name}: tests: {:?}", rule.home, rule.tests));
        }
    }
    (rules, faults)
}

fn part(home: &str) -> Option<&'static str> {
    PARTS.iter().find(|(prefix, _)| home.starts_with(prefix)).map(|(_, part)| *part)
}

/// The tables of the page.
fn tables(rules: &BTreeMap<String, Rule>) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for (_, part) in PARTS {
        if !parts.contains(part) {
            parts.push(part);
        }
    }
    let mut out = format!("\n{} rules.\n", rules.len());
    for name in parts {
        let of_part = rules.iter().filter(|(_, r)| part(&r.home) == Some(name));
        let mut rows = String::new();
        for (rule, r) in of_part {
            let code = |place: &str| format!("`{place}`");
            let tests: Vec<String> = r.tests.iter().map(|t| code(t)).collect();
            let tests = tests.join("<br>");
            writeln!(rows, "| {rule} | {} | {} | {tests} |", r.sentence, code(&r.home)).unwrap();
        }
        if !rows.is_empty() {
            write!(
                out,
                "\n## {name}\n\n| source | rule | code | tests |\n|---|---|---|---|\n{rows}"
            )
            .unwrap();
        }
    }
    out
}

/// The classes that the standard gives numbers, and DC, which has some of the manufacturers'.
const CLASSES: [(Class, &str); 7] = [
    (Class::Rc, "RC"),
    (Class::Uc, "UC"),
    (Class::Rd, "RD"),
    (Class::Ud, "UD"),
    (Class::Cnp, "CNP"),
    (Class::Xrc, "XRC"),
    (Class::Dc, "DC"),
];
/// Operations, named as in the standard.
const OPERATIONS: [(PacketKind, &str); 12] = [
    (PacketKind::Send, "SEND"),
    (PacketKind::Write, "RDMA WRITE"),
    (PacketKind::ReadRequest, "RDMA READ"),
    (PacketKind::ReadResponse, "RDMA READ response"),
    (PacketKind::Ack, "ACKNOWLEDGE"),
    (PacketKind::AtomicAck, "ATOMIC ACKNOWLEDGE"),
    (PacketKind::CmpSwap, "CMP & SWAP"),
    (PacketKind::FetchAdd, "FETCH & ADD"),
    (PacketKind::Flush, "FLUSH"),
    (PacketKind::AtomicWrite, "ATOMIC WRITE"),
    (PacketKind::Cnp, "CNP"),
    (PacketKind::DcControl, "DC's own"),
];

/// Numbers as hexadecimal ranges.
fn ranges(numbers: &[u8]) -> String {
    let mut out: Vec<(u8, u8)> = Vec::new();
    for &n in numbers {
        match out.last_mut() {
            Some((_, last)) if *last + 1 == n => *last = n,
            _ => out.push((n, n)),
        }
    }
    let text = |(a, b): (u8, u8)| match a == b {
        true => format!("{a:02X}"),
        false => format!("{a:02X}-{b:02X}"),
    };
    out.into_iter().map(text).collect::<Vec<_>>().join(", ")
}

/// The tables of what is implemented: opcodes by operation and class, and the kinds of queue pairs.
fn implemented() -> String {
    let opcodes = || (0..=u8::MAX).map(Opcode);
    assert!(opcodes().all(|o| OPERATIONS.iter().any(|k| k.0 == o.kind()) == o.is_known()));
    let names: Vec<&str> = CLASSES.iter().map(|c| c.1).collect();
    let mut out = format!(
        "\n## Operations\n\nOpcodes, by `core/src/wire/opcode.rs`; packets of any other are \
         malformed.\n\n| operation | {} |\n|---|{}\n",
        names.join(" | "),
        "---|".repeat(names.len())
    );
    for (kind, name) in OPERATIONS {
        let of = |class: Class| -> String {
            let is = |o: &Opcode| o.kind() == kind && o.class() == class;
            ranges(&opcodes().filter(is).map(|o| o.0).collect::<Vec<_>>())
        };
        let cells: Vec<String> = CLASSES.iter().map(|c| of(c.0)).collect();
        writeln!(out, "| {name} | {} |", cells.join(" | ")).unwrap();
    }
    out += "\n## Queue pairs\n\nTypes, by `core/src/verbs/kind.rs`; any other number is refused. ";
    out += "Contexts of a\nDCT answer for it.\n\n";
    out += "| type | number | class | reliable | sends requests | answers requests |\n";
    out += "|---|---|---|---|---|---|\n";
    let yes = |does: bool| if does { "yes" } else { "no" };
    for number in 0..1024 {
        let Some(kind) = QpKind::from_number(number) else { continue };
        let class = CLASSES.iter().find(|c| c.0 == kind.class()).expect("a class").1;
        writeln!(
            out,
            "| {kind} | {number} | {class} | {} | {} | {} |",
            yes(kind.is_reliable()),
            yes(kind.has_requester()),
            yes(kind.answers())
        )
        .unwrap();
    }
    out
}

/// Whether a word names a class or an operation that has opcodes here.
fn is_known(word: &str) -> bool {
    let class = CLASSES.iter().find(|c| c.1 == word).map(|c| c.0);
    let kind = OPERATIONS.iter().find(|k| k.1 == word).map(|k| k.0);
    (0..=u8::MAX)
        .map(Opcode)
        .any(|o| o.is_known() && (class == Some(o.class()) || kind == Some(o.kind())))
}

fn sources() -> Vec<PathBuf> {
    FOLDERS.iter().flat_map(|dir| files(&root().join(dir), &["rs"])).collect()
}

#[test]
fn every_rule_has_code_and_tests_and_its_row() {
    let mut all = Vec::new();
    let mut faults = Vec::new();
    for file in sources() {
        let name = relative(&file);
        let text = std::fs::read_to_string(&file).expect("a source file");
        // This file contains citations as examples.
        if name != "tests/tests/spec_map.rs" {
            match citations(&name, &text) {
                Ok(found) => all.extend(found),
                Err(fault) => faults.push(fault),
            }
        }
    }
    let (rules, wrong) = rules(&all, UNTESTED);
    faults.extend(wrong);
    let homeless = rules.values().filter(|r| part(&r.home).is_none());
    faults.extend(homeless.map(|r| format!("{}: in no part of the map", r.home)));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let page = root().join(PAGE);
    let text = std::fs::read_to_string(&page).expect(PAGE);
    let (head, written) = text.split_once(MARK).expect("the mark");
    let wanted = tables(&rules) + &implemented();
    let lacks = head.split_once("## Not implemented").expect("what is not implemented").1;
    for feature in lacks.lines().filter_map(|l| l.strip_prefix("| ")?.split(" |").next()) {
        let said: Vec<&str> = feature.split([',', ' ', ':']).filter(|w| is_known(w)).collect();
        assert!(said.is_empty(), "{PAGE} lacks what the tables have: {said:?}: {feature}");
    }
    if std::env::var_os("GDRC_BLESS").is_some() {
        std::fs::write(&page, format!("{head}{MARK}{wanted}")).expect(PAGE);
    } else {
        assert!(written == wanted, "{PAGE} is of other citations: run this with GDRC_BLESS=1");
    }
}

#[test]
fn wrong_citations_are_found() {
    let code = "impl X {\n    fn f() {\n        // IBTA C9-94: At most\n        // two.\n        \
                g()\n    }\n}\n// Linux cm.c cm_a, one: Said.\nconst A: u8 = 0;\n";
    let test = "// IBTA C9-94\n#[test]\nfn t() {\n    // Linux cm.c cm_a, one\n}\n";
    let all = |parts: &[(&str, &str)]| -> Vec<Citation> {
        parts.iter().flat_map(|(file, text)| citations(file, text).unwrap()).collect()
    };
    let faults = |parts: &[(&str, &str)]| rules(&all(parts), &[]).1;
    let (good, none) = rules(&all(&[("core/src/a.rs", code), ("core/tests/t.rs", test)]), &[]);
    assert!(none.is_empty(), "{none:?}");
    let rule = &good["IBTA C9-94"];
    assert_eq!((rule.sentence.as_str(), rule.home.as_str()), ("At most two.", "core/src/a.rs:f"));
    assert_eq!(rule.tests, ["core/tests/t.rs:t"]);
    assert_eq!(good["Linux cm.c cm_a, one"].home, "core/src/a.rs:A");
    assert_eq!(faults(&[("core/src/a.rs", code)]).len(), 2, "code without tests");
    assert_eq!(faults(&[("core/tests/t.rs", test)]).len(), 2, "tests without code");
    let twice = [("core/src/a.rs", code), ("core/src/b.rs", code), ("core/tests/t.rs", test)];
    assert_eq!(faults(&twice).len(), 2, "two homes");
    assert_eq!(rules(&all(&[("core/src/a.rs", code)]), &["IBTA C9-94"]).1.len(), 1);
    assert!(citations("core/tests/t.rs", "// IBTA C9-94\nfn helper() {}\n").is_err());
    assert!(citations("core/src/a.rs", "// IBTA C9-94: Said.\n").is_err());
    // Prose about the same sources is no citation.
    for prose in ["// rxe sends one ACK", "// IBTA: 2^31", "/// REJ (IBTA 12.6.7)", "// IBTA has"] {
        assert_eq!(citations("core/src/a.rs", &format!("{prose}\nfn f() {{}}\n")), Ok(vec![]));
    }
    let inline = "// IBTA C9-94: Said.\nfn f() {}\n#[cfg(test)]\nmod tests {\n    \
                  // IBTA C9-94\n    #[test]\n    fn t() {}\n}\n";
    assert!(faults(&[("core/src/a.rs", inline)]).is_empty(), "tests in the file itself");
}

#[test]
fn opcodes_are_written_as_ranges_and_names_are_known() {
    assert_eq!(ranges(&[0, 1, 2, 5, 0x1c, 0x1d]), "00-02, 05, 1C-1D");
    assert!(["DC", "FLUSH", "UD", "CNP"].into_iter().all(is_known));
    assert!(["RD", "partitions", "QP0"].into_iter().all(|w| !is_known(w)));
}

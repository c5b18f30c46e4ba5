//! The page's lists of events and of device flags are complete, by the headers that programs are
//! compiled against, and true, by the sources and the device.

use gdrcore_tests::or_skip;
use gdrcore_tests::rdmacm::command;
use gdrcore_tests::source::{files, root};
use gdrcore_tests::tools::{find, installed, loopback, run, verbs_compiler};
use std::collections::BTreeMap;

const VERBS: &str = "/usr/include/infiniband/verbs.h";
const CMA: &str = "/usr/include/rdma/rdma_cma.h";

/// A file of this repository.
fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).expect("a file of this repository")
}

/// The names of an enum of a C header, with the text behind each.
fn names<'a>(header: &'a str, of: &str) -> Vec<(&'a str, &'a str)> {
    let (_, body) = header.split_once(&format!("enum {of} {{")).expect("the enum");
    let (body, _) = body.split_once('}').expect("its end");
    let entry = |line: &'a str| {
        let line = line.trim().trim_end_matches(',');
        let (name, value) = line.split_once('=').unwrap_or((line, ""));
        Some((name.trim(), value.trim())).filter(|(name, _)| name.starts_with(char::is_uppercase))
    };
    body.lines().filter_map(entry).collect()
}

/// The rows of the page's tables whose first column is a name with this beginning: the other
/// columns.
fn rows(beginning: &str) -> BTreeMap<String, Vec<String>> {
    let page = read("docs/using/DROPIN.md");
    let mut all = BTreeMap::new();
    for line in page.lines().filter(|l| l.starts_with(&format!("| `{beginning}"))) {
        let mut cells =
            line.trim_matches('|').split(" |").map(|c| c.trim().trim_matches('`').to_string());
        let name = cells.next().expect("a first column");
        assert!(all.insert(name.clone(), cells.collect()).is_none(), "{name} twice");
    }
    all
}

/// The text of all sources below these folders.
fn sources(folders: &[&str]) -> Vec<String> {
    let all = folders.iter().flat_map(|folder| files(&root().join(folder), &["rs"]));
    let read = |file: std::path::PathBuf| std::fs::read_to_string(file).expect("a source");
    all.map(read).collect()
}

/// Whether a text has a word.
fn has(text: &str, word: &str) -> bool {
    let ends =
        |at: usize| !text[at + word.len()..].starts_with(|c: char| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, _)| ends(at))
}

/// The events of one header: it, its enum, the beginning of its names, our enum, the beginning of
/// those, and the modules by whose names the sources raise them.
type Kind = [&'static str; 7];
const KINDS: [Kind; 2] = [
    [VERBS, "ibv_event_type", "IBV_EVENT_", "gdrc_event_type", "GDRC_EVENT_", "async_event", ""],
    [
        CMA,
        "rdma_cm_event_type",
        "RDMA_CM_EVENT_",
        "gdrc_cm_event_type",
        "GDRC_CM_EVENT_",
        "cm_event",
        "number",
    ],
];

#[test]
fn every_event_of_the_headers_is_raised_or_listed_as_never_raised() {
    or_skip!(verbs_compiler());
    let own = read("include/gdrcore.h");
    let tests = sources(&["tests/tests", "core", "dropin/ucma"]);
    let raising = [
        "core/src/cm",
        "core/src/engine",
        "core/src/inject",
        "core/src/roce",
        "backends/net/src/soft",
    ];
    let raising = sources(&[&raising[..], &["dropin/ucma/src/session"]].concat());
    for [header, of, beginning, own_enum, own_beginning, module, other] in KINDS {
        let mut rows = rows(beginning);
        for (name, _) in names(&own, own_enum) {
            let name = name.replacen(own_beginning, beginning, 1);
            assert!(rows.contains_key(&name), "{name} is in gdrcore.h");
        }
        let text = std::fs::read_to_string(header).expect("a header");
        for (name, _) in names(&text, of) {
            let row = rows.remove(name).unwrap_or_else(|| panic!("{name}: no row"));
            let is_raised = !row[0].starts_with("never: ");
            let words = [module, other].map(|m| format!("{m}::{}", &name[beginning.len()..]));
            let is_in_sources = raising.iter().any(|t| words.iter().any(|w| has(t, w)));
            assert_eq!(is_in_sources, is_raised, "{name}");
            let test = format!("fn {}()", row[1]);
            assert_eq!(tests.iter().any(|t| t.contains(&test)), is_raised, "{name}: {}", row[1]);
        }
        assert!(rows.is_empty(), "not in {header}: {rows:?}");
    }
}

#[test]
fn device_flags_are_those_of_the_page() {
    or_skip!(verbs_compiler());
    or_skip!(installed("ibv_devinfo"));
    let done = run(
        command(Some(&loopback(187, 1)), &[], find("ibv_devinfo").expect("found")).arg("-v"),
        30,
    );
    let flags = done.output.lines().find_map(|l| l.trim().strip_prefix("device_cap_flags:"));
    let flags = flags.unwrap_or_else(|| panic!("{}", done.output)).trim().trim_start_matches("0x");
    let mut flags = u32::from_str_radix(flags, 16).expect("a number");
    let (header, mut rows) =
        (std::fs::read_to_string(VERBS).expect("a header"), rows("IBV_DEVICE_"));
    for (name, value) in names(&header, "ibv_device_cap_flags") {
        let bit = match value.split_once("<<") {
            Some((_, shift)) => 1u32 << shift.trim().parse::<u32>().expect("a shift"),
            None => value.parse().expect("a number"),
        };
        assert_eq!(flags & bit != 0, rows.remove(name).is_some(), "{name}");
        flags &= !bit;
    }
    assert!(rows.is_empty() && flags == 0, "{rows:?} {flags:#x}");
}

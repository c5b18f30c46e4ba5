//! Names of the code that stand in the pages are declared where the pages say.

use gdrcore_tests::source::{files, relative, root};
use std::fs;
use std::path::Path;

/// The pages for those who change the code, and those for users that name its modules.
const PAGES: [&str; 3] = ["docs", "docs/internals", "docs/using"];
/// Names that are no modules: of Rust's own, and CMake's target.
const FOREIGN: [&str; 2] = ["std", "gdrcore"];

struct Source {
    path: String,
    text: String,
}

impl Source {
    /// Whether it is the file of a module, or of something within it.
    fn is_of(&self, module: &str) -> bool {
        let stem = self.path.trim_end_matches(".rs");
        let crate_of = module.trim_start_matches("gdrcore_");
        stem.split('/')
            .any(|part| part == module || part == crate_of || part == module.replace('_', "-"))
            || ["impl ", "struct ", "enum ", "trait ", "union ", "mod "].iter().any(|item| {
                self.text.lines().any(|line| line.contains(item) && has_word(line, module))
            })
    }

    /// Whether it declares a name, as an item, a field or a row of a macro's table, or is its file.
    fn declares(&self, name: &str) -> bool {
        let stem = self.path.trim_end_matches("/mod.rs").trim_end_matches(".rs");
        stem.ends_with(&format!("/{name}")) || self.text.lines().any(|line| declares(line, name))
    }
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_word) && !line[at + word.len()..].starts_with(is_word)
    })
}

fn declares(line: &str, name: &str) -> bool {
    const ITEMS: [&str; 11] = [
        "fn",
        "struct",
        "enum",
        "const",
        "static",
        "trait",
        "type",
        "mod",
        "union",
        "macro_rules!",
        "extern \"C\" fn",
    ];
    let line = line.trim_start();
    let line = line.strip_prefix("pub").map_or(line, |rest| rest.trim_start_matches(['(', ')']));
    let starts =
        |text: &str| text.strip_prefix(name).is_some_and(|rest| !rest.starts_with(is_word));
    let item = ITEMS.iter().any(|item| {
        line.match_indices(item).any(|(at, _)| {
            !line[..at].ends_with(is_word) && starts(line[at + item.len()..].trim_start())
        })
    });
    let row = line.trim_start().strip_prefix(name);
    item || row.is_some_and(|rest| rest.trim_start().starts_with([':', ',', '(', '=', '{']))
}

fn sources() -> Vec<Source> {
    let read = |path: &Path| fs::read_to_string(path).expect("a source");
    let all = files(&root(), &["rs"]);
    all.iter().map(|path| Source { path: relative(path), text: read(path) }).collect()
}

/// What is wrong in a page: names that are not where it says.
fn wrong(page: &str, sources: &[Source]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut of: Vec<&Source> = Vec::new();
    let mut before = "";
    for (n, part) in page.split('`').enumerate() {
        if n % 2 == 0 {
            before = part;
            continue;
        }
        let is_name = part.split("::").all(|word| {
            word.starts_with(|c: char| c == '_' || c.is_alphabetic()) && word.chars().all(is_word)
        });
        let (module, name) = part.rsplit_once("::").unwrap_or(("", part));
        if part.ends_with(".rs") && !part.contains('*') {
            let end = format!("/{part}");
            of = sources.iter().filter(|s| s.path == part || s.path.ends_with(&end)).collect();
            if of.is_empty() {
                wrong.push(format!("{part}: no such file"));
            }
        } else if is_name && !of.is_empty() && matches!(before, ", " | " and " | ", and ") {
            if !of.iter().any(|s| s.declares(name)) {
                wrong.push(format!("{part} is not in {}", of[0].path));
            }
        } else {
            of.clear();
            let home = module.rsplit("::").next().unwrap_or_default();
            let own = is_name && !module.is_empty() && !FOREIGN.contains(&home);
            if own && !sources.iter().any(|s| s.is_of(home) && s.declares(name)) {
                wrong.push(format!("{part}: not declared"));
            }
        }
    }
    wrong
}

#[test]
fn names_in_pages_are_declared_where_they_say() {
    let sources = sources();
    let mut all = Vec::new();
    for folder in PAGES {
        for entry in fs::read_dir(root().join(folder)).expect(folder) {
            let path = entry.expect("entry").path();
            if path.extension().is_some_and(|e| e == "md") {
                let page = fs::read_to_string(&path).expect("page");
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                all.extend(wrong(&page, &sources).into_iter().map(|w| format!("{name}: {w}")));
            }
        }
    }
    let tour = fs::read_to_string(root().join("CONTRIBUTING.md")).expect("CONTRIBUTING.md");
    all.extend(wrong(&tour, &sources).into_iter().map(|w| format!("CONTRIBUTING.md: {w}")));
    assert!(all.is_empty(), "{all:#?}");
}

#[test]
fn a_name_that_is_not_there_is_found() {
    let text = "pub(crate) fn pass(x: u32) {}\nstruct A {\n    pub field: u8,\n}\n".to_string();
    let sources = [Source { path: "router/src/daemon/session_rings.rs".into(), text }];
    let of = |page: &str| wrong(page, &sources).len();
    assert_eq!(of("`session_rings.rs`, `pass` and `A::field`; `daemon::session_rings`"), 0);
    assert_eq!(of("`session_rings.rs`, `passes`"), 1);
    assert_eq!(of("`daemon::lanes`, `lanes.rs`"), 2);
}

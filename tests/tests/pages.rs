//! Names of the code that stand in the pages are declared where the pages say, and constants have
//! the values that the pages give.

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

/// The numbers that stand before constants in a page, `8 us (`TURN_NS`)`: number and name.
fn stated(page: &str) -> Vec<(f64, &str)> {
    let parts: Vec<&str> = page.split('`').collect();
    let pairs = parts.windows(2).enumerate().filter(|(n, _)| n % 2 == 0).map(|(_, pair)| pair);
    pairs.filter_map(|pair| Some((number(pair[0].strip_suffix('(')?)?, pair[1]))).collect()
}

/// The number at the end of a text, with its unit: times in nanoseconds, sizes in bytes.
fn number(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace().rev();
    let last = words.next()?;
    let parse = |word: &str| word.replace(',', "").parse::<f64>().ok();
    let unit = match last {
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1048576.0,
        _ => 1.0,
    };
    // Of `64 such packets` the number is two words before its unit.
    parse(last).or_else(|| words.take(2).find_map(parse).map(|number| number * unit))
}

/// The value of a constant's expression: numbers, one shift or products.
fn value(expression: &str) -> Option<f64> {
    let one = |word: &str| word.trim().replace('_', "").parse::<f64>().ok();
    match expression.split_once("<<") {
        Some((a, b)) => Some(one(a)? * f64::powf(2.0, one(b)?)),
        None => expression.split('*').map(one).product(),
    }
}

/// What is wrong in a page: numbers that are not those of the constants behind them.
fn wrong_numbers(page: &str, sources: &[Source]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (number, name) in stated(page) {
        let (module, constant) = name.rsplit_once("::").unwrap_or(("", name));
        let is_constant = constant.chars().all(|c| c == '_' || c.is_ascii_uppercase());
        let homes = sources.iter().filter(|s| module.is_empty() || s.is_of(module));
        let lines = homes.flat_map(|s| s.text.lines());
        let expressions = lines.filter_map(|line| {
            let (_, rest) = line.split_once(&format!("const {constant}: "))?;
            rest.split_once(" = ")?.1.strip_suffix(';')
        });
        let values: Vec<Option<f64>> = expressions.map(value).collect();
        if is_constant && (values.is_empty() || values.iter().any(|value| *value != Some(number))) {
            wrong.push(format!("{name} is {values:?}, not {number}"));
        }
    }
    wrong
}

fn pages() -> Vec<(String, String)> {
    let all = files(&root().join("docs"), &["md"]);
    let read = |path: &Path| fs::read_to_string(path).expect("a page");
    all.iter().map(|path| (relative(path), read(path))).collect()
}

#[test]
fn constants_have_the_values_that_pages_give() {
    let (sources, pages) = (sources(), pages());
    let mut all = Vec::new();
    for (name, page) in &pages {
        all.extend(wrong_numbers(page, &sources).into_iter().map(|w| format!("{name}: {w}")));
    }
    assert!(all.is_empty(), "{all:#?}");
    assert!(pages.iter().any(|(_, page)| !stated(page).is_empty()), "no page gives a value");
}

#[test]
fn a_wrong_number_is_found() {
    let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
    let sources = [
        source("a/turns.rs", "const TURN_NS: u64 = 8_000;\nconst ROOM: usize = 64 << 10;\n"),
        source("a/other.rs", "const ROOM: usize = 2 * 4;\n"),
    ];
    let of = |page: &str| wrong_numbers(page, &sources).len();
    assert_eq!(
        of("8 µs (`TURN_NS`), 64 KiB (`turns::ROOM`), 8 such bytes (`other::ROOM`; `x`)"),
        0
    );
    assert_eq!(of("9 us (`TURN_NS`), 63 KiB (`turns::ROOM`), 64 KiB (`ROOM`), 1 s (`NONE`)"), 4);
}

#[test]
fn each_harness_of_the_tests_has_a_row() {
    let page = fs::read_to_string(root().join("docs/internals/TESTS.md")).expect("TESTS.md");
    let library = fs::read_to_string(root().join("tests/src/lib.rs")).expect("lib.rs");
    let modules = library.lines().filter_map(|line| line.strip_prefix("pub mod "));
    let lacking: Vec<&str> =
        modules.filter(|m| !page.contains(&format!("`{}`", m.trim_end_matches(';')))).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
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

/// The test programs that the index of docs/internals/TESTS.md lacks; `files`: paths from the root.
fn missing_in_index(page: &str, files: &[String]) -> Vec<String> {
    let name = |path: &str| {
        let name = path.trim_start_matches("tests/tests/").trim_start_matches("core/tests/");
        let is_program = match name.split_once('/') {
            None => true,
            Some(("engine", file)) => {
                !file.contains('/') && !["main.rs", "util.rs", "buf_and_wr.rs"].contains(&file)
            }
            Some((_, file)) => file == "main.rs",
        };
        is_program.then(|| name.to_string())
    };
    let of_index =
        |path: &&String| path.starts_with("tests/tests/") || path.starts_with("core/tests/engine/");
    let wanted = files.iter().filter(of_index).filter_map(|path| name(path));
    wanted.filter(|name| !page.contains(&format!("`{name}`"))).collect()
}

#[test]
fn every_test_program_is_in_the_index() {
    let page = fs::read_to_string(root().join("docs/internals/TESTS.md")).expect("the page");
    let files: Vec<String> = files(&root(), &["rs"]).iter().map(|path| relative(path)).collect();
    assert_eq!(missing_in_index(&page, &files), Vec::<String>::new(), "docs/internals/TESTS.md");
    let index = "`a.rs`, `b/main.rs`, `engine/c.rs`";
    let of = |path: &str| missing_in_index(index, &[path.to_string()]).len();
    for listed in ["tests/tests/a.rs", "tests/tests/b/main.rs", "core/tests/engine/c.rs"] {
        assert_eq!(of(listed), 0, "{listed}");
    }
    for no_program in ["tests/tests/b/x.rs", "core/tests/engine/util.rs", "core/src/d.rs"] {
        assert_eq!(of(no_program), 0, "{no_program}");
    }
    for unlisted in ["tests/tests/c.rs", "tests/tests/d/main.rs", "core/tests/engine/a.rs"] {
        assert_eq!(of(unlisted), 1, "{unlisted}");
    }
}

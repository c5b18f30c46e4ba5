//! Checks the pages: the C program of docs/using/START.md compiles and runs; commands of README.md,
//! START.md and CONTRIBUTING.md exist or run; links of all pages have a target.

use gdrcore_tests::source::{files, root};
use gdrcore_tests::tools::{find, installed, run, scratch, Done};
use gdrcore_tests::{library, or_skip, skip};
use std::fs;
use std::process::Command;

/// The first page.
const README: &str = "README.md";
/// The page with the first program.
const START: &str = "docs/using/START.md";
/// The pages whose commands are checked.
const PAGES: [&str; 3] = [README, START, "CONTRIBUTING.md"];

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).expect(name)
}

/// The contents of the fenced blocks of one language, in order.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let Some(tag) = line.strip_prefix("```") else { continue };
        let body: Vec<&str> = lines.by_ref().take_while(|l| !l.starts_with("```")).collect();
        if tag == language {
            found.push(body.join("\n") + "\n");
        }
    }
    found
}

#[test]
fn the_c_program_installs_compiles_and_runs_as_written() {
    or_skip!(installed("pkg-config"));
    library::build();
    let text = page(START);
    let home = scratch("readme");
    fs::write(home.join("hello.c"), &blocks(&text, "c")[0]).expect("hello.c");
    let commands = blocks(&text, "sh")
        .into_iter()
        .find(|b| b.contains("hello.c"))
        .expect("the commands for hello.c");
    // The reader's folder is the repository; here the program is in a folder of its own, which is
    // also HOME.
    let script =
        commands.replace("make install", &format!("make -s -C '{}' install", root().display()));
    let done = run(
        library::keep_toolchain(Command::new("sh").args(["-euc", &script]).current_dir(&home))
            .env("HOME", &home),
        600,
    );
    assert!(done.ok(), "{done}");
    assert!(done.output.lines().any(|l| l.ends_with("hello, RDMA")), "{done}");
}

#[test]
fn the_c_program_is_cpp20_too() {
    let lib = library::build();
    let dir = scratch("readme-cpp");
    fs::write(dir.join("hello.c"), &blocks(&page(START), "c")[0]).expect("hello.c");
    std::os::unix::fs::symlink(lib.join("libgdrcore.so"), dir.join("libgdrcore.so.0"))
        .expect("a link");
    let build = |compiler: &str, flags: &[&str]| {
        let mut cc = Command::new(compiler);
        // Members that are not named are 0 in both languages, but g++ warns about them.
        cc.args(flags).args([
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-Wno-missing-field-initializers",
        ]);
        cc.arg(format!("-I{}", root().join("include").display())).arg("hello.c");
        cc.arg(format!("-L{}", lib.display())).args(["-lgdrcore", "-o", "hello"]).current_dir(&dir);
        let done = run(&mut cc, 60);
        assert!(done.ok(), "{compiler}: {done}");
        let mut hello = Command::new(dir.join("hello"));
        hello.env("LD_LIBRARY_PATH", &*dir);
        hello
    };
    let is_right = |done: Done| {
        assert!(done.ok() && done.output.lines().any(|l| l.ends_with("hello, RDMA")), "{done}");
    };
    is_right(run(&mut build("cc", &["-std=c11"]), 30));
    match find("g++") {
        Some(_) => is_right(run(&mut build("g++", &["-x", "c++", "-std=c++20"]), 30)),
        None => skip!("g++ is not installed"),
    }
}

#[test]
fn every_command_exists() {
    let makefile = page("Makefile");
    let mut checked = 0;
    for name in PAGES {
        let text = page(name);
        let inline = text.split('`').skip(1).step_by(2).map(str::to_string);
        let lines = blocks(&text, "sh")
            .iter()
            .flat_map(|b| b.lines().map(str::to_string).collect::<Vec<_>>())
            .chain(inline)
            .collect::<Vec<_>>();
        for line in lines {
            let mut words = line.split_whitespace().skip_while(|w| w.contains('=')).peekable();
            match words.next() {
                Some("make") => {
                    let target = words
                        .find(|w| !w.contains('=') && !w.starts_with('-') && *w != "#")
                        .unwrap_or("all");
                    let target = if line.contains("make  ") { "all" } else { target };
                    assert!(
                        makefile.lines().any(|l| l.starts_with(&format!("{target}:"))),
                        "{name}: no target of `{line}`"
                    );
                    checked += 1;
                }
                Some("cargo") if line.contains(" -p ") => {
                    let package = line
                        .split(" -p ")
                        .nth(1)
                        .and_then(|r| r.split_whitespace().next())
                        .expect("-p PACKAGE");
                    let named = fs::read_to_string(root().join(package).join("Cargo.toml"))
                        .unwrap_or_default();
                    assert!(
                        named.contains(&format!("name = \"{package}\"")),
                        "{name}: no package of `{line}`"
                    );
                    checked += 1;
                }
                _ => {}
            }
        }
    }
    assert!(checked >= 8, "only {checked} commands were checked");
    for command in ["make demo", "make test"] {
        assert!(page(README).contains(command), "README.md must show `{command}`");
    }
}

#[test]
fn every_file_that_is_named_exists() {
    let mut missing = Vec::new();
    let makefile = page("Makefile");
    // Another test may be building what stands below build/, so the Makefile is asked for it.
    let is_built = |file: &str| {
        let shown = format!("$(CURDIR)/{file}");
        file.starts_with("build/") && makefile.lines().any(|l| l.ends_with(&shown))
    };
    for name in PAGES {
        let text = page(name);
        let quoted = text.split('`').skip(1).step_by(2);
        for file in quoted.filter(|q| {
            q.contains('/') && !q.contains(' ') && !q.contains('$') && !q.starts_with("target/")
        }) {
            if !file.contains("://")
                && !root().join(file).exists()
                && !root().join("c-examples").join(file).exists()
                && !is_built(file)
            {
                missing.push(format!("{name}: {file}"));
            }
        }
    }
    assert!(missing.is_empty(), "named, but missing: {missing:#?}");
}

/// The targets of the links of a page: file and heading.
fn links(text: &str) -> Vec<(&str, &str)> {
    let found = text
        .match_indices("](")
        .map(|(at, _)| &text[at + 2..at + 2 + text[at + 2..].find(')').unwrap_or(0)]);
    found
        .filter(|l| !l.contains("://") && !l.contains(' '))
        .map(|l| l.split_once('#').unwrap_or((l, "")))
        .collect()
}

/// The headings of a page as links spell them.
fn headings(text: &str) -> Vec<String> {
    let plain = |h: &str| {
        let kept = h
            .to_lowercase()
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .collect::<String>();
        kept.trim().replace(' ', "-")
    };
    text.lines().filter(|l| l.starts_with('#')).map(|l| plain(l.trim_start_matches('#'))).collect()
}

#[test]
fn every_link_of_every_page_has_a_target() {
    let mut bad = Vec::new();
    let mut checked = 0;
    for file in files(&root(), &["md"]) {
        let text = fs::read_to_string(&file).expect("a page");
        for (target, heading) in links(&text) {
            let to = if target.is_empty() {
                file.clone()
            } else {
                file.parent().expect("a folder").join(target)
            };
            let there = to.exists()
                && (heading.is_empty()
                    || headings(&fs::read_to_string(&to).unwrap_or_default())
                        .iter()
                        .any(|h| h == heading));
            if !there {
                bad.push(format!("{}: {target}#{heading}", file.display()));
            }
            checked += 1;
        }
    }
    assert!(bad.is_empty(), "{bad:#?}");
    assert!(checked > 50, "{checked} links");
}

#[test]
fn the_first_page_is_short() {
    let lines = page(README).lines().count();
    assert!((60..=100).contains(&lines), "README.md has {lines} lines; it must have 80 to 100");
}

#[test]
fn the_documentation_of_the_crates_builds_without_a_warning() {
    let mut doc = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    doc.args(["doc", "-q", "--workspace", "--no-deps", "--document-private-items"])
        .current_dir(root());
    // Docs of a crate may link to its private items: they are read with `--document-private-items`.
    let flags = "-D warnings -A rustdoc::private_intra_doc_links";
    let done = run(doc.env("RUSTDOCFLAGS", flags), 600);
    assert!(done.ok(), "{done}");
}

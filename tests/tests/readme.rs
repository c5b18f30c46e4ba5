//! README.md is true: its C program compiles, runs and says what it should; its commands exist or run; its links lead somewhere.

use gdrcore_tests::source::root;
use gdrcore_tests::tools::{find, run, scratch, Done};
use gdrcore_tests::{library, skip};
use std::fs;
use std::process::Command;

fn readme() -> String {
    fs::read_to_string(root().join("README.md")).expect("README.md")
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
    if find("pkg-config").is_none() {
        skip!("pkg-config is not installed, and the README's commands use it");
    }
    library::build();
    let text = readme();
    let home = scratch("readme");
    fs::write(home.join("hello.c"), &blocks(&text, "c")[0]).expect("hello.c");
    let commands = blocks(&text, "sh").into_iter().find(|b| b.contains("hello.c")).expect("the commands for hello.c");
    // The reader is in the repository; here the program is in a folder of its own, which is also HOME.
    let script = commands.replace("make install", &format!("make -s -C '{}' install", root().display()));
    let done = run(
        library::keep_toolchain(Command::new("sh").args(["-euc", &script]).current_dir(&home)).env("HOME", &home),
        600,
    );
    assert!(done.ok(), "{}", done.output);
    assert!(done.output.lines().any(|l| l.ends_with("hello, RDMA")), "{}", done.output);
}

#[test]
fn the_c_program_is_cpp20_too() {
    let lib = library::build();
    let dir = scratch("readme-cpp");
    fs::write(dir.join("hello.c"), &blocks(&readme(), "c")[0]).expect("hello.c");
    std::os::unix::fs::symlink(lib.join("libgdrcore.so"), dir.join("libgdrcore.so.0")).expect("a link");
    let build = |compiler: &str, flags: &[&str]| {
        let mut cc = Command::new(compiler);
        // Members that are not named are 0 in both languages; g++ warns of them all the same.
        cc.args(flags).args(["-g", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wno-missing-field-initializers"]);
        cc.arg(format!("-I{}", root().join("include").display())).arg("hello.c");
        cc.arg(format!("-L{}", lib.display())).args(["-lgdrcore", "-o", "hello"]).current_dir(&dir);
        let done = run(&mut cc, 60);
        assert!(done.ok(), "{compiler}: {}", done.output);
        let mut hello = Command::new(dir.join("hello"));
        hello.env("LD_LIBRARY_PATH", &*dir);
        hello
    };
    let is_right = |done: Done| {
        assert!(done.ok() && done.output.lines().any(|l| l.ends_with("hello, RDMA")), "{}", done.output);
    };
    is_right(run(&mut build("cc", &["-std=c11"]), 30));
    match find("g++") {
        Some(_) => is_right(run(&mut build("g++", &["-x", "c++", "-std=c++20"]), 30)),
        None => skip!("g++ is not installed"),
    }
}

#[test]
fn every_command_exists() {
    let makefile = fs::read_to_string(root().join("Makefile")).expect("Makefile");
    let text = readme();
    let inline = text.split('`').skip(1).step_by(2).map(str::to_string);
    let lines = blocks(&text, "sh")
        .iter()
        .flat_map(|b| b.lines().map(str::to_string).collect::<Vec<_>>())
        .chain(inline)
        .collect::<Vec<_>>();
    let mut checked = 0;
    for line in lines {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("make") => {
                let target = words.find(|w| !w.contains('=') && !w.starts_with('-')).unwrap_or("all");
                assert!(makefile.lines().any(|l| l.starts_with(&format!("{target}:"))), "no target of `{line}`");
                checked += 1;
            }
            Some("cargo") => {
                let package = line.split(" -p ").nth(1).and_then(|r| r.split_whitespace().next()).expect("-p PACKAGE");
                let named = fs::read_to_string(root().join(package).join("Cargo.toml")).unwrap_or_default();
                assert!(named.contains(&format!("name = \"{package}\"")), "no package of `{line}`");
                checked += 1;
            }
            _ => {}
        }
    }
    assert!(checked >= 5, "commands were not found");
    for command in ["make demo", "make test"] {
        assert!(text.contains(command), "README.md must show `{command}`");
    }
}

#[test]
fn every_file_that_is_named_exists() {
    let text = readme();
    let mut missing = Vec::new();
    let links = text.match_indices("](").map(|(at, _)| &text[at + 2..at + 2 + text[at + 2..].find(')').unwrap_or(0)]);
    let quoted = text.split('`').skip(1).step_by(2);
    for name in links.chain(quoted.filter(|q| q.contains('/') && !q.contains(' ') && !q.contains('$'))) {
        if !name.contains("://") && !root().join(name).exists() && !root().join("c-examples").join(name).exists() {
            missing.push(name);
        }
    }
    assert!(missing.is_empty(), "README.md names what does not exist: {missing:?}");
}

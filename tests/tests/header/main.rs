//! Checks that include/gdrcore.h matches the exports of ffi/src, as cbindgen writes them and
//! ffi/header groups them. With GDRC_BLESS=1 (`make header`) the file is written instead.

mod items;

use gdrcore_tests::source::{files, root};
use items::Item;

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// All exports of ffi/src: constants first, then types and functions.
fn exports() -> Vec<Item> {
    let ffi = root().join("ffi");
    let config = cbindgen::Config::from_file(ffi.join("cbindgen.toml")).expect("ffi/cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config);
    let mut found = Vec::new();
    for path in files(&ffi.join("src"), &["rs"]) {
        let text = std::fs::read_to_string(&path).expect("a source file");
        // Files without exports are not parsed; tests and the fake device are not part of the
        // library.
        if ["pub const GDRC_", "pub struct gdrc_", "extern \"C\" fn gdrc_", "pub type gdrc_"]
            .iter()
            .any(|mark| text.contains(mark))
        {
            found.extend(items::constants(&text));
            builder = builder.with_src(path);
        }
    }
    let mut out = Vec::new();
    builder.generate().expect("cbindgen reads ffi/src").write(&mut out);
    let text = String::from_utf8(out).expect("the header is UTF-8");
    found.extend(items::declarations(&text));
    found
}

/// The header: its frame (ffi/header/frame.h) with the groups of ffi/header/layout.txt in it.
///
/// In the layout a line `@ID TITLE` begins a group, lines after it that begin with `|` are the
/// group's text, `< FILE` inserts a file of ffi/header unchanged, and any other line names a
/// declaration.
fn generate() -> String {
    let mut exports: Vec<Item> = exports();
    let mut groups = String::new();
    let mut open = false;
    let mut text: Vec<String> = Vec::new();
    for line in read("ffi/header/layout.txt").lines().chain(["@ "]) {
        if let Some(head) = line.strip_prefix('@') {
            if std::mem::replace(&mut open, true) {
                groups += "/** @} */\n\n";
            }
            let Some((id, title)) = head.split_once(' ').filter(|(id, _)| !id.is_empty()) else {
                break;
            };
            text = vec![format!("@defgroup gdrc_{id} {title}")];
        } else if let Some(about) = line.strip_prefix('|') {
            text.push(about.trim().to_string());
        } else if !line.is_empty() && !line.starts_with('#') {
            if !text.is_empty() {
                groups += &format!("/**\n * {}\n * @{{\n */\n\n", text.join("\n * "));
                text.clear();
            }
            if let Some(file) = line.strip_prefix("< ") {
                groups += &format!("{}\n", read(&format!("ffi/header/{file}")));
                continue;
            }
            let at = exports.iter().position(|item| item.name == line);
            let at = at.unwrap_or_else(|| panic!("layout.txt: ffi/src exports no {line}"));
            groups += &format!("{}\n\n", exports.remove(at).text);
        }
    }
    let left: Vec<&str> = exports.iter().map(|item| item.name.as_str()).collect();
    assert!(left.is_empty(), "exported, but not in ffi/header/layout.txt: {left:?}");
    read("ffi/header/frame.h").replace("@GROUPS@\n", &groups)
}

#[test]
fn the_header_matches_the_sources() {
    let path = root().join("include/gdrcore.h");
    let fresh = generate();
    if std::env::var_os("GDRC_BLESS").is_some() {
        std::fs::write(&path, &fresh).expect("write the header");
        return;
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    if kept != fresh {
        let line = kept.lines().zip(fresh.lines()).take_while(|(a, b)| a == b).count() + 1;
        panic!(
            "include/gdrcore.h differs from ffi/src at line \
             {line}: run `make header` and commit the result"
        );
    }
}

#[test]
fn header_has_every_exported_function() {
    let header = generate();
    let mut found = 0;
    for path in files(&root().join("ffi/src"), &["rs"]) {
        let text = std::fs::read_to_string(&path).expect("a source file");
        for (_, rest) in
            text.match_indices("extern \"C\" fn gdrc_").map(|(i, m)| (i, &text[i + m.len()..]))
        {
            let name: String =
                rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            assert!(
                header.contains(&format!("gdrc_{name}(")),
                "{}: gdrc_{name} is not in the header",
                path.display()
            );
            found += 1;
        }
    }
    assert!(found >= 60, "only {found} functions found: did the form of declarations change?");
}

//! Checks that include/gdrcore.h matches the exports of ffi/src and core's definitions, as cbindgen
//! writes them and ffi/header groups them. With GDRC_BLESS=1 (`make header`) the file is written
//! instead.

mod items;

use gdrcore_tests::source::{files, root};
use items::Item;
use std::collections::HashMap;

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// Core's and the GPU's definitions that C has, too.
const SHARED: [&str; 6] = [
    "core/src/verbs/types.rs",
    "core/src/verbs/cause.rs",
    "core/src/device.rs",
    "core/src/cm/types.rs",
    "backends/cuda/src/route.rs",
    "backends/cuda/src/topology.rs",
];

/// The header's names of what the sources' comments link to.
struct Names(HashMap<String, String>);

impl Names {
    fn of(layout: &str, types: &HashMap<String, String>) -> Names {
        let mut names = types.clone();
        for line in layout.lines() {
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["enum" | "flags", name, group, prefix] => {
                    names.insert(group.to_string(), format!("enum {name}"));
                    names.insert(format!("{group}::"), prefix.to_string());
                }
                ["define", name, constant] => {
                    names.insert(constant.to_string(), name.to_string());
                }
                _ => {}
            }
        }
        Names(names)
    }

    /// A text with the links that C has a name for replaced by that.
    fn translate(&self, text: &str) -> String {
        let mut pieces = text.split("[`");
        let mut out = pieces.next().unwrap_or_default().to_string();
        for piece in pieces {
            let named = piece.split_once("`]").and_then(|(link, rest)| {
                let mut path = link.rsplit("::");
                let member = path.next()?;
                let group = path.next().and_then(|group| self.0.get(&format!("{group}::")));
                let in_group = group.map(|prefix| format!("{prefix}{member}"));
                let name = in_group.or_else(|| self.0.get(member).cloned());
                Some(format!("{}{rest}", name?))
            });
            out += &named.unwrap_or_else(|| format!("[`{piece}"));
        }
        out
    }
}

/// The numbers of the header (a source), and all types and functions.
fn exports(layout: &str) -> (String, Vec<Item>) {
    let ffi = root().join("ffi");
    let mut config =
        cbindgen::Config::from_file(ffi.join("cbindgen.toml")).expect("ffi/cbindgen.toml");
    let names = Names::of(layout, &config.export.rename);
    // No function names those that are parts of others.
    config.export.include = config.export.rename.keys().cloned().collect();
    let mut builder = cbindgen::Builder::new().with_config(config);
    let mut numbers = read("ffi/src/c_consts.rs");
    for path in SHARED {
        numbers += &read(path);
        builder = builder.with_src(root().join(path));
    }
    for path in files(&ffi.join("src"), &["rs"]) {
        let text = std::fs::read_to_string(&path).expect("a source file");
        // Files without exports are not parsed; tests and the fake device are not part of the
        // library.
        if ["pub struct gdrc_", "extern \"C\" fn gdrc_", "pub type gdrc_"]
            .iter()
            .any(|mark| text.contains(mark))
        {
            builder = builder.with_src(path);
        }
    }
    let mut out = Vec::new();
    builder.generate().expect("cbindgen reads ffi/src").write(&mut out);
    let text = String::from_utf8(out).expect("the header is UTF-8");
    (names.translate(&numbers), items::declarations(&names.translate(&text)))
}

/// The header: its frame (ffi/header/frame.h) with the groups of ffi/header/layout.txt in it, which
/// explains its lines.
fn generate() -> String {
    let layout = read("ffi/header/layout.txt");
    let (numbers, mut exports) = exports(&layout);
    let mut groups = String::new();
    let mut open = false;
    let mut text: Vec<String> = Vec::new();
    for line in layout.lines().chain(["@ "]) {
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
            groups += &match line.split(' ').collect::<Vec<_>>()[..] {
                ["<", file] => format!("{}\n", read(&format!("ffi/header/{file}"))),
                [kind @ ("enum" | "flags"), name, group, prefix] => {
                    let flags = kind == "flags";
                    items::enumeration(&numbers, group, name, prefix, flags) + "\n\n"
                }
                ["define", name, constant] => {
                    let item = items::define(&numbers, constant, name);
                    item.unwrap_or_else(|| panic!("no constant {constant}")) + "\n\n"
                }
                _ => {
                    let at = exports.iter().position(|item| item.name == line);
                    let at = at.unwrap_or_else(|| panic!("layout.txt: ffi/src exports no {line}"));
                    format!("{}\n\n", exports.remove(at).text)
                }
            };
        }
    }
    let left: Vec<&str> = exports.iter().map(|item| item.name.as_str()).collect();
    assert!(left.is_empty(), "exported, but not in ffi/header/layout.txt: {left:?}");
    let header = read("ffi/header/frame.h").replace("@GROUPS@\n", &groups);
    let link = header.lines().find(|line| line.contains("[`"));
    assert_eq!(link, None, "a link to something that the header has not");
    header
}

#[test]
fn the_header_has_all_numbers_of_the_library() {
    let layout = read("ffi/header/layout.txt");
    for line in read("ffi/src/c_consts.rs").lines() {
        let constant = line.strip_prefix("pub const ").and_then(|rest| rest.split_once(':'));
        let group = line.trim().split_once(": u32 {").filter(|(name, _)| !name.contains(' '));
        for (name, _) in constant.into_iter().chain(group) {
            let used = layout.lines().any(|line| line.split(' ').nth(2) == Some(name));
            assert!(used, "{name} is not in ffi/header/layout.txt");
        }
    }
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

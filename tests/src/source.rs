//! Reads this repository's own sources: enough of Rust's lexical rules to find paths and blocks.

use std::path::{Path, PathBuf};

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the root").to_path_buf()
}

/// All files below `dir` whose extension is one of `extensions` (all files if empty), sorted,
/// without build output.
pub fn files(dir: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    const OUTPUT: [&str; 5] = ["target", "build", ".git", "node_modules", "__pycache__"];
    let mut found = Vec::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(dir) = todo.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries.flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let Ok(kind) = entry.file_type() else { continue };
            if kind.is_dir() && !OUTPUT.iter().any(|o| name == *o) {
                todo.push(path);
            } else if kind.is_file() {
                let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
                if extensions.is_empty() || extensions.contains(&extension) {
                    found.push(path);
                }
            }
        }
    }
    found.sort();
    found
}

/// `path` relative to the root, for messages and tables.
pub fn relative(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).to_string_lossy().into_owned()
}

/// The text with comments and the contents of string and character literals replaced by blanks;
/// line numbers stay.
pub fn code(text: &str) -> String {
    let b = text.as_bytes();
    let mut out = Vec::with_capacity(b.len());
    let mut i = 0;
    let blank = |out: &mut Vec<u8>, part: &[u8]| {
        out.extend(part.iter().map(|&c| if c == b'\n' { c } else { b' ' }))
    };
    while i < b.len() {
        let rest = &b[i..];
        let word_before = out.last().is_some_and(|c: &u8| c.is_ascii_alphanumeric() || *c == b'_');
        let len = if rest.starts_with(b"//") {
            rest.iter().position(|&c| c == b'\n').unwrap_or(rest.len())
        } else if rest.starts_with(b"/*") {
            block_comment(rest)
        } else if let Some(len) = if word_before { None } else { raw_string(rest) } {
            len
        } else if rest[0] == b'"' {
            quoted(rest, b'"')
        } else if rest[0] == b'\'' && is_char_literal(rest) {
            quoted(rest, b'\'')
        } else {
            out.push(rest[0]);
            i += 1;
            continue;
        };
        blank(&mut out, &rest[..len]);
        i += len;
    }
    // Only ASCII was replaced by ASCII, or whole multi-byte characters by blanks.
    String::from_utf8(out).expect("still UTF-8")
}

fn block_comment(s: &[u8]) -> usize {
    let (mut depth, mut i) = (0, 0);
    while i + 1 < s.len() {
        match &s[i..i + 2] {
            b"/*" => (depth, i) = (depth + 1, i + 2),
            b"*/" => (depth, i) = (depth - 1, i + 2),
            _ => i += 1,
        }
        if depth == 0 {
            return i;
        }
    }
    s.len()
}

fn raw_string(s: &[u8]) -> Option<usize> {
    let start = match s {
        [b'r', ..] => 1,
        [b'b' | b'c', b'r', ..] => 2,
        _ => return None,
    };
    let hashes = s[start..].iter().take_while(|&&c| c == b'#').count();
    if s.get(start + hashes) != Some(&b'"') {
        return None;
    }
    let mut end = vec![b'"'];
    end.resize(1 + hashes, b'#');
    let body = start + hashes + 1;
    let len =
        s[body..].windows(end.len()).position(|w| w == end).unwrap_or(s.len() - body - end.len());
    Some(body + len + end.len())
}

fn quoted(s: &[u8], quote: u8) -> usize {
    let mut i = 1;
    while i < s.len() {
        match s[i] {
            b'\\' => i += 2,
            c if c == quote => return i + 1,
            _ => i += 1,
        }
    }
    s.len()
}

/// Tells `'a'` from the lifetime `'a`.
fn is_char_literal(s: &[u8]) -> bool {
    match s {
        [_, b'\\', ..] => true,
        [_, c, ..] if *c >= 0x80 => true,
        [_, _, b'\'', ..] => true,
        _ => false,
    }
}

/// The code without items marked `#[cfg(test)]` (or `all(test, …)`).
pub fn without_tests(code: &str) -> String {
    let mut out = code.to_string();
    let mut from = 0;
    while let Some(at) = out[from..].find("#[cfg(").map(|p| p + from) {
        let attribute_end = matching(&out, at + 1).unwrap_or(out.len());
        let condition = &out[at + 6..attribute_end.min(out.len())];
        let of_tests =
            words(condition).any(|w| w == "test") && !words(condition).any(|w| w == "not");
        if !of_tests {
            from = at + 6;
            continue;
        }
        let mut item = attribute_end;
        while let Some(next) = out[item..]
            .find(|c: char| !c.is_whitespace())
            .filter(|&p| out[item + p..].starts_with('#'))
        {
            item = matching(&out, item + next + 1).unwrap_or(out.len());
        }
        let end = match out[item..].find(['{', ';']).map(|p| p + item) {
            Some(p) if out.as_bytes()[p] == b'{' => matching(&out, p).unwrap_or(out.len()),
            Some(p) => p + 1,
            None => out.len(),
        };
        let blanked: String =
            out[at..end].chars().map(|c| if c == '\n' { c } else { ' ' }).collect();
        out.replace_range(at..end, &blanked);
        from = at;
    }
    out
}

/// Whether a file below `core/src` (named relative to it) is compiled for tests only: a `tests.rs`
/// or in its folder, or a top-level module that the crate's root declares under `#[cfg(test)]`.
pub fn is_test_only(file: &str, root_of_crate: &str) -> bool {
    let top = file.split('/').next().unwrap_or(file).trim_end_matches(".rs");
    let declares =
        |code: &str| words(code).zip(words(code).skip(1)).any(|(a, b)| a == "mod" && b == top);
    let all = code(root_of_crate);
    file.ends_with("tests.rs")
        || file.contains("/tests/")
        || (declares(&all) && !declares(&without_tests(&all)))
}

/// The index after the bracket that closes the one at `open`.
fn matching(s: &str, open: usize) -> Option<usize> {
    let mut depth = 0;
    for (i, c) in s[open..].char_indices() {
        match c {
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => {
                depth -= 1;
                if depth == 0 {
                    return Some(open + i + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// Identifiers and keywords in order.
pub fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|w| !w.is_empty())
}

/// A path that code names, from the root of its crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// 1-based.
    pub line: usize,
    /// Segments after `crate`.
    pub path: Vec<String>,
}

/// Every `crate::…`, `super::…` and `self::…` path in `code`, groups expanded, resolved from
/// `module` (the file's own module path; inline modules are followed).
pub fn named_paths(code: &str, module: &[&str]) -> Vec<Named> {
    let mut found = Vec::new();
    let mut here: Vec<(usize, String)> = Vec::new(); // inline modules: depth of their brace, name
    let mut depth = 0;
    let mut i = 0;
    let bytes = code.as_bytes();
    let line_of = |at: usize| 1 + bytes[..at].iter().filter(|&&c| c == b'\n').count();
    while i < bytes.len() {
        let c = bytes[i];
        if c == b'{' {
            depth += 1;
        } else if c == b'}' {
            if here.last().is_some_and(|(d, _)| *d == depth) {
                here.pop();
            }
            depth -= 1;
        }
        let starts_word = is_word(c) && (i == 0 || !is_word(bytes[i - 1]));
        if !starts_word {
            i += 1;
            continue;
        }
        let word = &code[i..i + bytes[i..].iter().take_while(|&&c| is_word(c)).count()];
        let after = i + word.len();
        if word == "mod" {
            let name = words(&code[after..]).next().unwrap_or("");
            let opens = code[after..]
                .trim_start()
                .strip_prefix(name)
                .is_some_and(|r| r.trim_start().starts_with('{'));
            if opens {
                here.push((depth + 1, name.to_string()));
            }
        }
        let is_start = matches!(word, "crate" | "super" | "self")
            && code[after..].trim_start().starts_with("::")
            && !code[..i].trim_end().ends_with("::");
        if is_start {
            let mut base: Vec<String> = module
                .iter()
                .map(|s| s.to_string())
                .chain(here.iter().map(|(_, n)| n.clone()))
                .collect();
            match word {
                "crate" => base.clear(),
                "super" => drop(base.pop()),
                _ => {}
            }
            let line = line_of(i);
            let mut paths = Vec::new();
            let rest = code[after..].trim_start().trim_start_matches("::");
            tree(rest, base, &mut paths);
            found.extend(paths.into_iter().map(|path| Named { line, path }));
        }
        i = after;
    }
    found
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || c == b'_' || c >= 0x80
}

/// Expands a use tree after its `::`; returns what follows it.
fn tree<'a>(s: &'a str, mut base: Vec<String>, out: &mut Vec<Vec<String>>) -> &'a str {
    let s = s.trim_start();
    if let Some(mut inner) = s.strip_prefix('{') {
        loop {
            inner = inner.trim_start();
            if let Some(rest) = inner.strip_prefix('}') {
                return rest;
            }
            if let Some(rest) = inner.strip_prefix(',') {
                inner = rest;
                continue;
            }
            let before = inner.len();
            inner = tree(inner, base.clone(), out);
            if inner.len() == before {
                return inner; // not a use tree
            }
        }
    }
    if let Some(rest) = s.strip_prefix('*') {
        base.push("*".to_string());
        out.push(base);
        return rest;
    }
    let len = s.bytes().take_while(|&c| is_word(c)).count();
    if len == 0 {
        if !base.is_empty() {
            out.push(base);
        }
        return s;
    }
    match &s[..len] {
        "super" => drop(base.pop()),
        "self" => {}
        segment => base.push(segment.to_string()),
    }
    let rest = s[len..].trim_start();
    if let Some(rest) = rest.strip_prefix("::") {
        return tree(rest, base, out);
    }
    out.push(base);
    let renamed = rest.strip_prefix("as ").map(str::trim_start);
    renamed.map_or(rest, |r| &r[r.bytes().take_while(|&c| is_word(c)).count()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_literals_are_blanked() {
        let text = "let a = \"crate::x\"; // crate::y\n\
             /* crate::z /* n */ */ let c = '\"'; let l: &'a str = r#\"crate::w\"#;";
        let code = code(text);
        assert!(!code.contains("crate"));
        assert_eq!(code.lines().count(), 2);
        assert!(code.contains("let l: &'a str"));
    }

    #[test]
    fn test_modules_are_left_out() {
        let text = "use crate::a;\n#[cfg(test)]\n#[allow(x)]\n\
                    mod tests { use crate::b; fn f() { } }\nuse crate::c;\n\
                    #[cfg(not(test))] use crate::d;\n#[cfg(test)]\nmod more;";
        let shipped = without_tests(text);
        assert!(
            shipped.contains("crate::a")
                && shipped.contains("crate::c")
                && shipped.contains("crate::d")
        );
        assert!(!shipped.contains("crate::b") && !shipped.contains("more"));
    }

    #[test]
    fn test_only_modules_are_recognised() {
        let root = "pub mod wire;\n#[cfg(test)]\nmod testing;";
        assert!(is_test_only("testing.rs", root) && is_test_only("testing/more.rs", root));
        assert!(is_test_only("wire/tests.rs", root));
        assert!(!is_test_only("wire/view.rs", root) && !is_test_only("lib.rs", root));
    }

    #[test]
    fn use_trees_are_expanded_from_where_they_stand() {
        let text = "use crate::{a::{b, c as d}, e::*};\nmod m \
            { fn f() -> super::g::H { crate::i() } }\nuse super::j;";
        let found: Vec<_> =
            named_paths(text, &["x", "y"]).into_iter().map(|n| n.path.join("::")).collect();
        assert_eq!(found, ["a::b", "a::c", "e::*", "x::y::g::H", "i", "x::j"]);
    }
}

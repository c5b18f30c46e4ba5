//! Items of the C header: functions and structs as cbindgen writes them, numbers parsed from the
//! sources.

/// One declaration with the comment before it.
pub struct Item {
    /// Name of the function or type.
    pub name: String,
    /// Its text in the header, without trailing newline.
    pub text: String,
}

/// The types and functions of a header that cbindgen wrote, in its order, without constants. The
/// lists of requests are not const, as libibverbs has them.
pub fn declarations(header: &str) -> Vec<Item> {
    let mut found = Vec::new();
    let mut doc: Vec<&str> = Vec::new();
    let mut lines = header.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("/**") {
            doc = vec![line];
            while !doc.last().is_some_and(|l| l.ends_with("*/")) {
                doc.extend(lines.next());
            }
            continue;
        }
        let begins = |w| line.starts_with(w);
        if line.is_empty() || begins("#") || begins("extern") || begins("}") || begins("/*") {
            doc.clear();
            continue;
        }
        let mut text: Vec<&str> = std::mem::take(&mut doc);
        let first = text.len();
        text.push(line);
        let body = line.ends_with('{');
        let whole = |l: &str| l.ends_with(';') && (!body || l.starts_with('}'));
        while !text.last().is_some_and(|l| whole(l)) {
            text.push(lines.next().expect("a declaration ends"));
        }
        let name = name_of(&text[first..].join(" "));
        let text = ["sge", "send_wr", "recv_wr"].iter().fold(text.join("\n"), |text, list| {
            let (of, to) = (format!("\n    const struct gdrc_{list} *"), "\n    struct gdrc_");
            text.replace(&of, &format!("{to}{list} *"))
        });
        found.push(Item { name, text: with_short_comments(&text) });
    }
    found
}

/// The name that a declaration defines.
fn name_of(declaration: &str) -> String {
    let word = |s: &str| -> String {
        s.trim_start_matches([' ', '*', '('])
            .chars()
            .take_while(|c| c.is_alphanumeric() || *c == '_')
            .collect()
    };
    let rest = declaration.strip_prefix("typedef ").unwrap_or(declaration);
    if let Some(rest) = rest.strip_prefix("struct ").or(rest.strip_prefix("union ")) {
        if rest.contains('{') || !rest.contains('(') {
            return word(rest);
        }
    }
    let before = rest.split('(').next().unwrap_or_default();
    if let Some(pointer) = rest.split("(*").nth(1).filter(|_| rest != declaration) {
        return word(pointer);
    }
    word(before.rsplit([' ', '*']).next().unwrap_or_default())
}

/// A group of numbers of the sources (`consts!`, `numbered!`, an enum), as an enumeration of C. Its
/// head is a line that begins with its name and has the brace.
pub fn enumeration(source: &str, group: &str, name: &str, prefix: &str, flags: bool) -> String {
    let mut lines = source.lines().map(str::trim);
    let mut doc = Vec::new();
    let first = loop {
        let line = lines.next().unwrap_or_else(|| panic!("no group {group}"));
        let head = line.strip_prefix("pub enum ").unwrap_or(line).strip_prefix(group);
        match head.filter(|rest| rest.starts_with([':', ' '])).and_then(|r| r.split_once('{')) {
            Some((_, first)) => break first,
            None => note_doc(&mut doc, line),
        }
    };
    let mut text = format!("{}\nenum {name} {{\n", comment(&doc, ""));
    doc.clear();
    for line in [first].into_iter().chain(lines) {
        for (member, value) in line.trim_end_matches(['}', ' ']).split(',').filter_map(member) {
            if !doc.is_empty() {
                text += &format!("{}\n", comment(&std::mem::take(&mut doc), "    "));
            }
            let value = if flags { format!("{value:#x}") } else { value.to_string() };
            text += &format!("    {prefix}{} = {value},\n", in_capitals(member));
        }
        if line.ends_with('}') {
            break;
        }
        note_doc(&mut doc, line);
    }
    text + "};"
}

/// Keeps the comment of what comes next; an attribute belongs to that as well.
fn note_doc(doc: &mut Vec<String>, line: &str) {
    match line.strip_prefix("///") {
        Some(text) => doc.push(text.trim_start().to_string()),
        None if line.starts_with("#[") => {}
        None => doc.clear(),
    }
}

/// `NAME = NUMBER`, if it is that.
fn member(piece: &str) -> Option<(&str, u64)> {
    let (name, value) = piece.trim().split_once(" = ")?;
    let value = match value.split_once(" << ") {
        Some((one, by)) => number(one)? << number(by)?,
        None => number(value)?,
    };
    Some((name, value))
}

fn number(literal: &str) -> Option<u64> {
    let plain = literal.replace('_', "");
    match plain.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => plain.parse().ok(),
    }
}

/// The name of a member in C: `BadKey` and `BAD_KEY` are both `BAD_KEY`.
fn in_capitals(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if c.is_uppercase() && text.ends_with(|last: char| last.is_lowercase()) {
            text.push('_');
        }
        text.push(c);
    }
    text.to_uppercase()
}

/// A constant of the sources as a macro of C.
pub fn define(source: &str, constant: &str, name: &str) -> Option<String> {
    let mut doc = Vec::new();
    for line in source.lines() {
        let head = line.strip_prefix("pub const ").and_then(|rest| rest.strip_prefix(constant));
        if let Some(rest) = head.filter(|rest| rest.starts_with(':')) {
            let literal = rest.split_once("= ")?.1.trim_end_matches(';').replace('_', "");
            return Some(format!("{}\n#define {name} {literal}", comment(&doc, "")));
        }
        note_doc(&mut doc, line);
    }
    None
}

/// Longest line of the header, in columns.
const WIDTH: usize = 100;

/// A comment block: one line where it fits, else wrapped anew, paragraph by paragraph.
fn comment(doc: &[String], indent: &str) -> String {
    if let [line] = doc {
        let whole = format!("{indent}/** {line} */");
        if whole.chars().count() <= WIDTH {
            return whole;
        }
    }
    let mut text = format!("{indent}/**");
    let mut paragraph: Vec<&str> = Vec::new();
    let flush = |text: &mut String, paragraph: &mut Vec<&str>| {
        let mut line = String::new();
        for word in paragraph.drain(..).flat_map(str::split_whitespace) {
            let fits = indent.len() + 4 + line.chars().count() + word.chars().count() <= WIDTH;
            if !fits {
                *text += &format!("\n{indent} *{line}");
                line.clear();
            }
            line += " ";
            line += word;
        }
        if !line.is_empty() {
            *text += &format!("\n{indent} *{line}");
        }
    };
    for line in doc {
        // A line that begins with a label ("Errors:") starts a paragraph.
        let label = line
            .split_whitespace()
            .next()
            .is_some_and(|w| w.ends_with(':') && w.starts_with(char::is_uppercase) && w.len() > 3);
        if label || line.is_empty() || line.starts_with("Returns") {
            flush(&mut text, &mut paragraph);
        }
        if line.is_empty() {
            text += &format!("\n{indent} *");
        } else {
            paragraph.push(line);
        }
    }
    flush(&mut text, &mut paragraph);
    text + &format!("\n{indent} */")
}

/// A declaration of cbindgen with its comments rewritten by [`comment`].
fn with_short_comments(text: &str) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        let bare = line.trim_start();
        if !bare.starts_with("/**") {
            out.push(line.to_string());
            continue;
        }
        let indent = &line[..line.len() - bare.len()];
        let mut doc = Vec::new();
        for line in lines.by_ref().map(str::trim_start).take_while(|l| *l != "*/") {
            doc.push(line.trim_start_matches('*').trim_start().to_string());
        }
        out.push(comment(&doc, indent));
    }
    out.join("\n")
}

#[test]
fn declarations_are_parsed() {
    let header = "#ifndef X\n/**\n * A.\n */\ntypedef struct a {\n    int x;\n} a;\n\n\
        struct b {\n    int (*f)(void);\n};\ntypedef struct c c;\n/**\n * D.\n */\n\
        typedef int (*d_fn)(void*, const struct a*);\nconst char *e(uint32_t n);\n\
        int f(struct a x,\n      int y);\n";
    let names: Vec<String> = declarations(header).into_iter().map(|i| i.name).collect();
    assert_eq!(names, ["a", "b", "c", "d_fn", "e", "f"]);
    assert!(declarations(header)[0].text.starts_with("/** A. */\ntypedef struct a {"));
}

#[test]
fn groups_are_enumerations() {
    let source = r#"
/// One.
pub const A: u32 = 0x1_0;

consts! {
    /// Bits.
    b: u32 {
        /// First.
        X = 1, Z = 1 << 3,
        /// Second.
        Y = 0x1_0,
    }
}
    /// Few.
    #[non_exhaustive]
    Of: &str {
        OneOf = 2, "a, b";
    }
    c: u32 { D = 1 }"#;
    assert_eq!(define(source, "A", "GDRC_A").unwrap(), "/** One. */\n#define GDRC_A 0x10");
    assert_eq!(
        enumeration(source, "b", "gdrc_b", "GDRC_B_", true),
        "/** Bits. */\nenum gdrc_b {\n    /** First. */\n    GDRC_B_X = 0x1,\n    GDRC_B_Z = 0x8,\n\
        \x20   /** Second. */\n    GDRC_B_Y = 0x10,\n};"
    );
    let few = enumeration(source, "Of", "gdrc_of", "GDRC_", false);
    assert_eq!(few, "/** Few. */\nenum gdrc_of {\n    GDRC_ONE_OF = 2,\n};");
    assert!(enumeration(source, "c", "gdrc_c", "GDRC_", false).ends_with("{\n    GDRC_D = 1,\n};"));
}

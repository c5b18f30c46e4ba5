//! Items of the C header: functions and structs as cbindgen writes them, constants parsed from the
//! sources.

/// One declaration with the comment before it.
pub struct Item {
    /// Name of the function, type or constant.
    pub name: String,
    /// Its text in the header, without trailing newline.
    pub text: String,
}

/// The types and functions of a header that cbindgen wrote, in its order, without constants.
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
        found.push(Item { name, text: with_short_comments(&text.join("\n")) });
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

/// A constant of the sources.
struct Constant {
    doc: Vec<String>,
    name: String,
    /// The literal of the source, without underscores.
    literal: String,
    value: u64,
}

/// The constants of a source file. Those of a group that a comment names (`// enum gdrc_...`, or
/// `// flags gdrc_...` for bits) become an enumeration, which ends at the next empty line; others
/// become one macro each.
pub fn constants(source: &str) -> Vec<Item> {
    let mut found = Vec::new();
    let mut group: Option<(bool, &str, Vec<Constant>)> = None;
    let mut doc = Vec::new();
    for line in source.lines().chain([""]) {
        if let Some(text) = line.strip_prefix("///") {
            doc.push(text.trim_start().to_string());
        } else if let Some(name) = line.strip_prefix("// enum ") {
            group = Some((false, name, Vec::new()));
        } else if let Some(name) = line.strip_prefix("// flags ") {
            group = Some((true, name, Vec::new()));
        } else if let Some(rest) = line.strip_prefix("pub const GDRC_") {
            let (name, rest) = rest.split_once(": u32 = ").expect("a u32");
            let constant = Constant {
                doc: std::mem::take(&mut doc),
                name: format!("GDRC_{name}"),
                literal: rest.trim_end_matches(';').replace('_', ""),
                value: number(rest.trim_end_matches(';')),
            };
            match &mut group {
                Some((_, _, members)) => members.push(constant),
                None => found.push(macro_of(&constant)),
            }
        } else {
            doc.clear();
            if let Some((flags, name, members)) = group.take() {
                found.push(enumeration(name, flags, &members));
            }
        }
    }
    found
}

fn number(literal: &str) -> u64 {
    let plain = literal.replace('_', "");
    match plain.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => plain.parse(),
    }
    .unwrap_or_else(|_| panic!("{literal}: not a number"))
}

fn macro_of(c: &Constant) -> Item {
    let text = format!("{}\n#define {} {}", comment(&c.doc, ""), c.name, c.literal);
    Item { name: c.name.clone(), text }
}

/// An enumeration; the doc of its first member is also its own.
fn enumeration(name: &str, flags: bool, members: &[Constant]) -> Item {
    let mut text = format!("{}\nenum {name} {{\n", comment(&members[0].doc, ""));
    for (i, c) in members.iter().enumerate() {
        if i > 0 && !c.doc.is_empty() {
            text += &comment(&c.doc, "    ");
            text += "\n";
        }
        let Constant { name, value, .. } = c;
        text += &if flags {
            format!("    {name} = {value:#x},\n")
        } else {
            format!("    {name} = {value},\n")
        };
    }
    text += "};";
    Item { name: name.to_string(), text }
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
    let source = "/// One.\npub const GDRC_A: u32 = 0x1_0;\n\n// flags gdrc_b\n/// Bits.\n\
        pub const GDRC_B_X: u32 = 1;\n/// Second.\npub const GDRC_B_Y: u32 = 16;\n\n\
        const _: () = ();\n";
    let items = constants(source);
    assert_eq!(items[0].text, "/** One. */\n#define GDRC_A 0x10");
    assert_eq!(
        items[1].text,
        "/** Bits. */\nenum gdrc_b {\n    GDRC_B_X = 0x1,\n\
        \x20   /** Second. */\n    GDRC_B_Y = 0x10,\n};"
    );
}

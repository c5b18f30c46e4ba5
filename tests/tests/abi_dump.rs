//! What programs that were compiled against a release rely on, in `ffi/abi`, a file for each minor
//! version: functions with their versions, layouts, numbers. A line of an older release never
//! changes. With GDRC_BLESS=1 the file of today's version is written.

use gdrcore_tests::source::root;
use gdrcore_tests::tools::{run, scratch};
use gdrcore_tests::{library, skip};
use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

/// The header without comments and preprocessor lines, as declarations, and the names of its
/// `#define`d numbers.
fn declarations() -> (Vec<String>, Vec<String>) {
    let text = fs::read_to_string(root().join("include/gdrcore.h")).expect("the header");
    let mut pieces = text.split("/*");
    let mut code = pieces.next().unwrap_or_default().to_string();
    for piece in pieces {
        code += piece.split_once("*/").expect("a comment ends").1;
    }
    let defines = code.lines().filter_map(|l| l.strip_prefix("#define GDRC_"));
    let defines = defines.filter_map(|l| l.split_once(' ')).map(|(n, _)| format!("GDRC_{n}"));
    let defines: Vec<String> = defines.collect();
    let (mut found, mut depth, mut now) = (Vec::new(), 0, String::new());
    for line in code.lines().filter(|l| !l.starts_with('#') && !l.starts_with("extern")) {
        now += line.trim();
        now.push(' ');
        depth += line.matches('{').count() as i32 - line.matches('}').count() as i32;
        let ends = line.ends_with(';') || (line == "}" && now.starts_with("static"));
        if depth <= 0 && ends {
            found.push(std::mem::take(&mut now).trim().to_string());
        }
        depth = depth.max(0);
    }
    (found, defines)
}

/// The last word of a declaration, without what an array or a function pointer has behind it.
fn name_of(field: &str) -> &str {
    let pointer = field.split_once("(*").and_then(|(_, rest)| rest.split(')').next());
    let plain = field.split('[').next().unwrap_or(field);
    pointer.unwrap_or_else(|| plain.rsplit([' ', '*']).next().unwrap_or(plain))
}

/// The types of a function, without the names of its arguments.
fn types_of(function: &str) -> (String, String) {
    let (head, rest) = function.split_once('(').expect("a function");
    let name = name_of(head).to_string();
    let arguments = rest.trim_end_matches([';', ')', ' ']).split(',').map(str::trim);
    let arguments = arguments.map(|a| match a.strip_suffix(name_of(a)).map(str::trim) {
        Some(kind) if !kind.is_empty() && kind != "const" => kind,
        _ => a,
    });
    let arguments: Vec<&str> = arguments.collect();
    let result = head.strip_suffix(&name).expect("its name").trim();
    (name, format!("{result} ({})", arguments.join(", ")))
}

/// Lines of C that print what the compiler knows about the header's types and numbers.
fn program(declared: &[String], defines: &[String]) -> String {
    let mut c = String::from("#include <gdrcore.h>\n#include <stdio.h>\nint main(void) {\n");
    let number = |name: &str| format!("printf(\"number {name} %lld\\n\", (long long)({name}));\n");
    for name in defines.iter().filter(|n| *n != "GDRC_VERSION") {
        c += &number(name);
    }
    for item in declared {
        let Some((head, body)) = item.split_once('{').filter(|_| !item.starts_with("static"))
        else {
            continue;
        };
        let head = head.trim().trim_start_matches("typedef ");
        let body = body.rsplit_once('}').expect("a body ends").0;
        if head.starts_with("enum") {
            for member in body.split(',').filter_map(|m| m.split_once('=')) {
                c += &number(member.0.trim());
            }
            continue;
        }
        c += &format!("printf(\"type {head} %zu %zu\\n\", sizeof({head}), _Alignof({head}));\n");
        for field in body.split(';').map(str::trim).filter(|f| !f.is_empty()) {
            let name = name_of(field);
            c += &format!(
                "printf(\"field {head}.{name} %zu %zu\\n\", offsetof({head}, {name}), \
                 sizeof((({head} *)0)->{name}));\n"
            );
        }
    }
    c + "return 0; }\n"
}

/// Today's lines.
fn dump() -> BTreeSet<String> {
    let (declared, defines) = declarations();
    let dir = scratch("abi-dump");
    fs::write(dir.join("dump.c"), program(&declared, &defines)).expect("the program");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Werror", "-o"]).arg(dir.join("dump")).arg(dir.join("dump.c"));
    let done = run(cc.arg(format!("-I{}", root().join("include").display())), 120);
    assert!(done.ok(), "{done}");
    let told = run(&mut Command::new(dir.join("dump")), 60);
    assert!(told.ok(), "{told}");
    let mut lines: BTreeSet<String> = told.output.lines().map(String::from).collect();
    let lib = library::build().join("libgdrcore.so");
    let mut nm = Command::new("nm");
    let told = run(nm.args(["-D", "--defined-only", "--format=posix"]).arg(lib), 60);
    for item in declared.iter().filter(|d| !d.contains('{') && d.contains('(')) {
        let (name, types) = types_of(item);
        let exported = told.output.lines().filter_map(|l| l.split(' ').next());
        let version = exported.filter_map(|s| s.split_once("@@")).find(|(n, _)| *n == name);
        let (_, version) = version.unwrap_or_else(|| panic!("{name} is not exported"));
        lines.insert(format!("call {name} {version}: {types}"));
    }
    assert!(lines.len() > 600, "only {} lines", lines.len());
    lines
}

/// Whether a line of an older release is kept: struct_size says how long an attribute struct is, so
/// these may grow.
fn is_kept(line: &str, now: &BTreeSet<String>) -> bool {
    let grown = || {
        let mut words = line.strip_prefix("type ")?.rsplitn(3, ' ');
        let (align, size, name) = (words.next()?, words.next()?, words.next()?);
        now.contains(&format!("field {name}.struct_size 0 4")).then_some(())?;
        let found = now.iter().find_map(|l| l.strip_prefix(&format!("type {name} ")))?;
        let (new_size, new_align) = found.split_once(' ')?;
        let number = |text: &str| text.parse::<u64>().ok();
        Some(align == new_align && number(size)? <= number(new_size)?)
    };
    now.contains(line) || grown().unwrap_or(false)
}

#[test]
fn what_releases_promised_to_compiled_programs_is_kept() {
    if run(Command::new("nm").arg("--version"), 60).code() != Some(0) {
        skip!("no nm to list exported symbols (apt-get install binutils)");
    }
    let now = dump();
    let minor = env!("CARGO_PKG_VERSION").rsplit_once('.').expect("a patch level").0;
    let own = root().join(format!("ffi/abi/{minor}.txt"));
    if std::env::var_os("GDRC_BLESS").is_some() {
        fs::write(&own, now.iter().map(|l| format!("{l}\n")).collect::<String>()).expect("written");
        return;
    }
    let mut files: Vec<_> = fs::read_dir(root().join("ffi/abi")).expect("ffi/abi").collect();
    files.sort_by_key(|f| f.as_ref().map(|f| f.file_name()).ok());
    for file in files {
        let path = file.expect("a file").path();
        let text = fs::read_to_string(&path).expect("a dump");
        let lost: Vec<&str> = text.lines().filter(|l| !is_kept(l, &now)).collect();
        assert!(lost.is_empty(), "{} promised: {lost:#?}", path.display());
    }
    let text = fs::read_to_string(&own).expect("GDRC_BLESS=1 writes the dump of this version");
    let new: Vec<_> = now.iter().filter(|l| !text.lines().any(|t| t == *l)).collect();
    assert!(new.is_empty(), "GDRC_BLESS=1 adds to {}: {new:#?}", own.display());
}

#[test]
fn attribute_structs_may_grow_and_others_may_not() {
    let now = ["type struct a 24 8", "field struct a.struct_size 0 4", "type struct b 24 8"];
    let now = now.map(String::from).into_iter().collect();
    assert!(is_kept("type struct a 16 8", &now) && is_kept("type struct b 24 8", &now));
    for lost in ["type struct a 32 8", "type struct a 16 4", "type struct b 16 8", "number X 1"] {
        assert!(!is_kept(lost, &now), "{lost}");
    }
}

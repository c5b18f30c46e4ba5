//! The reports of `gdrcore-run --strict` in the output of a program.

use crate::source::root;

/// The line of a program of `tests/c` that says WRONG, as a report names it.
///
/// # Panics
/// There is none.
pub fn wrong_line(name: &str) -> String {
    let file = root().join(format!("tests/c/{name}.c"));
    let text = std::fs::read_to_string(file).expect("the program");
    let n = text.lines().position(|l| l.contains("/* WRONG */")).expect(name) + 1;
    format!("{}.c:{n}", name.rsplit('/').next().expect("a name"))
}

/// The reports: the rule of each, and its lines.
pub fn reports(output: &str) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for line in output.lines() {
        if let Some(rest) = line.strip_prefix("gdrcore strict: ") {
            let rule = rest.split(':').next().expect("a rule");
            all.push((rule.into(), String::new()));
        }
        if let Some((_, text)) = all.last_mut() {
            text.push_str(line);
            text.push('\n');
        }
    }
    all
}

/// The frames of a report's own place, not of the other one.
pub fn place(report: &str) -> &str {
    report.split("  noticed at\n").next().expect("a part")
}

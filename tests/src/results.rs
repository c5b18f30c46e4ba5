//! A section of bench/RESULTS-ROUTER.md that a program of this package writes.

use crate::source::root;
use crate::tools::run;
use std::fmt::Display;
use std::process::Command;

/// A section with what it says of the run, and tables of figures.
pub struct Section {
    heading: String,
    text: String,
}

fn said(program: &str, words: &[&str]) -> String {
    run(Command::new(program).args(words), 10).output.trim().to_string()
}

impl Section {
    /// An empty one. `title`: its heading; `program`: the binary that writes it, with its
    /// arguments; `more`: what else is to be known of the run.
    pub fn new(title: &str, program: &str, more: &str) -> Section {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').take(3).collect::<Vec<_>>().join(" ");
        let heading = format!("## {title}\n");
        let text = format!(
            "{heading}\nWritten by `cargo run -p gdrcore-tests --bin {program}`; one run on one \
             machine.\n\n- date: {}\n- commit: {}\n- CPUs: {}\n- load average at the end: \
             {load}\n- {more}\n",
            said("date", &["-u", "+%Y-%m-%d %H:%M UTC"]),
            said("git", &["rev-parse", "--short=12", "HEAD"]),
            std::thread::available_parallelism().map_or(1, usize::from),
        );
        Section { heading, text }
    }

    /// Adds a table: what was measured, and its figure.
    pub fn table<F: Display>(&mut self, title: &str, rows: &[(String, F)]) {
        self.text += &format!("\n| {title} | figure |\n|---|---:|\n");
        rows.iter().for_each(|(what, figure)| self.text += &format!("| {what} | {figure} |\n"));
    }

    /// Prints it, and puts it in place of the former one of the page; others stay as they are.
    pub fn write(&self) {
        print!("{}", self.text);
        let path = root().join("bench/RESULTS-ROUTER.md");
        let page = std::fs::read_to_string(&path).expect("the page");
        std::fs::write(path, self.in_place(&page)).expect("the page");
    }

    fn in_place(&self, page: &str) -> String {
        let (before, rest) = page.split_once(&self.heading).unwrap_or((page, ""));
        let after = rest.find("\n## ").map_or("", |at| &rest[at..]);
        format!("{}\n\n{}{after}", before.trim_end(), self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_takes_the_place_of_the_former_one_alone() {
        let section = Section { heading: "## B\n".into(), text: "## B\n\nnew\n".into() };
        assert_eq!(section.in_place("# T\n\n## A\n\na\n"), "# T\n\n## A\n\na\n\n## B\n\nnew\n");
        let page = |b: &str| format!("# T\n\n## A\n\na\n\n## B\n\n{b}\n\n## C\n\nc\n");
        assert_eq!(section.in_place(&page("old\n\nand older")), page("new"));
        assert_eq!(section.in_place("## B\n\nold\n").trim_start(), "## B\n\nnew\n");
    }
}

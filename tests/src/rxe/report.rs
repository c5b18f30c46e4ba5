//! Results of the interoperation cases, and the table of docs/records/INTEROP.md.

use super::side::Side;
use super::Outcome;
use std::fmt::Write;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// One feature in one direction: the results of all its cases.
#[derive(Clone, Debug, Default)]
struct Cell {
    cases: usize,
    messages: usize,
    failures: Vec<String>,
    /// Why a failure is not ours, or why the feature was not tried.
    remark: Option<String>,
}

/// The table of features, directions and results.
#[derive(Clone, Debug, Default)]
pub struct Report {
    rows: Vec<(String, [Cell; 2])>,
    notes: Vec<String>,
    only: Vec<String>,
    loud: bool,
}

impl Report {
    /// A report of the features that contain one of the words in `only`, or of all; `loud` prints
    /// each case as it ends.
    pub fn new(only: Vec<String>, loud: bool) -> Report {
        Report { rows: Vec::new(), notes: Vec::new(), only, loud }
    }

    fn cell(&mut self, feature: &str, side: Side) -> &mut Cell {
        let at = self.rows.iter().position(|r| r.0 == feature).unwrap_or_else(|| {
            self.rows.push((feature.to_string(), Default::default()));
            self.rows.len() - 1
        });
        &mut self.rows[at].1[usize::from(side == Side::Rxe)]
    }

    /// Whether a feature is selected.
    pub fn wants(&self, feature: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|o| feature.contains(o.as_str()))
    }

    /// Runs one case of a feature with `side` as requester. The case returns the number of its
    /// messages.
    pub fn case(
        &mut self,
        feature: &str,
        side: Side,
        what: &str,
        case: impl FnOnce() -> Outcome<usize>,
    ) {
        if !self.wants(feature) {
            return;
        }
        let began = std::time::Instant::now();
        let result = catch_unwind(AssertUnwindSafe(case)).unwrap_or_else(|e| {
            let text = e
                .downcast_ref::<String>()
                .map(String::as_str)
                .or(e.downcast_ref::<&str>().copied());
            Err(format!("panic: {}", text.unwrap_or("?")))
        });
        if self.loud {
            let ms = began.elapsed().as_millis();
            let said = match &result {
                Ok(n) => format!("{n} messages"),
                Err(e) => format!("FAILED {e}"),
            };
            println!("{feature} | {side:?} requests | {what} | {said} | {ms} ms");
        }
        let cell = self.cell(feature, side);
        cell.cases += 1;
        match result {
            Ok(n) => cell.messages += n,
            Err(e) => cell.failures.push(format!("{what}: {e}")),
        }
    }

    /// Runs a case in both directions.
    pub fn both(
        &mut self,
        feature: &str,
        what: &str,
        mut case: impl FnMut(Side) -> Outcome<usize>,
    ) {
        for side in [Side::Ours, Side::Rxe] {
            self.case(feature, side, what, || case(side));
        }
    }

    /// Adds a remark to the cell of a feature and side.
    pub fn remark(&mut self, feature: &str, side: Side, remark: &str) {
        if self.wants(feature) {
            self.cell(feature, side).remark = Some(remark.to_string());
        }
    }

    /// Adds a line to the notes below the table.
    pub fn note(&mut self, line: &str) {
        if self.loud {
            println!("{line}");
        }
        self.notes.push(line.to_string());
    }

    /// The words that select features.
    pub fn only(&self) -> &[String] {
        &self.only
    }

    /// The notes.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Number of cases run, of cases failed, and of cells not tried.
    pub fn counts(&self) -> (usize, usize, usize) {
        let cells = || self.rows.iter().flat_map(|r| &r.1);
        let failed = cells().map(|c| c.failures.len()).sum();
        (cells().map(|c| c.cases).sum(), failed, cells().filter(|c| c.cases == 0).count())
    }

    /// All failures.
    pub fn failures(&self) -> Vec<String> {
        let mut all = Vec::new();
        for (feature, cells) in &self.rows {
            for (side, cell) in [Side::Ours, Side::Rxe].iter().zip(cells) {
                all.extend(
                    cell.failures.iter().map(|f| format!("{feature}, {side:?} requests, {f}")),
                );
            }
        }
        all
    }

    /// Adds another report's rows.
    pub fn add(&mut self, other: Report) {
        for (feature, cells) in other.rows {
            for (side, cell) in [Side::Ours, Side::Rxe].into_iter().zip(cells) {
                let mine = self.cell(&feature, side);
                mine.cases += cell.cases;
                mine.messages += cell.messages;
                mine.failures.extend(cell.failures);
                mine.remark = cell.remark.or(mine.remark.take());
            }
        }
    }

    /// The table in Markdown.
    pub fn table(&self) -> String {
        let mut out = String::from("| feature | ours → rxe | rxe → ours |\n|---|---|---|\n");
        for (feature, cells) in &self.rows {
            let _ = write!(out, "| {feature} |");
            for cell in cells {
                let _ = match (&cell.remark, cell.cases, cell.failures.len()) {
                    (Some(remark), 0, _) => write!(out, " {remark} |"),
                    (None, 0, _) => write!(out, " not tried |"),
                    (remark, n, 0) => {
                        let tail = remark.as_ref().map(|r| format!("; {r}")).unwrap_or_default();
                        match cell.messages {
                            0 => write!(out, " passed{tail} |"),
                            m => write!(
                                out,
                                " passed: {m} message{} in {n} case{}{tail} |",
                                plural(m),
                                plural(n)
                            ),
                        }
                    }
                    (_, n, failed) => write!(out, " **{failed} of {n} failed** |"),
                };
            }
            out.push('\n');
        }
        out
    }
}

/// The text above the table.
const HEAD: &str = "# Interoperation with Linux's rxe

Written by the test `interop` (`GDRC_BLESS=1 cargo test -p gdrcore-tests --test interop`): do not
edit. One end is our soft device, the other the kernel's rdma_rxe in a machine that
`tests/vm/vm.sh` boots under QEMU; between them are a tap device and a wire of ours, which can
lose and damage packets. Every byte of every message is compared, and some bytes behind it. A
column is the direction of the requests: in \"ours → rxe\" our device is the requester and the
kernel the responder; of the tools' two sides, ours is the client there. NAKs, MSNs, credits and
timers are read from the wire, which also forges packets that neither stack would send. The
captures named here are in tests/vm/evidence. A run of perftest is repeated if rxe has begun a
message again at another PSN (rxe_shifted.pcap; seen once, on a busy machine).

";

impl Report {
    /// The whole document: conditions, table, notes.
    pub fn document(&self) -> String {
        self.below(HEAD)
    }

    /// A part of the document with a heading of its own.
    pub fn part(&self, heading: &str, about: &str) -> String {
        self.below(&format!("{heading}\n\n{about}\n\n"))
    }

    fn below(&self, head: &str) -> String {
        let (cases, failed, open) = self.counts();
        let mut out = format!("{head}{}\n", self.table());
        let _ = writeln!(
            out,
            "{cases} cases, {failed} failed{}.\n",
            match open {
                0 => String::new(),
                n => format!(", {n} cells without a case of their own (they say why)"),
            }
        );
        for note in &self.notes {
            let _ = writeln!(out, "- {note}");
        }
        out
    }
}

fn plural(n: usize) -> &'static str {
    if n == 1 {
        ""
    } else {
        "s"
    }
}

//! rdma-core's own test suite on the drop-in. All of its tests of generic verbs run; the set of
//! those that pass may only grow. docs/records/VERBS-SUITE.md lists the numbers, and each test that
//! does not pass with the reason; `GDRC_BLESS=1` writes that page.
//!
//! Debian's release is installed by python3-pyverbs. Another release is run if `GDRC_RDMA_CORE`
//! names its source tree, built as rdma-core's README describes (`scripts/verbs_suite.sh`).

use gdrcore_tests::huge_pages::HugePages;
use gdrcore_tests::rdmacm::command;
use gdrcore_tests::skip;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{loopback, run, scratch};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's interpreter, which has pyverbs.
const PYTHON: &str = "/usr/bin/python3";
/// The folder of Debian's suite, in which each file is compressed.
const DEBIANS: &str = "/usr/share/doc/rdma-core/tests";
/// Title of the page's section for Debian's release; the section for the latest `GDRC_RDMA_CORE`
/// follows it.
const DEBIANS_TITLE: &str = "## Release 44";

/// Prefixes of the modules that need one vendor's NICs or a GPU.
const OTHERS: &[&str] = &["test_mlx5", "test_efa", "test_cuda", "test_irdma"];

/// The tests of mlx5's modules that pass with the identity of a ConnectX-5.
const OF_MLX5: &[&str] = &[
    "DCTest.test_dc_rdma_write",
    "DCTest.test_dc_send",
    "DCTest.test_odp_dc_traffic",
    "DvCqTest.test_dv_cq_cqe_size_128",
    "DvCqTest.test_dv_cq_cqe_size_64",
    "DvCqTest.test_dv_cq_traffic",
    "DvCqTest.test_scatter_to_cqe_control_by_qp",
    "TimeStampTest.test_timestamp_real_time_rc_traffic",
];

/// Those that fail, because they are about variables of NVIDIA's library, or ask for an SRQ without
/// room for a request. The last two skip themselves without huge pages.
const NOT_OF_MLX5: &[&str] = &[
    "DvCqTest.test_dv_cq_cqe_size_with_bad_size",
    "ResourcesOnHugePageTest.test_obj_on_huge",
    "ResourcesOnHugePageTest.test_prefer_obj_on_huge",
];

/// The tests that skip unless some huge pages are set aside, and how many pages all of them need.
const OF_HUGE_PAGES: usize = 3;
const HUGE_PAGES: u32 = 8;

/// How many times in a row another release has to pass, and how many of its tests at least.
const TIMES: usize = 3;
const OF_ANOTHER: usize = 190;

/// The suite's reasons for skipping, and the reason in our words.
const WHY: &[(&str, &str)] = &[
    ("Create QP type 8", "raw Ethernet packets: the device is in user space, above UDP"),
    ("Raw Packet QP", "raw Ethernet packets: the device is in user space, above UDP"),
    ("RAW Packet QP", "raw Ethernet packets: the device is in user space, above UDP"),
    ("Allocating dmabuf", "needs a graphics device (DRM) that gives dma-bufs"),
    ("/dev/dri", "needs a graphics device (DRM) that gives dma-bufs"),
    ("huge pages", "this machine had no huge pages set aside"),
    ("net interface", "needs librdmacm's kernel interface (libgdrcore_preload.so)"),
    ("Extended CQ is not supported", "the device has no tag matching"),
    ("CC_DMA_BOUNCE", "the device does not bounce DMA for confidential computing"),
    ("No PHC", "needs a NIC's clock (PTP)"),
];

/// One test of the suite.
struct Line {
    module: String,
    test: String,
    outcome: String,
    reason: String,
}

fn parse(output: &str) -> Vec<Line> {
    let line = |l: &str| {
        let mut parts = l.split('\t').map(str::to_string);
        let (module, test, outcome) = (parts.next()?, parts.next()?, parts.next()?);
        let known = matches!(outcome.as_str(), "pass" | "skip" | "fail");
        known.then(|| Line { module, test, outcome, reason: parts.next().unwrap_or_default() })
    };
    output.lines().filter_map(line).collect()
}

/// A release of the suite.
struct Suite {
    /// Its modules.
    files: PathBuf,
    /// The path of its pyverbs, if that is not the system's.
    python_path: Option<PathBuf>,
    gid: &'static str,
}

impl Suite {
    /// Copies the suite, unpacked, into a folder of its own: beside its sources Python would import
    /// the sources' pyverbs.
    fn copy(&self, to: &Path) -> Vec<String> {
        let mut modules = Vec::new();
        for entry in std::fs::read_dir(&self.files).expect("the suite").flatten() {
            let (from, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
            let plain = name.strip_suffix(".gz").unwrap_or(&name).to_string();
            if plain != name {
                let done = run(Command::new("gzip").arg("-dc").arg(&from), 10);
                assert!(done.ok(), "{name}: {done}");
                std::fs::write(to.join(&plain), done.output).expect("a file");
            } else if from.is_file() {
                std::fs::copy(&from, to.join(&name)).expect("a copy");
            }
            if let Some(module) = plain.strip_suffix(".py") {
                modules.push(module.to_string());
            }
        }
        modules.sort();
        modules
    }

    /// Runs the tests of generic verbs.
    fn run(&self, name: &str, address: &str) -> Vec<Line> {
        let generic = |m: &str| m.starts_with("test_") && !OTHERS.iter().any(|o| m.starts_with(o));
        self.run_modules(name, address, &[], &generic)
    }

    /// Runs some modules, under `gdrcore-run` with some options.
    fn run_modules(
        &self,
        name: &str,
        address: &str,
        options: &[&str],
        wanted: &dyn Fn(&str) -> bool,
    ) -> Vec<Line> {
        let dir = scratch(name);
        let tests = dir.join("tests");
        std::fs::create_dir_all(&tests).expect("a folder");
        let modules: Vec<_> = self.copy(&tests).into_iter().filter(|m| wanted(m)).collect();
        let modules = modules.join(",");
        let mut suite = command(Some(address), options, PYTHON);
        // The suite takes the first address of the device's interface, which is not the device's.
        suite.env("GDRC_ADDRESS", address).current_dir(&dir);
        if let Some(p) = &self.python_path {
            suite.env("PYTHONPATH", p);
        }
        suite.arg("-B").arg(root().join("tests/python/verbs_suite.py"));
        let done = run(suite.args(["--dev", "gdrc0", "--gid", self.gid, &modules]), 400);
        assert!(done.ok(), "crashed or did not end: {done}");
        let lines = parse(&done.output);
        println!("rdma-core's suite: {} of {} pass", passed(&lines), lines.len());
        for l in lines.iter().filter(|l| l.outcome == "fail") {
            println!("{} {}: {}", l.module, l.test, l.reason);
        }
        lines
    }
}

fn passed(lines: &[Line]) -> usize {
    lines.iter().filter(|l| l.outcome == "pass").count()
}

/// Why a test does not pass, in our words.
fn why(l: &Line) -> Option<&'static str> {
    WHY.iter().find(|(said, _)| l.reason.contains(said)).map(|(_, why)| *why)
}

/// A section of the page.
fn section(title: &str, about: &str, lines: &[Line]) -> String {
    let mut text = format!(
        "{title}\n\n{} of {} tests pass: {about}.\nThose that do not pass:\n\n\
         | Module | Test | Outcome | Why |\n|---|---|---|---|\n",
        passed(lines),
        lines.len()
    );
    for l in lines.iter().filter(|l| l.outcome != "pass") {
        let why = why(l).unwrap_or(&l.reason);
        let test = l.test.rsplit('.').next().unwrap_or(&l.test);
        writeln!(text, "| {} | {test} | {} | {why} |", l.module, l.outcome).expect("a String");
    }
    text
}

fn page() -> PathBuf {
    root().join("docs/records/VERBS-SUITE.md")
}

/// The page with one of its two sections replaced.
fn bless(debians: Option<String>, other: Option<String>) {
    let text = std::fs::read_to_string(page()).expect("docs/records/VERBS-SUITE.md");
    let sections: Vec<&str> = text.split("\n## ").collect();
    let old = |debians: bool| {
        let found = sections.iter().skip(1).find(|s| s.starts_with(&DEBIANS_TITLE[3..]) == debians);
        found.map(|s| format!("## {}\n", s.trim_end()))
    };
    let mut all = format!("{}\n", sections[0].trim_end());
    for s in [debians.or_else(|| old(true)), other.or_else(|| old(false))].into_iter().flatten() {
        write!(all, "\n{}", s).expect("a String");
    }
    std::fs::write(page(), all).expect("the page");
}

fn is_blessing() -> bool {
    std::env::var_os("GDRC_BLESS").is_some()
}

#[test]
fn rdma_cores_suite_passes_as_the_page_records() {
    if !Path::new(DEBIANS).is_dir()
        || !run(Command::new(PYTHON).args(["-c", "import pyverbs"]), 20).ok()
    {
        skip!("no {DEBIANS}, or no pyverbs (python3-pyverbs)");
    }
    let pages = HugePages::set_aside(HUGE_PAGES);
    let lines = Suite { files: DEBIANS.into(), python_path: None, gid: "0" }
        .run("verbs-suite", &loopback(95, 1));
    if is_blessing() {
        let about = "the tests of generic verbs of Debian 12's python3-pyverbs, with GID index 0";
        return bless(Some(section(DEBIANS_TITLE, about, &lines)), None);
    }
    let text = std::fs::read_to_string(page()).expect("docs/records/VERBS-SUITE.md");
    let text = text.split(DEBIANS_TITLE).nth(1).expect("Debian's section");
    let number = |word: usize| -> usize {
        let line =
            text.lines().find(|l| l.contains("tests pass")).expect("the line with the number");
        line.split_whitespace().nth(word).and_then(|w| w.parse().ok()).expect("a number")
    };
    if lines.len() != number(2) {
        skip!("another release of the suite: {} tests", lines.len());
    }
    let without = match &pages {
        Ok(_) => 0,
        Err(why) => {
            gdrcore_tests::skip::skipped(format_args!(
                "{OF_HUGE_PAGES} of rdma-core's tests, which need huge pages: {why}"
            ));
            OF_HUGE_PAGES
        }
    };
    let wanted = number(0) - without;
    assert!(passed(&lines) >= wanted, "{} pass, {wanted} did", passed(&lines));
}

/// The device with `--strict`, with `--weak` and with faults, but for lost datagrams, which tests
/// wait for. What `--strict` reports of it: docs/using/STRICT.md.
#[test]
fn thorough_the_suite_passes_on_devices_for_tests() {
    if !Path::new(DEBIANS).is_dir()
        || !run(Command::new(PYTHON).args(["-c", "import pyverbs"]), 20).ok()
    {
        skip!("no {DEBIANS}, or no pyverbs (python3-pyverbs)");
    }
    let suite = Suite { files: DEBIANS.into(), python_path: None, gid: "0" };
    let passing = |lines: Vec<Line>| -> BTreeSet<String> {
        // Another test reserves huge pages only while it runs.
        let counts = |l: &Line| l.outcome == "pass" && !l.test.contains("huge");
        let passed = lines.into_iter().filter(counts);
        passed.map(|l| l.module + " " + &l.test).collect()
    };
    let plain = passing(suite.run("suite-plain", &loopback(95, 4)));
    let weak = "scatter rate 50%; lag rate 50%; swap rate 50%; few rate 50%";
    let faults = "loss type RC rate 1%; duplicate type RC rate 1%; reorder 3 type RC rate 1%";
    for options in [&["--strict"][..], &["--fault", weak], &["--fault", faults]] {
        let options = [options, &["--seed", "1"]].concat();
        let generic = |m: &str| m.starts_with("test_") && !OTHERS.iter().any(|o| m.starts_with(o));
        let lines = suite.run_modules("suite-tests", &loopback(95, 4), &options, &generic);
        let now = passing(lines);
        let lost: Vec<_> = plain.difference(&now).collect();
        assert!(lost.is_empty(), "{options:?}: {lost:?}");
    }
}

/// rdma-core's tests of mlx5dv, most of which need features of NVIDIA's NICs and skip themselves.
#[test]
fn tests_of_mlx5dv_pass_or_skip_with_its_identity() {
    let needed = "import pyverbs.providers.mlx5.mlx5dv";
    if !Path::new(DEBIANS).is_dir() || !run(Command::new(PYTHON).args(["-c", needed]), 20).ok() {
        skip!("no {DEBIANS}, or no pyverbs (python3-pyverbs)");
    }
    let suite = Suite { files: DEBIANS.into(), python_path: None, gid: "0" };
    let of_mlx5 = |m: &str| m.starts_with("test_mlx5");
    let lines = suite.run_modules("suite-mlx5", &loopback(95, 3), &["--mlx5"], &of_mlx5);
    let outcome = |test: &str| {
        let found = lines.iter().find(|l| l.test.ends_with(test));
        found.map_or("absent", |l| l.outcome.as_str())
    };
    for test in OF_MLX5 {
        assert_eq!(outcome(test), "pass", "{test}");
    }
    let failed = lines.iter().filter(|l| l.outcome == "fail").map(|l| l.test.as_str());
    let failed: Vec<_> =
        failed.filter(|t| !NOT_OF_MLX5.iter().any(|known| t.ends_with(known))).collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn another_release_of_the_suite_passes_but_for_features() {
    let Some(source) = std::env::var_os("GDRC_RDMA_CORE").map(PathBuf::from) else {
        skip!("GDRC_RDMA_CORE names no source tree of rdma-core")
    };
    let built = source.join("build/python");
    assert!(built.join("pyverbs").is_dir(), "{}: not built", built.display());
    let list = std::fs::read_to_string(source.join("CMakeLists.txt")).expect("CMakeLists.txt");
    let release =
        list.lines().find_map(|l| l.strip_prefix("set(PACKAGE_VERSION \"")?.strip_suffix("\")"));
    let release = release.expect("its release");
    let suite = Suite { files: source.join("tests"), python_path: Some(built), gid: "3" };
    let _pages = HugePages::set_aside(HUGE_PAGES);
    let mut lines = Vec::new();
    for n in 0..TIMES {
        lines = suite.run(&format!("verbs-suite-{n}"), &loopback(95, 2));
        let wrong = |l: &&Line| l.outcome == "fail" || l.outcome == "skip" && why(l).is_none();
        let wrong: Vec<_> = lines.iter().filter(wrong).map(|l| (&l.test, &l.reason)).collect();
        let passed = passed(&lines);
        assert!(wrong.is_empty() && passed >= OF_ANOTHER, "run {n}: {passed} pass, {wrong:?}");
    }
    if is_blessing() {
        let about = format!(
            "the tests of generic verbs of rdma-core {release}, built from its sources, with\n\
             GID index 3; no test failed in {TIMES} runs in a row"
        );
        bless(None, Some(section(&format!("## Release {release}"), &about, &lines)));
    }
}

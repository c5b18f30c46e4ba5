//! `gdrcore-run --strict` and `gdrc_config.strict` for programs of the C API: each program of
//! tests/c/wrong_api is named with its rule and its line, does what it wants without the option,
//! and right programs run without a report.

use gdrcore_strict::rule_names;
use gdrcore_tests::cuda;
use gdrcore_tests::launched::programs_of;
use gdrcore_tests::library;
use gdrcore_tests::rdmacm::command;
use gdrcore_tests::router::Router;
use gdrcore_tests::router_round::{self, Round};
use gdrcore_tests::skip;
use gdrcore_tests::soft::address;
use gdrcore_tests::source::root;
use gdrcore_tests::strict::{place, reports, wrong_line};
use gdrcore_tests::tools::{compile, find, loopback, run, scratch, Done, Running, Scratch};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The programs of tests/c/wrong_api, the rule that each breaks, and the NIC that is meant.
const WRONG: &[(&str, &str, &str)] = &[
    ("ah_early", "ah-in-use", ""),
    ("armed_late", "event-missed", ""),
    ("cq_too_small", "cq-overrun", ""),
    ("dereg_early", "region-in-use", ""),
    ("drained", "attribute-refused", "mlx5"),
    ("file_changed", "send-buffer-changed", ""),
    ("leaked_region", "object-left", ""),
    ("left_open", "object-left", ""),
    ("much_inline", "limit-of-nic", "hns"),
    ("never_signaled", "send-queue-never-signaled", ""),
    ("no_retries", "no-retries", ""),
    ("no_retries_cm", "no-retries", ""),
    ("no_rnr_retries", "no-rnr-retries", ""),
    ("read_then_send", "missing-fence", ""),
    ("recv_overrun", "cq-failed", ""),
    ("recv_touched", "recv-buffer-changed", ""),
    ("rkey_kept", "rkey-ended", ""),
    ("rnr_timer_zero", "rnr-timer-longest", ""),
    ("same_recv_twice", "buffers-overlap", ""),
    ("send_changed", "send-buffer-changed", ""),
    ("srq_touched", "recv-buffer-changed", ""),
    ("timeout_zero", "timeout-zero", ""),
    ("two_writers", "remote-writes-overlap", ""),
    ("unmapped_in_flight", "memory-unmapped", ""),
    ("window_kept", "rkey-ended", ""),
];

/// The rules that a program of the C API cannot break, and why.
const NOT_OF_THE_API: &[(&str, &str)] = &[
    ("events-unacknowledged", "events of gdrcore.h are not acknowledged"),
    ("fork-unprepared", "gdrcore.h has no call before a fork; its devices need none"),
    ("gid-roce-v1", "an address vector of gdrcore.h has no GID index"),
    ("send-queue-full", "a post returns -EAGAIN then, and gdrcore.h says what to do"),
];

/// Programs in a folder, linked to libgdrcore.
struct Programs {
    dir: Scratch,
    flags: Vec<String>,
}

impl Programs {
    fn new(test: &str) -> Option<Programs> {
        find("cc")?;
        let dir = scratch(test);
        let mut flags = library::flags(&dir).to_vec();
        flags.extend(["-g", "-lpthread"].map(String::from));
        Some(Programs { dir, flags })
    }

    fn compile(&self, name: &str) -> PathBuf {
        let flags: Vec<&str> = self.flags.iter().map(String::as_str).collect();
        compile("cc", name, &self.dir, &flags)
    }

    fn wrong(&self, name: &str) -> PathBuf {
        self.compile(&format!("wrong_api/{name}"))
    }

    /// Under gdrcore-run.
    fn launched(&self, options: &[&str], program: &Path) -> Done {
        let mut c = command(None, options, program);
        run(c.current_dir(&*self.dir), 60)
    }

    /// By itself, with these words of `gdrc_config.strict`.
    fn by_itself(&self, words: Option<&str>, program: &Path) -> Done {
        self.on(None, words, program)
    }

    /// The same on another device than "loopback".
    fn on(&self, device: Option<&str>, words: Option<&str>, program: &Path) -> Done {
        run(&mut self.command(device, words, program), 60)
    }

    fn command(&self, device: Option<&str>, words: Option<&str>, program: &Path) -> Command {
        let mut c = Command::new(program);
        c.current_dir(&*self.dir).env_remove("GDRC_STRICT");
        for (name, value) in [("WRONG_STRICT", words), ("WRONG_DEVICE", device)] {
            match value {
                Some(value) => c.env(name, value),
                None => c.env_remove(name),
            };
        }
        c
    }
}

#[test]
fn each_rule_has_a_program_or_a_reason() {
    let rules: Vec<&str> = WRONG.iter().map(|(_, rule, _)| *rule).collect();
    let none = NOT_OF_THE_API.iter().map(|(rule, why)| {
        assert!(!why.is_empty() && !rules.contains(rule), "{rule}");
        *rule
    });
    let told: BTreeSet<&str> = rules.iter().copied().chain(none).collect();
    assert_eq!(told, rule_names().collect());
    let names: Vec<&str> = WRONG.iter().map(|(name, ..)| *name).collect();
    assert_eq!(programs_of("wrong_api"), names);
    let page = std::fs::read_to_string(root().join("docs/using/STRICT.md")).expect("the page");
    let page = page.split("## Programs of the C API").nth(1).expect("its part");
    for (rule, why) in NOT_OF_THE_API {
        assert!(page.contains(&format!("| `{rule}` | {why} |")), "{rule}");
    }
}

/// One report at the program's wrong line, and none by another rule.
#[track_caller]
fn is_named(name: &str, rule: &str, has_others: bool, done: &Done) {
    assert_eq!(done.code(), Some(66), "{name}: {}", done.output);
    assert!(done.output.contains("ok\n"), "{name}: {}", done.output);
    let line = wrong_line(&format!("wrong_api/{name}"));
    let all = reports(&done.output);
    let at_line = |(r, text): &&(String, String)| {
        r == rule && place(text).lines().any(|l| l.ends_with(&line))
    };
    assert_eq!(all.iter().filter(at_line).count(), 1, "{name} {line}: {}", done.output);
    let others = all.iter().filter(|(r, _)| r != rule).count();
    assert!(has_others || others == 0, "{name}: {}", done.output);
}

#[test]
fn each_mistake_is_named_with_its_rule_and_line() {
    let Some(p) = Programs::new("strict-api-wrong") else { skip!("no cc") };
    for (name, rule, like) in WRONG {
        let program = p.wrong(name);
        let plain = p.by_itself(None, &program);
        assert!(plain.ok() && plain.output == "ok\n", "{name}: {}", plain.output);
        let comma = if like.is_empty() { "" } else { "," };
        let done = p.by_itself(Some(&format!("exit=66{comma}{like}")), &program);
        is_named(name, rule, !like.is_empty(), &done);
        let at_close = done.output.contains("live when its context is closed");
        assert_eq!(at_close, *name == "leaked_region", "{}", done.output);
    }
}

/// Two tenants' devices over a router: one that runs in the tenant, and one of the router's.
fn routed() -> (Router, [String; 2]) {
    let gpu = "0000:b7:00.0";
    let fake = cuda::fake().to_str().expect("a plain path");
    let policy = format!(
        "[router]\ngpus = [\"{gpu}\"]\n[tenant.own]\nlisten = \"DIR/own\"\nvip = \"10.99.0.2\"\n\
         [tenant.remote]\nlisten = \"DIR/remote\"\ndevice = \"{}\"\n",
        address(1)
    );
    let environment = [("FAKECUDA_DEVICES", gpu), ("LD_LIBRARY_PATH", fake)];
    let router = Router::start_in(&policy, &[], &environment);
    let devices = ["own", "remote"].map(|tenant| router.device(tenant));
    (router, devices)
}

#[test]
fn mistakes_on_devices_over_a_router_are_named() {
    let Some(p) = Programs::new("strict-api-router") else { skip!("no cc") };
    let (_router, devices) = routed();
    for (name, rule, like) in WRONG {
        let program = p.wrong(name);
        for device in &devices {
            let comma = if like.is_empty() { "" } else { "," };
            let words = format!("exit=66{comma}{like}");
            let done = p.on(Some(device), Some(&words), &program);
            if *name == "recv_overrun" && *device == devices[1] {
                // On the router's device completions wait for room: it is other tenants', too.
                assert!(done.ok() && done.output == "ok\n", "{}", done.output);
                continue;
            }
            is_named(name, rule, !like.is_empty(), &done);
        }
    }
}

#[test]
fn a_right_program_on_devices_over_a_router_has_no_report() {
    let Some(p) = Programs::new("strict-api-router-right") else { skip!("no cc") };
    let (_router, devices) = routed();
    let program = p.compile("strict_modes");
    for device in &devices {
        let mut c = p.command(Some(device), Some("exit=66"), &program);
        let done = run(c.arg("threads"), 60);
        assert!(done.ok() && done.output == "ok\n", "{device}: {}", done.output);
    }
}

#[test]
fn gpu_memory_is_watched() {
    let Some(p) = Programs::new("strict-api-gpu") else { skip!("no cc") };
    let (_router, [_, remote]) = routed();
    let program = p.compile("strict_gpu");
    for device in ["loopback", &remote] {
        for (mode, rule) in [("right", ""), ("left", "object-left"), ("early", "region-in-use")] {
            let mut c = p.command(Some(device), Some("exit=66"), &program);
            c.arg(mode).env("LD_LIBRARY_PATH", cuda::fake());
            let done = run(c.env("FAKECUDA_DEVICES", "0000:b7:00.0"), 60);
            let all: BTreeSet<_> =
                reports(&done.output).into_iter().map(|(rule, _)| rule).collect();
            let expected = if rule.is_empty() { 0 } else { 66 };
            assert_eq!(done.code(), Some(expected), "{device} {mode}: {}", done.output);
            assert!(all.iter().all(|r| r == rule), "{device} {mode}: {}", done.output);
            assert_eq!(all.len(), usize::from(!rule.is_empty()), "{device} {mode}");
            let words = format!("MR of {} bytes", 4096);
            let of_region = mode != "left" || done.output.contains(&words);
            assert!(of_region, "{device} {mode}: {}", done.output);
        }
    }
}

#[test]
fn the_launcher_asks_for_it_and_overrides_the_program() {
    let Some(p) = Programs::new("strict-api-launched") else { skip!("no cc") };
    let program = p.wrong("send_changed");
    let done = p.launched(&["--strict=exit=66"], &program);
    is_named("send_changed", "send-buffer-changed", false, &done);
    std::fs::write(p.dir.join("none"), "send-buffer-changed:main\n").expect("written");
    let options = ["--strict=exit=66", "--strict-suppressions", "none", "--strict-json", "json"];
    let done = p.launched(&options, &program);
    assert!(done.ok() && done.output == "ok\n", "{}", done.output);
    let like = p.launched(&["--strict=exit=66", "--like", "hns"], &p.wrong("much_inline"));
    is_named("much_inline", "limit-of-nic", true, &like);
    let abort = p.launched(&["--strict=abort", "--strict-json", "json"], &program);
    assert!(abort.code().is_none() && reports(&abort.output).len() == 1, "{}", abort.output);
    let json = std::fs::read_to_string(p.dir.join("json")).expect("the report");
    let begin = "{\"rule\":\"send-buffer-changed\",\"pid\":";
    assert!(json.lines().count() == 1 && json.starts_with(begin), "{json}");
    let mut c = command(None, &["--strict=exit=66"], &program);
    let both = run(c.env("WRONG_STRICT", "abort"), 60);
    is_named("send_changed", "send-buffer-changed", false, &both);
}

#[test]
fn a_program_that_contains_the_library_is_named() {
    let Some(p) = Programs::new("strict-api-static") else { skip!("no cc") };
    let include = format!("-I{}", root().join("include").display());
    let archive = library::archive().display().to_string();
    let flags = [&include, "-g", "-no-pie", &archive, "-lpthread", "-ldl", "-lm"];
    for (name, rule) in [("send_changed", "send-buffer-changed"), ("left_open", "object-left")] {
        let program = compile("cc", &format!("wrong_api/{name}"), &p.dir, &flags);
        is_named(name, rule, false, &p.by_itself(Some("exit=66"), &program));
    }
}

#[test]
fn threads_forks_and_signals_are_borne() {
    let Some(p) = Programs::new("strict-api-modes") else { skip!("no cc") };
    let program = p.compile("strict_modes");
    let in_mode = |mode| {
        let mut c = Command::new(&program);
        run(c.arg(mode).env_remove("GDRC_STRICT").env("WRONG_STRICT", "exit=66"), 60)
    };
    for mode in ["threads", "fork", "handler", "fill", "two"] {
        let done = in_mode(mode);
        let oks = done.output.lines().filter(|l| *l == "ok").count();
        let right = done.ok() && done.output.lines().count() == oks;
        assert!(right && oks == 1 + usize::from(mode == "fork"), "{mode}: {}", done.output);
    }
    let killed = in_mode("killed");
    let all = reports(&killed.output);
    let one = all.len() == 1 && all[0].0 == "send-buffer-changed";
    assert!(killed.code().is_none() && one, "{}", killed.output);
}

/// Examples as they are, each side watched.
#[test]
fn the_examples_are_right() {
    let bin = library::examples();
    let dir = scratch("strict-api-examples");
    let watched = |program: &str| {
        let mut c = Command::new(bin.join(program));
        c.env("GDRC_STRICT", "exit=66");
        c
    };
    let right = |what: &str, done: &Done| {
        assert!(done.ok() && reports(&done.output).is_empty(), "{what}: {}", done.output);
    };
    let device = |last| format!("soft:{}", loopback(238, last));
    let trio = router_round::run(&Round {
        command: &|_, program| watched(program),
        router: &device(1),
        peer: &device(2),
        address: &loopback(238, 1),
        bytes: 300_001,
        dir: &dir,
    });
    trio.iter().for_each(|done| right("freeflow_gdr", done));
    for verb in ["send", "write", "read"] {
        let mut alone = watched("perf/perf");
        // Without the check it receives into one buffer again and again.
        alone.args(["-d", "loopback", verb, "bw", "-n", "300", "-s", "5000", "-q", "2", "-C"]);
        right(verb, &run(&mut alone, 60));
    }
    let ping = |last, more: &[&str]| {
        let mut c = watched("cm/cm_ping");
        c.args(["-d", &device(last), "-p", "7992", "-C", "20"]).args(more);
        c
    };
    let mut server = Running::start(&mut ping(3, &["-s"]));
    server.wait_for_output("waiting on");
    right("cm_ping", &run(&mut ping(4, &["-c", &loopback(238, 3)]), 60));
    right("cm_ping", &server.finish(Duration::from_secs(60)));
}

#[test]
fn wrong_words_are_refused() {
    let Some(p) = Programs::new("strict-api-words") else { skip!("no cc") };
    let program = p.wrong("send_changed");
    for words in ["", "exit", "exit=256", "report,mlx4", "report mlx5", &"x".repeat(100)] {
        let done = p.by_itself(Some(words), &program);
        let refused = done.output.contains("&config, &ctx) == 0");
        assert!(done.code() == Some(1) && refused, "{words}: {}", done.output);
    }
}

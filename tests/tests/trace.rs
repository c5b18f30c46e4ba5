//! `gdrcore-run --trace`: what the lines say of a program's calls, that they are there however it
//! ends, and that nothing is written without the option.

use gdrcore_tests::dropin::{free_port, start_server};
use gdrcore_tests::launched::Program;
use gdrcore_tests::or_skip;
use gdrcore_tests::patience;
use gdrcore_tests::rdmacm::{command, Pair};
use gdrcore_tests::tools::{
    compile, find, installed, loopback, run, scratch, verbs_compiler, Running,
};
use std::collections::BTreeMap;
use std::fs;
use std::ops::Deref;
use std::os::unix::fs::{symlink, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// A line of a trace.
#[derive(Debug)]
struct Call {
    thread: u32,
    name: String,
    args: String,
    result: String,
}

/// Parses the lines of a trace, into the order in which the calls began; folded polls are calls
/// named "...".
fn calls(text: &str) -> Vec<Call> {
    let mut found = Vec::new();
    let mut last = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.trim_start().splitn(3, ' ');
        let time = words.next().expect("a time").parse::<f64>().expect(line);
        let rest = words.next().map(|_| line.trim_start().split_once(' ').expect("words").1);
        let (thread, call) = rest.expect(line).trim_start().split_once(' ').expect(line);
        let thread: u32 = thread.parse().expect(line);
        let before = last.insert(thread, time).unwrap_or(0.0);
        assert!(before <= time, "{line}: after {before}");
        let (call, took) = call.rsplit_once(" <").expect(line);
        took.trim_end_matches('>').parse::<f64>().expect(line);
        if let Some(polls) = call.strip_prefix("... ") {
            let (name, args, result) = ("...".into(), polls.into(), String::new());
            found.push((time, Call { thread, name, args, result }));
            continue;
        }
        let (name, rest) = call.split_once('(').expect(line);
        let (args, result) = rest.rsplit_once(") = ").unwrap_or((rest.trim_end_matches(')'), ""));
        let call = Call { thread, name: name.into(), args: args.into(), result: result.into() };
        found.push((time, call));
    }
    // Lines are in the order in which the calls have ended.
    found.sort_by(|a, b| a.0.total_cmp(&b.0));
    found.into_iter().map(|(_, call)| call).collect()
}

/// The arguments and results of the calls of a name.
fn of<'a>(calls: &'a [Call], name: &str) -> Vec<&'a Call> {
    calls.iter().filter(|c| c.name == name).collect()
}

/// Checks that calls with these names are there in this order, others in between.
fn in_order(calls: &[Call], names: &[&str]) {
    let mut rest = calls.iter();
    for name in names {
        assert!(rest.any(|c| c.name == *name), "{name}: not in its place of {names:?}\n{calls:?}");
    }
}

/// tests/c/traced.c.
struct Traced(Program);

impl Deref for Traced {
    type Target = Program;
    fn deref(&self) -> &Program {
        &self.0
    }
}

impl Traced {
    /// An error: as [`Program::new`].
    fn new(test: &str, place: u32) -> Result<Traced, String> {
        Program::new("traced", test, loopback(224, place)).map(Traced)
    }

    /// Runs it with a trace into a file, which is returned with the numbers that it printed.
    fn trace(&self, options: &[&str], how: &[&str]) -> (String, Vec<String>) {
        let all: Vec<&str> = ["--trace=file"].into_iter().chain(options.iter().copied()).collect();
        let done = self.run(&all, how);
        assert!(done.ok() && done.output.contains("ok\n"), "{done}");
        let qp = done.output.lines().find_map(|l| l.strip_prefix("qp ")).expect("numbers");
        (self.read("file"), qp.split(' ').map(str::to_string).collect())
    }

    fn files(&self) -> Vec<String> {
        let names = fs::read_dir(&*self.dir).expect("the folder").flatten();
        let mut names: Vec<String> =
            names.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
        names.retain(|n| n.starts_with("file"));
        names.sort();
        names
    }
}

#[test]
fn each_call_has_a_line_with_its_arguments_and_its_result() {
    let t = or_skip!(Traced::new("trace-pair", 1));
    let (text, n) = t.trace(&[], &["pair"]);
    let [a, b, lkey, rkey, memory] = &n[..] else { panic!("{n:?}") };
    let calls = calls(&text);
    in_order(
        &calls,
        &[
            "ibv_get_device_list",
            "ibv_open_device",
            "ibv_free_device_list",
            "ibv_alloc_pd",
            "ibv_create_cq",
            "ibv_reg_mr",
            "ibv_create_qp",
            "ibv_create_qp",
            "ibv_query_gid",
            "ibv_modify_qp",
            "ibv_modify_qp",
            "ibv_modify_qp",
            "...",
            "ibv_post_recv",
            "ibv_post_send",
            "ibv_poll_cq",
            "ibv_post_send",
            "ibv_poll_cq",
            "ibv_create_cq",
            "ibv_destroy_qp",
            "ibv_destroy_qp",
            "ibv_dereg_mr",
            "ibv_destroy_cq",
            "ibv_dealloc_pd",
        ],
    );
    assert!(of(&calls, "ibv_open_device")[0].result == "gdrc0", "{text}");
    let devices = &of(&calls, "ibv_get_device_list")[0].args;
    let number = devices.strip_prefix("num_devices=").expect(devices);
    assert!(number == "NULL" || number.parse::<u32>().is_ok_and(|n| n > 0), "{devices}");
    let mr = of(&calls, "ibv_reg_mr")[0];
    assert_eq!(
        mr.args,
        format!(
            "pd=pd#0, addr={memory}, length=4096, \
             access=IBV_ACCESS_LOCAL_WRITE|IBV_ACCESS_REMOTE_WRITE"
        )
    );
    assert_eq!(mr.result, format!("mr#0 lkey={lkey} rkey={rkey}"));
    let qps = of(&calls, "ibv_create_qp");
    assert!(qps[0].args.contains("qp_type=IBV_QPT_RC, send_cq=cq#0, recv_cq=cq#0, srq=NULL"));
    assert!(qps[0].args.contains("max_send_wr=8, "), "{}", qps[0].args);
    assert_eq!([&qps[0].result, &qps[1].result], [&format!("qp {a}"), &format!("qp {b}")]);
    let to_rtr = of(&calls, "ibv_modify_qp")[1];
    assert!(to_rtr.args.contains("qp_state=IBV_QPS_RTR, path_mtu=IBV_MTU_1024"), "{to_rtr:?}");
    assert!(to_rtr.args.contains(&format!("dest_qp_num={b}, ")), "{to_rtr:?}");
    assert!(to_rtr.args.contains("ah_attr={dlid=0, port_num=1, dgid="), "{to_rtr:?}");
    assert!(to_rtr.args.contains("attr_mask=IBV_QP_STATE|IBV_QP_AV|IBV_QP_PATH_MTU"), "{to_rtr:?}");

    let at = |offset: u64| {
        format!("{:#x}", u64::from_str_radix(&memory[2..], 16).expect("an address") + offset)
    };
    let recv = of(&calls, "ibv_post_recv")[0];
    let piece = |offset, length| format!("{{addr={}, length={length}, lkey={lkey}}}", at(offset));
    let wanted = format!("qp={b}, wr=[{{wr_id=21, sg_list=[{}]}}], ", piece(2048, 512));
    assert!(recv.args.starts_with(&wanted) && recv.result == "0", "{recv:?}");
    let send = of(&calls, "ibv_post_send")[0];
    let wanted = format!(
        "qp={a}, wr=[{{wr_id=11, opcode=IBV_WR_SEND_WITH_IMM, send_flags=IBV_SEND_SIGNALED, \
         sg_list=[{}, {}], imm_data=0xabc}}, {{wr_id=12, opcode=IBV_WR_RDMA_WRITE, \
         send_flags=IBV_SEND_FENCE|IBV_SEND_SIGNALED, sg_list=[{}], remote_addr={}, \
         rkey={rkey}}}], ",
        piece(0, 48),
        piece(64, 16),
        piece(0, 48),
        at(1024)
    );
    assert!(send.args.starts_with(&wanted), "wanted {wanted}\nsaid   {}", send.args);

    let polls: Vec<&str> = of(&calls, "ibv_poll_cq").iter().map(|c| c.args.as_str()).collect();
    let has = |words: &str| polls.iter().filter(|p| p.contains(words)).count();
    let ok = |id: u32| format!("wc=[{{wr_id={id}, status=IBV_WC_SUCCESS, opcode=");
    assert_eq!(has(&format!("{}IBV_WC_SEND, ", ok(11))), 1, "{text}");
    assert_eq!(has(&format!("{}IBV_WC_RDMA_WRITE, ", ok(12))), 1, "{text}");
    let received = format!(
        "{}IBV_WC_RECV, byte_len=64, qp_num={b}, wc_flags=IBV_WC_WITH_IMM, imm_data=0xabc}}]",
        ok(21)
    );
    assert_eq!(has(&received), 1, "{text}");
    // The failure and its cause, with the numbers of the case.
    let wrong = u32::from_str_radix(&rkey[2..], 16).expect("a key") ^ 0x100;
    let failed = format!(
        "wc=[{{wr_id=13, status=IBV_WC_REM_ACCESS_ERR, qp_num={a}, cause=\"peer refused: remote \
         key unknown or expired, range or access wrong (rkey {wrong:#010x}, address {}); ",
        at(1024)
    );
    assert_eq!(has(&failed), 1, "wanted {failed}\n{text}");
    let folded = of(&calls, "...")[0];
    assert_eq!(folded.args, "100 empty polls of cq#0");
    let refused = of(&calls, "ibv_create_cq")[1];
    assert_eq!(refused.result, "NULL EINVAL (cqe -1: negative)");
    assert_eq!(of(&calls, "ibv_destroy_qp")[0].args, format!("qp={a}"));
}

#[test]
fn requests_that_are_built_and_polls_by_an_extended_queue_are_listed() {
    let t = or_skip!(Traced::new("trace-built", 2));
    let (text, n) = t.trace(&[], &["built"]);
    let calls = calls(&text);
    in_order(
        &calls,
        &[
            "ibv_create_cq_ex",
            "ibv_create_qp_ex",
            "ibv_wr_start",
            "ibv_wr_send",
            "ibv_wr_set_sge",
            "ibv_wr_complete",
            "ibv_start_poll",
            "ibv_next_poll",
            "ibv_end_poll",
        ],
    );
    let complete = of(&calls, "ibv_wr_complete")[0];
    let piece = format!("sg_list=[{{addr={}, length=40, lkey={}}}]", n[4], n[2]);
    let wanted =
        format!("wr=[{{wr_id=32, opcode=IBV_WR_SEND, send_flags=IBV_SEND_SIGNALED, {piece}");
    assert!(complete.args.contains(&wanted), "{complete:?}");
    let polled = of(&calls, "ibv_start_poll")[0];
    assert!(polled.result.starts_with("0 {wr_id=32, status=IBV_WC_SUCCESS, opcode=IBV_WC_SEND"));
    assert_eq!(of(&calls, "ibv_next_poll")[0].result, "ENOENT");
}

#[test]
fn a_filter_chooses_calls_objects_and_threads() {
    let t = or_skip!(Traced::new("trace-filter", 3));
    let names = |filter: &str| -> Vec<String> {
        let (text, _) = t.trace(&["--trace-filter", filter], &["pair"]);
        calls(&text).into_iter().map(|c| c.name).collect()
    };
    assert_eq!(names("call=ibv_post_*"), ["ibv_post_recv", "ibv_post_send", "ibv_post_send"]);
    assert_eq!(names("call=ibv_reg_mr,ibv_dereg_mr"), ["ibv_reg_mr", "ibv_dereg_mr"]);
    assert_eq!(names("mr=0"), ["ibv_reg_mr", "ibv_dereg_mr"]);
    assert_eq!(names("mr=0;call=ibv_dereg_mr"), ["ibv_dereg_mr"]);
    assert_eq!(names("call=ibv_fork_init;mr=0"), [""; 0]);
    assert_eq!(names("thread=1"), [""; 0]);
    assert_eq!(names("call=ibv_create_qp;pd=0"), ["ibv_create_qp"; 2]);
    assert_eq!(names("call=ibv_poll_cq;cq=1"), [""; 0]);
    let polls = names("cq=0;call=ibv_poll_cq");
    assert!(polls.len() >= 5 && polls[0] == "...", "{polls:?}");
    for (filter, why) in [
        ("call=ibv_post_sent", "'ibv_post_sent': no call"),
        ("qp", "a condition is KEY=VALUE"),
        ("qp=x", "'x': not a number"),
    ] {
        let done = t.run(&["--trace", "--trace-filter", filter], &["pair"]);
        assert!(done.code() == Some(125) && done.output.contains(why), "{filter}: {done}");
        // By the variable alone the filter counts as not set.
        let mut c = t.command(&["--trace"], &["pair"]);
        let done = run(c.env("GDRC_TRACE_FILTER", filter), 60);
        assert!(done.ok() && done.output.contains(why), "{filter}: {done}");
        assert!(done.output.contains("ibv_alloc_pd("), "{done}");
    }
}

#[test]
fn lines_are_there_however_the_process_ends() {
    let t = or_skip!(Traced::new("trace-ends", 4));
    // `_exit`, a signal that no handler sees, and one that ends a sleeping program.
    for (how, signal) in [("exit", None), ("kill", Some(9)), ("wait", Some(libc::SIGTERM))] {
        let mut running = Running::start(&mut t.command(&["--trace=file"], &[how]));
        if how == "wait" {
            running.wait_for_output("qp ");
            running.signal(libc::SIGTERM);
        }
        let done = running.finish(LIMIT);
        assert_eq!(done.status.expect("it ended").signal(), signal, "{how}: {done}");
        let text = t.read("file");
        assert!(text.ends_with(">\n"), "{how}: {text}");
        assert_eq!(of(&calls(&text), "ibv_modify_qp").len(), 6, "{how}: {text}");
    }
    // exec: the new program is the same process, with a file of its own.
    let done = t.run(&["--trace=file"], &["exec"]);
    assert!(done.ok(), "{done}");
    let files = t.files();
    assert_eq!(files.len(), 2, "{files:?}");
    assert_eq!(calls(&t.read(&files[1])).len(), 1, "{files:?}");
    fs::remove_file(t.dir.join(&files[1])).expect("removed");
    // fork: so has a child, and its thread another number.
    let (text, _) = t.trace(&[], &["fork"]);
    let files = t.files();
    assert_eq!(files.len(), 2, "{files:?}");
    let (parent, child) = (calls(&text), calls(&t.read(&files[1])));
    assert_eq!(child.len(), 1, "{child:?}");
    assert_eq!(files[1], format!("file.{}", child[0].thread));
    assert!(parent.iter().all(|c| c.thread != child[0].thread));
    assert_eq!(parent.last().expect("calls").name, "ibv_req_notify_cq");
}

#[test]
fn a_file_of_the_program_that_has_our_descriptor_is_not_written() {
    let t = or_skip!(Traced::new("trace-closed", 5));
    let done = t.run(&["--trace=file"], &["closed", "own"]);
    assert!(done.ok(), "{done}");
    assert_eq!(t.read("own"), "");
    let files = t.files();
    assert_eq!(files.len(), 2, "{files:?}");
    assert_eq!(of(&calls(&t.read(&files[1])), "ibv_fork_init").len(), 1);
}

#[test]
fn no_link_is_followed_and_no_file_is_overwritten() {
    let t = or_skip!(Traced::new("trace-links", 6));
    fs::write(t.dir.join("kept"), "kept").expect("written");
    symlink("kept", t.dir.join("file")).expect("a link");
    let done = t.run(&["--trace=file"], &["none"]);
    assert!(done.code() == Some(125) && done.output.contains("no regular file"), "{done}");
    // Without gdrcore-run's look: the name behind it is taken.
    let mut c = t.command(&[], &["none"]);
    let done = run(c.env("GDRC_TRACE", "file"), 60);
    assert!(done.ok(), "{done}");
    assert_eq!(t.read("kept"), "kept");
    let files = t.files();
    assert_eq!(files.len(), 2, "{files:?}");
    let made = fs::symlink_metadata(t.dir.join(&files[1])).expect("a file");
    assert!(made.is_file() && made.mode() & 0o777 == 0o600, "{:o}", made.mode());
    // An older trace is replaced by gdrcore-run, and kept where the variable alone names it.
    fs::remove_file(t.dir.join("file")).expect("removed");
    fs::write(t.dir.join("file"), "old").expect("written");
    let done = run(t.command(&[], &["none"]).env("GDRC_TRACE", "file"), 60);
    assert!(done.ok() && t.read("file") == "old", "{done}");
    let done = t.run(&["--trace=file"], &["none"]);
    assert!(done.ok() && calls(&t.read("file")).len() == 1, "{done}");
    // Nowhere to write: the program runs, and is told once.
    let done = run(t.command(&[], &["pair"]).env("GDRC_TRACE", "/nonexistent/x"), 60);
    assert!(done.ok(), "{done}");
    assert_eq!(done.output.matches("/nonexistent/x ends here").count(), 1, "{done}");
}

#[test]
fn a_full_disk_ends_the_trace_and_not_the_program() {
    let t = or_skip!(Traced::new("trace-full", 7));
    let mut sh = command(Some(&t.address), &["--trace=file"], "sh");
    sh.args(["-c", "ulimit -f 4; exec \"$0\" pair"]).arg(&t.file).current_dir(&*t.dir);
    let done = run(&mut sh, 60);
    assert!(done.ok() && done.output.contains("ok\n"), "{done}");
    assert_eq!(done.output.matches("file ends here: File too large").count(), 1, "{done}");
    // What is there is whole.
    let text = t.read("file");
    assert!(text.ends_with(">\n") && calls(&text).len() > 2, "{text}");
    let mut sh = command(Some(&t.address), &["--trace=chrome:file"], "sh");
    sh.args(["-c", "ulimit -f 4; exec \"$0\" pair"]).arg(&t.file).current_dir(&*t.dir);
    let done = run(&mut sh, 60);
    assert!(done.ok() && done.output.contains("ends here: File too large"), "{done}");
    let text = t.read("file");
    assert!(text.ends_with("}}\n]\n") && text.len() <= 4096, "{text}");
    if find("python3").is_some() {
        let mut json = Command::new("python3");
        let valid = run(json.args(["-m", "json.tool"]).arg(t.dir.join("file")), 60);
        assert!(valid.ok(), "{valid}");
    }
}

#[test]
fn empty_polls_of_queues_in_turn_are_few_lines() {
    let t = or_skip!(Traced::new("trace-turns", 16));
    let (text, _) = t.trace(&[], &["turns", "1000"]);
    let calls = calls(&text);
    let folded = of(&calls, "...");
    // One line of each, and of each second.
    assert!(folded.len() < 200, "{text}");
    for cq in ["cq#0", "cq#1"] {
        let of_it = folded.iter().filter(|c| c.args.ends_with(cq));
        let count = |c: &&&Call| -> u32 {
            c.args.split(' ').next().and_then(|n| n.parse().ok()).expect("a number")
        };
        assert_eq!(of_it.map(|c| count(&c)).sum::<u32>(), 1000, "{text}");
    }
}

#[test]
fn a_thread_is_not_cancelled_inside_the_trace() {
    let t = or_skip!(Traced::new("trace-cancel", 17));
    for file in ["file", "chrome:file"] {
        let done = t.run(&[&format!("--trace={file}")], &["cancel"]);
        assert!(done.ok() && done.output.contains("ok\n"), "{file}: {done}");
    }
}

#[test]
fn a_reader_that_does_not_read_loses_lines_and_the_program_goes_on() {
    let t = or_skip!(Traced::new("trace-stuck", 8));
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut c = t.command(&["--trace"], &["many", "2000"]);
    let mut child = c.stdout(Stdio::null()).stderr(writer).spawn().expect("started");
    drop(c);
    // 4,000 lines do not fit into a pipe.
    let end = Instant::now() + LIMIT * patience::factor();
    let status = loop {
        match child.try_wait().expect("a child") {
            Some(status) => break status,
            None if Instant::now() > end => {
                child.kill().expect("killed");
                panic!("it waits for its reader");
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    assert!(status.success(), "{status}");
    let said = std::io::read_to_string(reader).expect("what fits");
    assert!(said.contains("ibv_req_notify_cq(") && said.len() <= 65536, "{}", said.len());
    // A reader that is gone does not end it either.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut c = t.command(&["--trace"], &["pair"]);
    let status = c.stdout(Stdio::null()).stderr(writer).status().expect("it ends");
    assert!(status.success(), "{status}");
}

#[test]
fn lists_that_are_wrong_do_no_harm() {
    let t = or_skip!(Traced::new("trace-wrong", 9));
    for options in [&["--trace=file"][..], &["--trace=chrome:file"]] {
        let done = t.run(options, &["wrong"]);
        assert!(done.ok() && done.output.contains("ok\n"), "{done}");
    }
    let (text, _) = t.trace(&[], &["wrong"]);
    // 1,024 requests of the circle, on continued lines.
    let circle = text.matches("{wr_id=0, opcode=IBV_WR_SEND, ").count();
    assert_eq!(circle, 1024, "{}", &text[..4096.min(text.len())]);
    assert!(text.contains("{wr_id=77, opcode=IBV_WR_SEND, send_flags=0, sg_list=[0x"), "{text}");
    assert!(text.lines().all(|l| l.len() < 4096));
}

#[test]
fn nothing_is_written_and_no_function_replaced_without_the_option() {
    let t = or_skip!(Traced::new("trace-off", 11));
    let done = t.run(&[], &["pair"]);
    assert!(done.ok(), "{done}");
    assert!(!done.output.contains("ibv_"), "{done}");
    assert_eq!(t.files(), [""; 0]);
    // The functions in a context's table lie elsewhere with the option, and only then.
    let dir = scratch("trace-table");
    let program = compile("cc", "ops_table", &dir, &["-libverbs"]);
    let table = |options: &[&str]| {
        let done = run(&mut command(Some(&loopback(224, 12)), options, &program), 60);
        assert!(done.ok(), "{done}");
        let offsets = done.output.lines().filter(|l| l.starts_with("ops ")).map(str::to_string);
        offsets.collect::<Vec<_>>()
    };
    let off = table(&[]);
    assert!(off.len() > 10, "{off:?}");
    assert_eq!(off, table(&["-v"]), "poll_cq apart, which explains failures");
    assert_eq!(off, table(&["--stats"]));
    let on = table(&[&format!("--trace={}", dir.join("file").display())]);
    assert!(off.iter().zip(&on).all(|(off, on)| off != on), "{off:?}\n{on:?}");
}

#[test]
fn counts_are_printed_at_the_end() {
    let t = or_skip!(Traced::new("trace-counts", 13));
    for option in ["-c", "--trace-count"] {
        let done = t.run(&[option], &["many", "500"]);
        assert!(done.ok(), "{done}");
        let row = |name: &str| -> Vec<String> {
            let line = done.output.lines().find(|l| l.ends_with(&format!(" {name}")));
            let line = line.unwrap_or_else(|| panic!("{name}: {done}"));
            line.split_whitespace().map(str::to_string).collect()
        };
        assert_eq!(row("ibv_req_notify_cq")[3], "1000", "{done}");
        assert_eq!(row("ibv_poll_cq")[3], "500", "{done}");
        assert_eq!(row("ibv_create_qp")[3], "2", "{done}");
        assert!(!done.output.contains("ibv_post_send"), "{done}");
    }
    let done = t.run(&["-c", "--trace-filter", "call=ibv_create_cq"], &["pair"]);
    let row = done.output.lines().find(|l| l.ends_with(" ibv_create_cq")).expect("its row");
    let numbers: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(numbers[3..5], ["2", "1"], "one of two failed: {row}");
    assert!(!done.output.contains("ibv_destroy_qp"), "{done}");
}

#[test]
fn failures_are_explained_at_the_end_by_the_counters_option() {
    let t = or_skip!(Traced::new("trace-causes", 14));
    let done = t.run(&["--stats"], &["pair"]);
    assert!(done.ok(), "{done}");
    let explained = "remote access error: peer refused: remote key unknown or expired, range or \
                     access wrong (rkey ";
    let lines: Vec<&str> = done.output.lines().filter(|l| l.contains(explained)).collect();
    assert!(lines.len() == 1 && lines[0].starts_with("gdrcore: QP 0x"), "{done}");
    let printed = done.output.find(explained).expect("there");
    assert!(done.output.find("ok\n").expect("the program's end") < printed, "{done}");
    // With -v once, when it happens.
    let done = t.run(&["--stats", "-v"], &["pair"]);
    assert_eq!(done.output.matches(explained).count(), 1, "{done}");
}

#[test]
fn both_ends_of_pingpong_are_traced() {
    let pingpong = or_skip!(installed("ibv_rc_pingpong"));
    let dir = scratch("trace-pingpong");
    let (addresses, port) = ([loopback(224, 21), loopback(224, 22)], free_port());
    let side = |i: usize| {
        let file = format!("--trace={}", dir.join(format!("side{i}")).display());
        let mut c = command(Some(&addresses[i]), &[&file], &pingpong);
        c.args(["-g", "0", "-n", "20", "-p", &port.to_string()]);
        c
    };
    let server = start_server(&mut side(0), port);
    let client = Running::start(side(1).arg(&addresses[0])).finish(LIMIT);
    let server = server.finish(LIMIT);
    assert!(server.ok() && client.ok(), "{server}\n{client}");
    for (i, done) in [server, client].into_iter().enumerate() {
        let text = fs::read_to_string(dir.join(format!("side{i}"))).expect("the trace");
        let calls = calls(&text);
        in_order(
            &calls,
            &[
                "ibv_get_device_list",
                "ibv_open_device",
                "ibv_alloc_pd",
                "ibv_create_cq",
                "ibv_create_qp",
                "ibv_query_qp",
                "ibv_modify_qp",
                "ibv_post_recv",
                "ibv_query_port",
                "ibv_query_gid",
                "ibv_modify_qp",
                "ibv_modify_qp",
                "ibv_post_send",
                "ibv_poll_cq",
                "ibv_destroy_qp",
                "ibv_destroy_cq",
                "ibv_dereg_mr",
                "ibv_dealloc_pd",
                "ibv_close_device",
                "ibv_free_device_list",
            ],
        );
        // The program prints its queue pair's number in six digits.
        let own = done.output.lines().find(|l| l.contains("local address")).expect("its address");
        let digits = own.split("QPN 0x").nth(1).and_then(|w| w.get(..6)).expect("a number");
        let qpn = u32::from_str_radix(digits, 16).expect("a number");
        assert_eq!(of(&calls, "ibv_create_qp")[0].result, format!("qp {qpn:#x}"));
        let sends: Vec<_> =
            of(&calls, "ibv_post_send").into_iter().filter(|c| c.result == "0").collect();
        assert_eq!(sends.len(), 20, "{text}");
        for send in sends {
            assert!(send.args.starts_with(&format!("qp={qpn:#x}, wr=[{{wr_id=2, opcode=")));
            let words = "opcode=IBV_WR_SEND, send_flags=IBV_SEND_SIGNALED, sg_list=[{addr=0x";
            assert!(send.args.contains(words) && send.args.contains("length=4096"), "{send:?}");
        }
        let completed = |words: &str| text.matches(words).count();
        let ok = "status=IBV_WC_SUCCESS, opcode=";
        assert_eq!(completed(&format!("{{wr_id=2, {ok}IBV_WC_SEND, ")), 20, "{text}");
        assert_eq!(
            completed(&format!("{{wr_id=1, {ok}IBV_WC_RECV, byte_len=4096, ")),
            20,
            "{text}"
        );
    }
}

#[test]
fn the_connection_of_rping_is_traced() {
    let dir = scratch("trace-rping");
    let option = format!("--trace={}", dir.join("file").display());
    let mut pair = Pair::new("rping -s -a {S} -C 3", "rping -c -a {S} -I {C} -C 3");
    let options = [option.as_str()];
    pair.options = &options;
    let [_, client] = or_skip!(pair.run(224, &dir));
    assert!(client.ok(), "{client}");
    let names = fs::read_dir(&*dir).expect("the folder").flatten().map(|e| e.path());
    let traces: Vec<String> = names
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("file")))
        .map(|p| fs::read_to_string(p).expect("a trace"))
        .collect();
    assert_eq!(traces.len(), 2, "one of each side: the name of the first was taken");
    let (server, client) = match traces[0].contains("rdma_listen(") {
        true => (&traces[0], &traces[1]),
        false => (&traces[1], &traces[0]),
    };
    let (server, client) = (calls(server), calls(client));
    // A thread of its own waits for the events, so they may begin to wait at any time.
    in_order(
        &server,
        &[
            "rdma_create_event_channel",
            "rdma_create_id",
            "rdma_bind_addr",
            "rdma_listen",
            "ibv_create_qp",
            "rdma_accept",
            "ibv_post_send",
            "ibv_destroy_qp",
            "rdma_destroy_id",
        ],
    );
    in_order(
        &client,
        &[
            "rdma_create_event_channel",
            "rdma_create_id",
            "rdma_resolve_addr",
            "rdma_resolve_route",
            "ibv_create_qp",
            "rdma_connect",
            "ibv_post_send",
            "rdma_disconnect",
            "ibv_destroy_qp",
            "rdma_destroy_id",
        ],
    );
    assert!(!of(&client, "ibv_poll_cq").is_empty() && !of(&server, "ibv_poll_cq").is_empty());
    let events = |calls: &[Call]| -> Vec<String> {
        let event = |c: &&Call| c.result.split(' ').nth(1).map(str::to_string);
        of(calls, "rdma_get_cm_event").iter().filter_map(event).collect()
    };
    assert_eq!(
        events(&client)[..3],
        ["ADDR_RESOLVED", "ROUTE_RESOLVED", "CONNECT_RESPONSE"]
            .map(|e| format!("RDMA_CM_EVENT_{e}"))
    );
    assert_eq!(
        events(&server)[..2],
        ["CONNECT_REQUEST", "ESTABLISHED"].map(|e| format!("RDMA_CM_EVENT_{e}"))
    );
    let port = |c: &Call| c.args.contains(&format!("={} port 7174", loopback(224, 1)));
    assert!(port(of(&client, "rdma_resolve_addr")[0]), "{client:?}");
    // The first is librdmacm's question whether there is AF_IB.
    assert!(port(of(&server, "rdma_bind_addr")[1]), "{server:?}");
    // The number of the queue pair goes to the peer.
    let qp = of(&client, "ibv_create_qp")[0].result.trim_start_matches("qp ").to_string();
    assert!(of(&client, "rdma_connect")[0].args.contains(&format!("qp_num={qp}, ")), "{client:?}");
}

/// Checks a file of Chrome's format, by the standard library's parser of Python.
fn checked_json(file: &Path) -> Option<String> {
    let python = find("python3")?;
    let script = "import json, sys\n\
        events = json.load(open(sys.argv[1]))\n\
        starts = {e['id']: e for e in events if e['ph'] == 's'}\n\
        ends = {e['id']: e for e in events if e['ph'] == 'f'}\n\
        assert set(starts) == set(ends) and starts, (len(starts), len(ends))\n\
        def inside(arrow):\n\
        \x20   return [e for e in events if e['ph'] == 'X' and e['tid'] == arrow['tid']\n\
        \x20           and e['ts'] <= arrow['ts'] <= e['ts'] + e['dur'] + 0.001]\n\
        for i in starts:\n\
        \x20   s, f = starts[i], ends[i]\n\
        \x20   assert s['name'] == f['name'] and s['ts'] <= f['ts'] and f['bp'] == 'e'\n\
        \x20   post, poll = inside(s), inside(f)\n\
        \x20   assert post and poll, (s, f)\n\
        \x20   print(s['name'], post[0]['name'], '->', poll[0]['name'])\n\
        for e in events:\n\
        \x20   if e['ph'] == 'X': print(e['name'], e['args']['call'])\n";
    let done = run(Command::new(python).args(["-c", script]).arg(file), 60);
    assert!(done.ok(), "{}: {done}", file.display());
    Some(done.output)
}

#[test]
fn events_for_perfetto_have_arrows_with_both_ends() {
    let t = or_skip!(Traced::new("trace-chrome", 15));
    or_skip!(installed("python3"));
    let done = t.run(&["--trace=chrome:file"], &["pair"]);
    assert!(done.ok(), "{done}");
    let said = checked_json(&t.dir.join("file")).expect("python3");
    let count = |words: &str| said.lines().filter(|l| *l == words).count();
    // A SEND and a WRITE to their completions, a receive to its own, and the SEND to that receive.
    assert_eq!(count("completion ibv_post_send -> ibv_poll_cq"), 2, "{said}");
    assert_eq!(count("completion ibv_post_recv -> ibv_poll_cq"), 1, "{said}");
    assert_eq!(count("message ibv_post_send -> ibv_poll_cq"), 1, "{said}");
    assert!(said.contains("ibv_create_cq (context=gdrc0, cqe=64, "), "{said}");
    assert!(said.contains("... 100 empty polls of cq#0"), "{said}");
    assert!(said.contains("cause=\"peer refused: "), "{said}");
    let built = t.run(&["--trace=chrome:file"], &["built"]);
    assert!(built.ok(), "{built}");
    let said = checked_json(&t.dir.join("file")).expect("python3");
    assert!(said.contains("completion ibv_wr_complete -> ibv_start_poll"), "{said}");
    assert!(said.contains("message ibv_wr_complete -> ibv_poll_cq"), "{said}");
    // A post that the filter hides has no slice from which an arrow could begin.
    let filter = ["--trace=chrome:file", "--trace-filter", "cq=0"];
    let filtered = t.run(&filter, &["pair"]);
    assert!(filtered.ok(), "{filtered}");
    let text = t.read("file");
    assert!(text.contains("ibv_poll_cq") && !text.contains("\"ph\":\"s\""), "{text}");
    // Valid whatever ends the process.
    let killed = t.run(&["--trace=chrome:file"], &["kill"]);
    assert_eq!(killed.status.expect("it ended").signal(), Some(9));
    let valid = run(Command::new("python3").args(["-m", "json.tool"]).arg(t.dir.join("file")), 60);
    assert!(valid.ok() && valid.output.contains("ibv_modify_qp"), "{valid}");
    let threads = t.run(&["--trace=chrome:file"], &["many", "300"]);
    assert!(threads.ok(), "{threads}");
    let valid = run(Command::new("python3").args(["-m", "json.tool"]).arg(t.dir.join("file")), 60);
    assert!(valid.ok(), "{valid}");
    assert_eq!(valid.output.matches("\"name\": \"ibv_req_notify_cq\"").count(), 600);
}

#[test]
fn a_signal_handler_may_call_fork_and_exit_at_any_place() {
    or_skip!(verbs_compiler());
    let dir = scratch("trace-signals");
    let program = compile("cc", "interrupted", &dir, &["-libverbs"]);
    for how in ["exit", "fork"] {
        for file in ["file", "chrome:file"] {
            let mut c = command(None, &[&format!("--trace={file}")], &program);
            let done = run(c.arg(how).current_dir(&*dir), 60);
            assert!(done.ok(), "{how} {file}: {done}");
            let text = fs::read_to_string(dir.join("file")).expect("the trace");
            // All of one process, and as long as the calls that it made.
            let mut owners: Vec<&str> = match file {
                "file" => text.lines().filter_map(|l| l.split_whitespace().nth(1)).collect(),
                _ => text.split("\"pid\":").skip(1).filter_map(|w| w.split(',').next()).collect(),
            };
            owners.dedup();
            assert_eq!(owners.len(), 1, "{how} {file}: {owners:?}");
            assert!(file == "file" || text.ends_with("}\n]\n") && !text.contains("\n]\n,"));
            for file in fs::read_dir(&*dir).expect("the folder").flatten().map(|e| e.path()) {
                if file.file_name().is_some_and(|n| n.to_string_lossy().starts_with("file.")) {
                    fs::remove_file(file).expect("removed");
                }
            }
        }
    }
}

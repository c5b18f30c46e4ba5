//! One unmodified tool at both ends: here on the drop-in under `gdrcore-run`, there on Linux's rxe.
//! The two find each other by rdma_cm, whose messages cross the wire. Also the pingpong of the C
//! examples with rdma-core's.

use super::cm::end_of;
use super::lab::Lab;
use super::report::Report;
use super::side::Side;
use super::Outcome;
use crate::dropin::wait_until_listened_at;
use crate::library;
use crate::rdmacm::{command, has_served, wait_until_it_listens};
use crate::tools::{find, Done, Running};
use std::process::Command;
use std::time::Duration;

/// Time limit of a tool.
const LIMIT: Duration = Duration::from_secs(60);
/// Messages of each of perftest's tests.
const ITERATIONS: usize = 100;

/// A tool and its arguments as server and as client; `{}` stands for the server's address.
struct Tool {
    name: &'static str,
    both: &'static str,
    server: &'static str,
    client: &'static str,
    /// Number of messages in both directions.
    messages: usize,
    /// Whether it takes IPv6 addresses, too.
    six: bool,
}

impl Tool {
    /// A test of perftest whose exchange uses the connection that rdma_cm makes.
    const fn perftest(name: &'static str, both: &'static str, messages: usize) -> Tool {
        Tool { name, both, server: "", client: "{}", messages, six: false }
    }

    fn feature(&self) -> String {
        match self.name.strip_prefix("ib_") {
            Some(_) => format!("perftest {} -R at both ends, ours on the drop-in", self.name),
            None => format!("{} of rdmacm-utils at both ends, ours on the drop-in", self.name),
        }
    }
}

const TOOLS: [Tool; 7] = [
    Tool::perftest("ib_send_lat", "-R -F -n 100 -s 64", 2 * ITERATIONS),
    Tool::perftest("ib_send_bw", "-R -F -n 100 -s 65536", ITERATIONS),
    Tool::perftest("ib_write_lat", "-R -F -n 100 -s 64", 2 * ITERATIONS),
    Tool::perftest("ib_write_bw", "-R -F -n 100 -s 65536", ITERATIONS),
    Tool::perftest("ib_read_lat", "-R -F -n 100 -s 4096", ITERATIONS),
    Tool {
        name: "rping",
        both: "-a {} -C 10 -S 3000 -V -v",
        server: "-s",
        client: "-c",
        messages: 40,
        six: true,
    },
    Tool {
        name: "ucmatose",
        both: "-C 10 -S 1000",
        server: "-b {}",
        client: "-s {}",
        messages: 20,
        six: false,
    },
];

/// Whether a side ended as expected.
fn has_ended_well(tool: &Tool, serves: bool, done: &Done) -> bool {
    done.ok() || serves && has_served(tool.name, done)
}

/// Runs both sides until they have ended, ours as server or as client, on our address `near` and
/// the far end's `far`.
fn run_case(
    lab: &Lab,
    tool: &Tool,
    ours_serves: bool,
    near: &str,
    far: &str,
    port: u16,
) -> Outcome<usize> {
    let server = if ours_serves { near } else { far };
    let line = |serves: bool| {
        let part = if serves { tool.server } else { tool.client };
        format!("-p {port} {} {part}", tool.both).replace("{}", server)
    };
    let ours = |serves: bool| {
        let mut c = command(Some(near), &[], find(tool.name).unwrap_or_else(|| tool.name.into()));
        c.args(line(serves).split_whitespace());
        Running::start(&mut c)
    };
    let theirs = |serves: bool| lab.vm.begin(&format!("exec {} {}", tool.name, line(serves)), 60);
    let (ours, theirs) = if ours_serves {
        let mut ours = ours(true);
        wait_until_it_listens(&mut ours, near);
        (ours, theirs(false))
    } else {
        let theirs = theirs(true);
        let there = format!("rdma res show cm_id | grep LISTEN | grep -q ':{port} '");
        let wait = format!("until {there}; do sleep 0.1; done");
        lab.vm.run(&wait, 60).map_err(|e| format!("{} does not listen: {e}", tool.name))?;
        (ours(false), theirs)
    };
    let (ours, theirs) = both_end(ours, theirs, ours_serves);
    for (who, serves, done) in
        [("ours", ours_serves, &ours), ("the kernel's", !ours_serves, &theirs)]
    {
        if !has_ended_well(tool, serves, done) {
            let (ours, theirs) = (end_of(&ours.output), end_of(&theirs.output));
            return Err(format!(
                "{who} ended with {:?}; ours says {ours}; the kernel's {theirs}",
                done.code()
            ));
        }
    }
    Ok(tool.messages)
}

/// Waits for both. The client ends first; the server then has little left to do.
fn both_end(ours: Running, theirs: Running, ours_serves: bool) -> (Done, Done) {
    let patience = |first: &Done| if first.ok() { LIMIT } else { Duration::from_secs(2) };
    if ours_serves {
        let theirs = theirs.finish(LIMIT);
        (ours.finish(patience(&theirs)), theirs)
    } else {
        let ours = ours.finish(LIMIT);
        let patience = patience(&ours);
        (ours, theirs.finish(patience))
    }
}

/// The pingpong of the C examples with rdma-core's of the same kind; ours is server or client.
fn pingpong(lab: &Lab, kind: &str, ours_waits: bool, port: u16) -> Outcome<usize> {
    let common = format!("-n {ITERATIONS} -s 1001 -p {port}");
    let mut c = Command::new(library::examples().join("perf/pingpong"));
    c.args([kind, "--ibv-peer", "-d", "soft:10.77.1.1"]).args(common.split(' '));
    if !ours_waits {
        // It repeats its request until the other side listens.
        c.arg("10.77.1.2");
    }
    let mut ours = Running::start(&mut c);
    if ours_waits {
        wait_until_listened_at(port, &mut ours);
    }
    let host = if ours_waits { "10.77.1.1" } else { "" };
    let theirs =
        lab.vm.begin(&format!("exec ibv_{kind}_pingpong -d rxe0 -g 1 {common} {host}"), 60);
    let (ours, theirs) = both_end(ours, theirs, ours_waits);
    if ours.ok() && theirs.ok() {
        return Ok(2 * ITERATIONS);
    }
    Err(format!(
        "ours: {:?} {}; rdma-core's: {:?} {}",
        ours.code(),
        ours.output.trim(),
        theirs.code(),
        theirs.output.trim()
    ))
}

/// Delay of our REQ. perftest's client requests its second connection as soon as the first has
/// ended; its server, in the emulated machine, takes some time until it listens again, and would
/// refuse.
const REQ_TAKES: Duration = Duration::from_millis(500);

/// Delays our REQ, and drops the refusal that comes if nobody listens yet, so that our side repeats
/// the request. `packet` is from the BTH to before the ICRC.
fn slow_request(from: Side, packet: &mut [u8]) -> bool {
    const QP1: &[u8] = &[0, 0, 1];
    const CM_REQ: &[u8] = &[0, 0x10];
    const CM_REJ: &[u8] = &[0, 0x12];
    const INVALID_SERVICE_ID: &[u8] = &[0, 8];
    // BTH and DETH are 20 bytes; the attribute id is byte 16 of the MAD, the reason of a refusal
    // byte 34.
    let is = |what| packet.get(5..8) == Some(QP1) && packet.get(36..38) == Some(what);
    if from == Side::Ours && is(CM_REQ) {
        std::thread::sleep(REQ_TAKES);
    }
    !(from == Side::Rxe && is(CM_REJ) && packet.get(54..56) == Some(INVALID_SERVICE_ID))
}

/// Every tool, with the server at either side, and the pingpongs.
pub fn all(report: &mut Report, lab: &Lab) {
    // Each run has its own port: the former one may stay in use for a while.
    let mut port = 21_000;
    for kind in ["rc", "uc", "ud"] {
        let feature =
            format!("pingpong {kind} of the C examples with ibv_{kind}_pingpong of rdma-core");
        for (side, ours_waits) in [(Side::Ours, false), (Side::Rxe, true)] {
            port += 1;
            report.case(&feature, side, "IPv4", || {
                lab.mangler.watch();
                lab.mangler.explain(pingpong(lab, kind, ours_waits, port))
            });
        }
    }
    for tool in &TOOLS {
        let feature = tool.feature();
        for (near, far, family) in
            [("10.77.1.1", "10.77.1.2", "IPv4"), ("fd00:78::1", "fd00:78::2", "IPv6")]
        {
            if family == "IPv6" && !tool.six {
                continue;
            }
            for (side, ours_serves) in [(Side::Ours, false), (Side::Rxe, true)] {
                if find(tool.name).is_none() {
                    report.remark(&feature, side, "not tried: the tool is not installed here");
                    continue;
                }
                port += 1;
                report.case(&feature, side, family, || {
                    lab.mangler.watch();
                    lab.mangler.script(Some(Box::new(slow_request)));
                    let done = run_case(lab, tool, ours_serves, near, far, port);
                    lab.mangler.script(None);
                    lab.mangler.explain(done)
                });
            }
        }
    }
}

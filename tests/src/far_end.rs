//! The other end of a connection in a process of its own, which a test may kill, stop and continue.
//!
//! The process runs the binary `far_end` of this package. It reads a peer's address from a line,
//! makes an end, connects it and prints its own address. Then it serves requests, and streams
//! requests of its own if its options say so.

use crate::ends::{Address, End};
use crate::patience;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{channel, Receiver};
use std::time::{Duration, Instant};

/// A running far end; killed when dropped.
pub struct Far {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Far {
    /// Starts `program` (the path of `far_end`) on a device. `options` are `key=value`; the binary
    /// documents them.
    pub fn start(program: &str, device: &str, options: &[&str]) -> Far {
        let far = Far::run(Command::new(program).arg(device).args(options));
        assert_eq!(
            far.line(Duration::from_secs(60)).as_deref(),
            Some("open"),
            "the far end did not open its device"
        );
        far
    }

    /// A stream of WRITEs from a far end on one device to one on another.
    pub fn stream(program: &str, from: &str, to: &str) -> (Far, Far) {
        let options = ["stream=write", "piece=65536", "timeout=14"];
        let mut from = Far::start(program, from, &options);
        let mut to = Far::start(program, to, &[]);
        from.connect_far(&mut to);
        from.say("go");
        (from, to)
    }

    /// Waits until a stream has moved `times` from now on, and says nothing else.
    pub fn moves(&self, times: u32) {
        while let Some(line) = self.said() {
            assert!(line.starts_with("moved "), "{line}");
        }
        for _ in 0..times {
            self.answer("moved ");
        }
    }

    /// Starts a program that reads and writes lines, as `far_end` does.
    pub fn run(command: &mut Command) -> Far {
        patience::hand_on(command);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let input = child.stdin.take();
        let output = child.stdout.take().expect("stdout is piped");
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Far { child, input, lines }
    }

    /// Connects two far ends with each other, without streams; returns their addresses.
    pub fn connect_far(&mut self, other: &mut Far) -> [Address; 2] {
        let at = |far: &mut Far| {
            far.say("make");
            let line = far.line(Duration::from_secs(60)).expect("the far end did not answer");
            line.strip_prefix("at ").unwrap_or_else(|| panic!("{line}")).to_owned()
        };
        let (a, b) = (at(self), at(other));
        self.say(&format!("join {b}"));
        other.say(&format!("join {a}"));
        [a, b].map(|text| parse_address(&text).expect("an address"))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line, without its beginning, which must be `begin`.
    pub fn answer(&self, begin: &str) -> String {
        let line = self
            .line(Duration::from_secs(60))
            .unwrap_or_else(|| panic!("no line came; expected '{begin}'"));
        line.strip_prefix(begin)
            .unwrap_or_else(|| panic!("line '{line}'; expected '{begin}'"))
            .trim()
            .to_owned()
    }

    /// Closes its standard input.
    pub fn hang_up(&mut self) {
        drop(self.input.take());
    }

    /// The next line that it prints; `None` after `limit`, which is for an idle machine (see
    /// [`patience`]).
    pub fn line(&self, limit: Duration) -> Option<String> {
        self.lines.recv_timeout(limit * patience::factor()).ok()
    }

    /// The next line that it has already printed; `None`: there is none.
    pub fn said(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }

    /// Connects `end` with a new end of the other process.
    pub fn connect(&mut self, end: &mut End) {
        self.say(&format!("peer {}", print_address(&end.own)));
        let deadline = patience::deadline(60);
        let theirs = loop {
            let line = self.line(Duration::from_secs(60)).expect("the far end did not answer");
            if let Some(address) = line.strip_prefix("at ") {
                break parse_address(address).expect("an address");
            }
            assert!(Instant::now() < deadline, "{line}");
        };
        end.connect(theirs).expect("connect");
        self.say("go");
    }

    /// Sends a line to its standard input.
    pub fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("not closed");
        writeln!(input, "{line}").expect("the far end is gone");
    }

    /// Kills it (SIGKILL) and waits for its end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: our own child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    /// Stops it (SIGSTOP), and returns when all of its threads are stopped.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
        let is_stopped = |stat: &str| {
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
        };
        patience::wait_for(60, "the far end does not stop", || {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("procfs");
            tasks.flatten().all(|t| {
                std::fs::read_to_string(t.path().join("stat")).is_ok_and(|s| is_stopped(&s))
            })
        });
    }

    /// Waits until it ends by itself; true if it closed its device with nothing left open.
    pub fn finish(mut self) -> bool {
        drop(self.input.take());
        let end = patience::deadline(60);
        while Instant::now() < end {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.success();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An address as a line of words.
pub fn print_address(a: &Address) -> String {
    let gid: String = a.ah.dgid.iter().map(|b| format!("{b:02x}")).collect();
    format!("{gid} {} {} {} {} {} {}", a.ah.scope_id, a.ah.udp_port, a.qpn, a.psn, a.addr, a.rkey)
}

/// Reads what [`print_address`] wrote.
pub fn parse_address(text: &str) -> Option<Address> {
    let mut words = text.split_whitespace();
    let mut a = Address::default();
    let gid = words.next()?;
    for (i, byte) in a.ah.dgid.iter_mut().enumerate() {
        *byte = u8::from_str_radix(gid.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    a.ah.scope_id = words.next()?.parse().ok()?;
    a.ah.udp_port = words.next()?.parse().ok()?;
    a.qpn = words.next()?.parse().ok()?;
    a.psn = words.next()?.parse().ok()?;
    a.addr = words.next()?.parse().ok()?;
    a.rkey = words.next()?.parse().ok()?;
    Some(a)
}

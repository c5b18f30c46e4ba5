//! Unmodified programs of perftest at the far end; this file is the other half of their protocol,
//! as server or client.
//!
//! Over TCP the client speaks first and the server answers with the same: the version (16 bytes),
//! two sizes (4 bytes each), the path MTU (2 bytes), then lines of 108 bytes with each side's keys.
//! Some of the lines come before the messages and one after them; before that one the bandwidth
//! tests of WRITE, READ and atomics exchange five numbers of 8 bytes. "done" ends the exchange.

use super::lab::Lab;
use super::report::Report;
use super::side::Side;
use super::tools::{accept, connect, ends_well, read, Role};
use super::Outcome;
use crate::ends::{Address, End, Op, Shape};
use crate::patience::deadline;
use crate::soft::Soft;
use crate::tools::Running;
use gdrcore_core::verbs::types::{mtu, qp_type, wc_opcode, wc_status, AhAttr};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// The version that we claim, Debian 12's; this file implements its protocol.
const VERSION: &[u8; 16] = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";
/// Q_Key of its UD tests.
const QKEY: u32 = 0x1111_1111;
const KEYS: usize = 108;
/// Lines with keys that the client sends before the first message.
const ROUNDS: usize = 4;
const NUMBER: usize = 8;
const DONE: &[u8; 5] = b"done\0";
/// Offset in the buffer of received data.
const TARGET: u64 = 1 << 20;
/// Receives that we keep posted.
const RECEIVES: u64 = 128;

/// What a test does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Send,
    Write,
    Read,
    Atomic,
}

/// One of perftest's tests.
#[derive(Clone, Copy)]
struct Test {
    name: &'static str,
    verb: Verb,
    lat: bool,
    qp_type: u32,
    size: u32,
    arguments: &'static str,
}

impl Test {
    const fn rc(name: &'static str, verb: Verb, lat: bool, size: u32) -> Test {
        Test { name, verb, lat, qp_type: qp_type::RC, size, arguments: "" }
    }

    /// Bytes of the header before a received message.
    fn ahead(&self) -> u32 {
        if self.qp_type == qp_type::UD {
            40
        } else {
            0
        }
    }

    fn op(&self) -> Op {
        match self.verb {
            Verb::Send => Op::Send(None),
            Verb::Write => Op::Write(0, None),
            Verb::Read => Op::Read(0),
            Verb::Atomic => Op::FetchAdd(0, 1),
        }
    }
}

const ITERATIONS: u32 = 100;

const TESTS: [Test; 12] = [
    Test::rc("ib_send_lat", Verb::Send, true, 64),
    Test::rc("ib_send_bw", Verb::Send, false, 65_536),
    Test::rc("ib_write_lat", Verb::Write, true, 64),
    Test::rc("ib_write_bw", Verb::Write, false, 65_536),
    Test::rc("ib_read_lat", Verb::Read, true, 4096),
    Test::rc("ib_read_bw", Verb::Read, false, 65_536),
    Test::rc("ib_atomic_lat", Verb::Atomic, true, 8),
    Test::rc("ib_atomic_bw", Verb::Atomic, false, 8),
    Test {
        qp_type: qp_type::UC,
        arguments: "-c UC",
        ..Test::rc("ib_send_lat", Verb::Send, true, 3000)
    },
    Test {
        qp_type: qp_type::UC,
        arguments: "-c UC",
        ..Test::rc("ib_write_lat", Verb::Write, true, 3000)
    },
    Test {
        qp_type: qp_type::UD,
        arguments: "-c UD",
        ..Test::rc("ib_send_lat", Verb::Send, true, 1000)
    },
    Test {
        qp_type: qp_type::UD,
        arguments: "-c UD",
        ..Test::rc("ib_send_bw", Verb::Send, false, 1000)
    },
];

/// Our keys as perftest's line: LID, outstanding READs, QPN, PSN, key, address, GID, SRQ.
fn line(end: &End) -> Vec<u8> {
    let gid: String = end.own.ah.dgid.iter().map(|b| format!("{b:02x}:")).collect();
    let (own, vaddr) = (&end.own, end.own.addr + TARGET);
    let mut line = format!(
        "0000:0008:{:06x}:{:06x}:{:08x}:{vaddr:016x}:{gid}00000000:",
        own.qpn, own.psn, own.rkey
    );
    line.push('\0');
    line.into_bytes()
}

/// Parses the tool's keys.
fn keys(bytes: &[u8]) -> Outcome<Address> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    let words: Vec<u64> = text
        .trim_end_matches(['\0', ':'])
        .split(':')
        .map(|w| u64::from_str_radix(w, 16).map_err(|e| format!("perftest sent {text}: {e}")))
        .collect::<Outcome<_>>()?;
    let [_, _, qpn, psn, rkey, addr, gid @ .., _] = &words[..] else {
        return Err(format!("perftest sent {text}"));
    };
    let dgid: Vec<u8> = gid.iter().map(|&b| b as u8).collect();
    let dgid = dgid.try_into().map_err(|_| format!("perftest sent {text}"))?;
    let ah = AhAttr { dgid, ..AhAttr::default() };
    Ok(Address { ah, qpn: *qpn as u32, psn: *psn as u32, addr: *addr, rkey: *rkey as u32 })
}

fn put(stream: &mut TcpStream, bytes: &[u8]) -> Outcome<()> {
    stream.write_all(bytes).map_err(|e| e.to_string())
}

/// Exchanges the first words, which have fixed lengths; ours equal the tool's.
fn introduce(stream: &mut TcpStream, role: Role) -> Outcome<()> {
    fn one<const N: usize>(stream: &mut TcpStream, role: Role, own: &[u8; N]) -> Outcome<[u8; N]> {
        if role == Role::Client {
            put(stream, own)?;
        }
        let theirs = read::<N>(stream)?;
        if role == Role::Server {
            put(stream, own)?;
        }
        Ok(theirs)
    }
    let version = one(stream, role, VERSION)?;
    if version[..2] != VERSION[..2] {
        return Err(format!("perftest {}", String::from_utf8_lossy(&version)));
    }
    one(stream, role, &4096u32.to_be_bytes())?;
    one(stream, role, &64u32.to_be_bytes())?;
    one(stream, role, b"3\0").map(drop)
}

/// Our half of a test while it runs.
struct Half<'a, 'd> {
    test: Test,
    role: Role,
    end: &'a mut End<'d>,
    /// Numbers of messages posted, completed, received.
    sent: u32,
    complete: u32,
    received: u32,
    /// Atomics: the value that the next one must return.
    found: Option<u64>,
}

impl Half<'_, '_> {
    /// Whether our side is the requester of this test.
    fn asks(&self) -> bool {
        self.role == Role::Client
            || self.test.lat && matches!(self.test.verb, Verb::Send | Verb::Write)
    }

    /// How many messages may be outstanding, given the number received.
    fn may_send(&self) -> bool {
        let one = self.complete == self.sent;
        match (self.test.verb, self.test.lat) {
            // The client begins.
            (Verb::Send, true) => {
                one && self.sent < self.received + u32::from(self.role == Role::Client)
            }
            // The server begins.
            (Verb::Write, true) => {
                one && self.sent < self.received + u32::from(self.role == Role::Server)
            }
            (_, true) => one,
            (Verb::Read | Verb::Atomic, false) => self.sent < self.complete + 8,
            _ => self.sent < self.complete + 16,
        }
    }

    fn over(&self) -> bool {
        let all = |n: u32| n >= ITERATIONS;
        let takes = match (self.test.verb, self.test.lat) {
            (Verb::Send | Verb::Write, true) => true,
            (Verb::Send, false) => self.role == Role::Server,
            _ => false,
        };
        (!self.asks() || all(self.complete)) && (!takes || all(self.received))
    }

    fn recv(&self) -> Outcome<()> {
        let len = self.test.size + self.test.ahead();
        self.end.post_recv(1 << 32, TARGET, len).map_err(|e| format!("recv: {e}"))
    }

    /// Sends bytes to the tool and returns its answer. The device runs meanwhile, because the tool
    /// may be waiting for ACKs.
    fn exchange<const N: usize>(&mut self, stream: &mut TcpStream, own: &[u8]) -> Outcome<()> {
        put(stream, own)?;
        stream.set_nonblocking(true).map_err(|e| e.to_string())?;
        let (mut bytes, mut at, limit) = ([0; N], 0, deadline(60));
        while at < N {
            match stream.read(&mut bytes[at..]) {
                Ok(0) => return Err("the tool closed the connection".into()),
                Ok(n) => at += n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    self.end.dev.progress().map(drop).unwrap_or_default()
                }
                Err(e) => return Err(e.to_string()),
            }
            if Instant::now() > limit {
                return Err(format!("the tool is silent after {} messages", self.complete));
            }
        }
        stream.set_nonblocking(false).map_err(|e| e.to_string())
    }

    /// One step: posts the messages that may be posted, handles those that have come.
    fn step(&mut self) -> Outcome<()> {
        let Test { verb, lat, size, .. } = self.test;
        if self.asks() && self.sent < ITERATIONS && self.may_send() {
            self.sent += 1;
            if verb == Verb::Write && lat {
                // The last byte holds the message's number: the other side polls it in its memory.
                self.end.buffer.write(size as usize - 1, &[self.sent as u8]);
            }
            self.end.post(0, self.test.op(), 0, size).map_err(|e| format!("post: {e}"))?;
        }
        self.end.poll();
        for wc in std::mem::take(&mut self.end.done) {
            if wc.status != wc_status::SUCCESS {
                let cause = self.end.dev.qp_cause(self.end.qp);
                return Err(format!("message {}: {wc:?}; {cause:?}", self.complete));
            }
            if wc.opcode != wc_opcode::RECV {
                self.complete += 1;
                if verb == Verb::Atomic && lat {
                    let bytes = self.end.buffer.read(0, 8).try_into().unwrap_or_default();
                    let found = u64::from_le_bytes(bytes);
                    if self.found.is_some_and(|f| f != found) {
                        return Err(format!("FETCH_ADD {} found {found:#x}", self.complete));
                    }
                    self.found = Some(found.wrapping_add(1));
                }
            } else if wc.byte_len == size + self.test.ahead() {
                self.received += 1;
                self.recv()?;
            } else {
                return Err(format!("message {}: {} bytes", self.received, wc.byte_len));
            }
        }
        if verb == Verb::Write && lat && self.received < ITERATIONS {
            let at = TARGET as usize + size as usize - 1;
            if self.end.buffer.read(at, 1)[0] == (self.received + 1) as u8 {
                self.received += 1;
            }
        }
        Ok(())
    }
}

/// Answers the client while the test runs, until it sends "done".
fn serve(half: &mut Half, stream: &mut TcpStream, other: &mut Running) -> Outcome<()> {
    stream.set_nonblocking(true).map_err(|e| e.to_string())?;
    let (mut held, mut bytes) = (Vec::new(), [0; 512]);
    let limit = deadline(60);
    // The first line has been answered. Where our side begins, the tool is ready after the last
    // line.
    let mut rounds = 1;
    loop {
        if rounds >= ROUNDS || half.test.verb != Verb::Write || !half.test.lat {
            half.step()?;
        }
        match stream.read(&mut bytes) {
            Ok(0) if half.over() => return Ok(()),
            Ok(0) => return Err("the tool closed the connection".into()),
            Ok(n) => held.extend_from_slice(&bytes[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(_) if half.over() && !other.still_runs() => return Ok(()),
            Err(e) => return Err(e.to_string()),
        }
        if held.starts_with(DONE) {
            put(stream, DONE)?;
            return if half.over() {
                Ok(())
            } else {
                Err(format!("done after {} messages", half.received))
            };
        }
        if held.len() >= KEYS && held.starts_with(b"0000:") {
            held.drain(..KEYS);
            put(stream, &line(half.end))?;
            rounds += 1;
        } else if held.len() >= NUMBER && !held.starts_with(b"0000") {
            held.drain(..NUMBER);
            put(stream, &[0; NUMBER])?;
        }
        if Instant::now() > limit {
            let Half { sent, complete, received, .. } = half;
            return Err(format!(
                "sent {sent}, complete {complete}, received {received}, held {held:x?}"
            ));
        }
    }
}

/// The client's part.
fn begin(half: &mut Half, stream: &mut TcpStream) -> Outcome<()> {
    let own = line(half.end);
    for _ in 1..ROUNDS {
        half.exchange::<KEYS>(stream, &own)?;
    }
    let limit = deadline(60);
    while !half.over() {
        half.step()?;
        if Instant::now() > limit {
            let Half { sent, complete, received, .. } = half;
            return Err(format!("sent {sent}, complete {complete}, received {received}"));
        }
    }
    if !half.test.lat && half.test.verb != Verb::Send {
        for _ in 0..5 {
            half.exchange::<NUMBER>(stream, &[0; NUMBER])?;
        }
    }
    if half.test.lat && half.test.verb == Verb::Write {
        // ib_write_lat closes the connection when it has its numbers.
        return Ok(());
    }
    half.exchange::<KEYS>(stream, &own)?;
    put(stream, DONE)
}

/// Runs one test.
fn against(lab: &Lab, device: &str, index: u32, test: Test, role: Role) -> Outcome<usize> {
    let Test { name, verb, lat, qp_type, size, arguments } = test;
    let sized = if verb == Verb::Atomic { String::new() } else { format!("-s {size}") };
    let command =
        format!("{name} -d rxe0 -x {index} -F -m 1024 -n {ITERATIONS} {sized} {arguments}");
    let (mut other, mut stream) = match role {
        Role::Client => connect(lab, &command)?,
        Role::Server => accept(lab, &command)?,
    };
    introduce(&mut stream, role)?;
    let soft = Soft::open(device, &Default::default()).map_err(|e| e.to_string())?;
    let shape = Shape {
        qp_type,
        mtu: mtu::MTU_1024,
        buffer: 2 << 20,
        depth: 256,
        cqe: 1024,
        timeout: 17,
        ..Shape::default()
    };
    let mut end = End::new(soft.dev(), shape).map_err(|e| e.to_string())?;
    end.qkey = QKEY;
    // The keys are sent again in each round; the first are used.
    if role == Role::Client {
        put(&mut stream, &line(&end))?;
    }
    let theirs = keys(&read::<KEYS>(&mut stream)?)?;
    end.connect(theirs).map_err(|e| format!("to RTS: {e}"))?;
    let mut half =
        Half { test, role, end: &mut end, sent: 0, complete: 0, received: 0, found: None };
    if verb == Verb::Send {
        for _ in 0..RECEIVES {
            half.recv()?;
        }
    }
    match role {
        Role::Client => begin(&mut half, &mut stream)?,
        Role::Server => {
            put(&mut stream, &line(half.end))?;
            serve(&mut half, &mut stream, &mut other)?;
        }
    }
    ends_well(other, name, || {
        end.poll();
    })?;
    if verb == Verb::Atomic && role == Role::Server {
        // ib_atomic_bw cycles through a page of words.
        let words = end.buffer.read(TARGET as usize, 4096);
        let word = |w: &[u8]| u64::from_le_bytes(w.try_into().unwrap_or_default());
        let sum: u64 = words.chunks(8).map(word).fold(0, u64::wrapping_add);
        if sum != u64::from(ITERATIONS) {
            return Err(format!("{ITERATIONS} FETCH_ADDs made {sum}"));
        }
    }
    end.destroy().map_err(|e| e.to_string())?;
    let both = lat && matches!(verb, Verb::Send | Verb::Write);
    Ok(ITERATIONS as usize * if both { 2 } else { 1 })
}

/// Every test over IPv4, one of each verb over IPv6, with our side as client, then as server.
pub fn all(report: &mut Report, lab: &Lab) {
    for test in TESTS {
        let kind = if test.arguments.is_empty() { "-c RC" } else { test.arguments };
        let feature = format!("perftest {} {kind}, as server or client", test.name);
        let six = test.lat && test.qp_type == qp_type::RC;
        for (device, index, family) in
            [("soft:10.77.1.1", 1, "IPv4"), ("soft:[fd00:78::1]", 2, "IPv6")]
        {
            if family == "IPv4" || six {
                let what = format!("{family}, {} bytes", test.size);
                let run = |role| lab.mangler.observe(|| against(lab, device, index, test, role));
                report.case(&feature, Side::Ours, &what, || run(Role::Client));
                report.case(&feature, Side::Rxe, &what, || run(Role::Server));
            }
        }
    }
}

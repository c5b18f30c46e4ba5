//! Unmodified programs of rdma_cm at the far end: rping, ucmatose and udaddy, which connect by
//! address and port.
//!
//! rping, one round: SEND says where a ping lies, READ fetches it, SEND says "go on", SEND says
//! where it is wanted, WRITE puts it there, SEND says "done"; each SEND holds address (64 bits),
//! rkey (32) and length (32), big-endian. ucmatose: both sides send ten messages, the server first.
//! udaddy: the client sends ten datagrams with its QPN as immediate data, the server answers with
//! ten.

use super::guest::give_way;
use super::lab::Lab;
use super::report::Report;
use super::side::Side;
use super::Outcome;
use crate::cm::{cm, offer};
use crate::ends::{Address, End, Op, Shape};
use crate::patience::deadline;
use crate::rdmacm::has_served;
use crate::soft::Soft;
use gdrcore_core::cm::types::{cm_event, port_space, reject, CmEvent, ConnParam};
use gdrcore_core::verbs::types::{
    access, qp_type, send_flags, wc_status, wr_opcode, AhAttr, Handle, SendWr, UdWr, Wc, WrOp,
};
use std::net::Ipv6Addr;
use std::time::{Duration, Instant};

/// Messages of ucmatose and udaddy, and the bytes of each.
const MESSAGES: u64 = 10;
const SIZE: u32 = 100;
/// Rounds of rping, and bytes of a ping.
const ROUNDS: usize = 5;
const PING: u32 = 3000;
/// Offsets in the buffer: received messages at 0, then the message to send, then the ping.
const OUT: u64 = 1 << 16;
const DATA: u64 = 1 << 17;
const GRH: u32 = 40;

/// Our end of a connection with one of the tools.
struct Talk<'d> {
    end: End<'d>,
    id: Handle,
    events: Vec<CmEvent>,
    limit: Instant,
    idle: u32,
}

impl<'d> Talk<'d> {
    fn new(soft: &'d Soft, qp_type: u32) -> Outcome<Talk<'d>> {
        let all = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
        let shape = Shape { qp_type, buffer: 1 << 18, access: all, ..Shape::default() };
        let mut end = End::new(soft.dev(), shape).map_err(|e| e.to_string())?;
        end.qkey = gdrcore_core::engine::cm_qps::UDP_QKEY;
        // The tool may send first, so receives are posted before the connection is made.
        end.to_init().map_err(|e| format!("to INIT: {e}"))?;
        let limit = deadline(60);
        let talk = Talk { end, id: 0, events: Vec::new(), limit, idle: 0 };
        for i in 0..16 {
            talk.receive(i)?;
        }
        Ok(talk)
    }

    fn receive(&self, i: u64) -> Outcome<()> {
        self.end.post_recv(1000 + i, i * 256, 200).map_err(|e| format!("post_recv: {e}"))
    }

    /// Runs the device once; an error if the time is over.
    fn turn(&mut self, what: &str) -> Outcome<()> {
        let n = self.end.poll();
        while let Some(e) = cm(self.end.dev).event().map_err(|e| e.to_string())? {
            self.events.push(e);
            self.idle = 0;
        }
        self.idle = if n > 0 { 0 } else { self.idle + 1 };
        give_way(self.idle);
        if Instant::now() > self.limit {
            let cause = self.end.dev.qp_cause(self.end.qp);
            return Err(format!(
                "waiting for {what}; events {:?}, cause {cause:?}",
                self.numbers()
            ));
        }
        Ok(())
    }

    fn numbers(&self) -> Vec<(u32, i32)> {
        self.events.iter().map(|e| (e.event, e.status)).collect()
    }

    fn event(&mut self, number: u32) -> Outcome<CmEvent> {
        loop {
            if let Some(k) = self.events.iter().position(|e| e.event == number) {
                return Ok(self.events.remove(k));
            }
            let fatal = [cm_event::REJECTED, cm_event::UNREACHABLE, cm_event::CONNECT_ERROR];
            if self.events.iter().any(|e| fatal.contains(&e.event)) {
                return Err(format!("event {number} awaited, {:?} came", self.numbers()));
            }
            self.turn(&format!("event {number}"))?;
        }
    }

    /// The next completion whose wr_id `wanted` accepts.
    fn completion(&mut self, wanted: impl Fn(u64) -> bool) -> Outcome<Wc> {
        loop {
            if let Some(k) = self.end.done.iter().position(|wc| wanted(wc.wr_id)) {
                let wc = self.end.done.remove(k);
                if wc.status != wc_status::SUCCESS {
                    return Err(format!("{wc:?}; {:?}", self.end.dev.qp_cause(self.end.qp)));
                }
                return Ok(wc);
            }
            self.turn("a completion")?;
        }
    }

    fn post(&mut self, op: Op, offset: u64, len: u32) -> Outcome<()> {
        self.end.post(1, op, offset, len).map_err(|e| format!("post_send: {e}"))?;
        self.completion(|id| id == 1).map(drop)
    }

    /// Connects to a tool, again until it listens.
    fn connect(&mut self, far: &AhAttr, port: u16) -> Outcome<CmEvent> {
        let datagram = self.end.shape.qp_type == qp_type::UD;
        let ps = if datagram { port_space::UDP } else { port_space::TCP };
        loop {
            let manager = cm(self.end.dev);
            self.id = manager.create(ps, 0).map_err(|e| e.to_string())?;
            let param = ConnParam { response_timeout: 18, ..offer(b"") };
            manager
                .connect(self.id, far, port, self.end.qp, &param)
                .map_err(|e| format!("connect: {e}"))?;
            let early = [i32::from(reject::INVALID_SERVICE_ID), 1];
            match self.event(cm_event::ESTABLISHED) {
                Err(_)
                    if self
                        .events
                        .iter()
                        .any(|e| e.event == cm_event::REJECTED && early.contains(&e.status)) =>
                {
                    self.events.clear();
                    manager.destroy(self.id).map_err(|e| e.to_string())?;
                    std::thread::sleep(Duration::from_millis(200));
                    if !datagram {
                        let dev = self.end.dev;
                        let reset = gdrcore_core::verbs::types::QpAttr::default();
                        dev.qp_modify(self.end.qp, &reset, 1).map_err(|e| e.to_string())?;
                        // Completions that the failed attempt flushed do not belong to the next
                        // one.
                        while self.end.poll() > 0 {}
                        self.end.done.clear();
                        self.end.to_init().map_err(|e| e.to_string())?;
                        for i in 0..16 {
                            self.receive(i)?;
                        }
                    }
                }
                other => return other,
            }
        }
    }

    /// Accepts the tool's connection request.
    fn accept(&mut self) -> Outcome<()> {
        let request = self.event(cm_event::CONNECT_REQUEST)?;
        self.id = request.id;
        cm(self.end.dev)
            .accept(self.id, self.end.qp, &offer(b""))
            .map_err(|e| format!("accept: {e}"))?;
        if self.end.shape.qp_type != qp_type::UD {
            self.event(cm_event::ESTABLISHED)?;
        }
        Ok(())
    }

    /// Disconnects, or waits for the tool to do so.
    fn disconnect(&mut self, ours: bool) -> Outcome<()> {
        if ours {
            cm(self.end.dev).disconnect(self.id).map_err(|e| format!("disconnect: {e}"))?;
        }
        self.event(cm_event::DISCONNECTED).map(drop)
    }

    /// Reads from a message of rping where the peer's bytes are, and how many.
    fn receive_location(&mut self) -> Outcome<u32> {
        let wc = self.completion(|id| id >= 1000)?;
        let m = self.end.buffer.read(((wc.wr_id - 1000) * 256) as usize, 16);
        self.receive(wc.wr_id - 1000)?;
        let word = |at: usize| u32::from_be_bytes([m[at], m[at + 1], m[at + 2], m[at + 3]]);
        self.end.peer = Address {
            addr: u64::from(word(0)) << 32 | u64::from(word(4)),
            rkey: word(8),
            ..self.end.peer
        };
        Ok(word(12))
    }

    fn send_location(&mut self, len: u32) -> Outcome<()> {
        let mut m = (self.end.attr.iova + DATA).to_be_bytes().to_vec();
        m.extend(self.end.attr.rkey.to_be_bytes());
        m.extend(len.to_be_bytes());
        self.end.buffer.write(OUT as usize, &m);
        self.post(Op::Send(None), OUT, 16)
    }

    /// The server's part of rping.
    fn rping_server(&mut self) -> Outcome<usize> {
        for round in 0..ROUNDS {
            let len = self.receive_location()?;
            self.post(Op::Read(0), DATA, len)?;
            let text = self.end.buffer.read(DATA as usize, len as usize);
            if !text.starts_with(format!("rdma-ping-{round}: ").as_bytes()) {
                return Err(format!("round {round}: {:?}", String::from_utf8_lossy(&text)));
            }
            self.send_location(0)?;
            let len = self.receive_location()?;
            self.post(Op::Write(0, None), DATA, len)?;
            self.send_location(0)?;
        }
        Ok(ROUNDS)
    }

    /// The client's part of rping.
    fn rping_client(&mut self) -> Outcome<usize> {
        for round in 0..ROUNDS {
            // Printable bytes: the server stops at the first byte that is not.
            let mut bytes: Vec<u8> =
                (0..PING as usize).map(|i| b'A' + ((i * 7 + round) % 57) as u8).collect();
            bytes[PING as usize - 1] = 0;
            self.end.buffer.write(DATA as usize, &bytes);
            self.send_location(PING)?;
            self.receive_location()?;
            self.end.buffer.write(DATA as usize, &vec![0; PING as usize]);
            self.send_location(PING)?;
            self.receive_location()?;
            if self.end.buffer.read(DATA as usize, PING as usize) != bytes {
                return Err(format!("round {round}: other bytes came back"));
            }
        }
        Ok(ROUNDS)
    }

    /// Either side's part of ucmatose.
    fn messages(&mut self) -> Outcome<usize> {
        for i in 0..MESSAGES {
            self.end
                .post(100 + i, Op::Send(None), OUT, SIZE)
                .map_err(|e| format!("post_send: {e}"))?;
        }
        for i in 0..MESSAGES {
            self.completion(|id| id == 100 + i)?;
        }
        for _ in 0..MESSAGES {
            let wc = self.completion(|id| id >= 1000)?;
            if wc.byte_len != SIZE {
                return Err(format!("{} bytes", wc.byte_len));
            }
        }
        Ok(2 * MESSAGES as usize)
    }

    /// Sends ten datagrams.
    fn datagrams_out(&mut self, to: &AhAttr, qpn: u32, qkey: u32) -> Outcome<()> {
        let ah = self.end.dev.ah_create(self.end.pd, to).map_err(|e| e.to_string())?;
        let piece = [self.end.piece(OUT, SIZE)];
        for i in 0..MESSAGES {
            let wr = SendWr {
                wr: WrOp { ud: UdWr { ah, remote_qpn: qpn, remote_qkey: qkey } },
                opcode: wr_opcode::SEND_WITH_IMM,
                send_flags: send_flags::SIGNALED,
                imm_data: self.end.own.qpn.to_be(),
                ..self.end.request(100 + i, Op::Send(Some(self.end.own.qpn.to_be())), &piece)
            };
            self.end.post_wr(&wr).map_err(|e| format!("post_send: {e}"))?;
            self.completion(|id| id == 100 + i)?;
        }
        Ok(())
    }

    /// Receives ten datagrams; returns the immediate data of the last.
    fn datagrams_in(&mut self) -> Outcome<u32> {
        let mut imm = 0;
        for _ in 0..MESSAGES {
            let wc = self.completion(|id| id >= 1000)?;
            if wc.byte_len != SIZE + GRH {
                return Err(format!("{} bytes", wc.byte_len));
            }
            imm = u32::from_be(wc.imm_data);
        }
        Ok(imm)
    }
}

/// A case: the tool, our role, the addresses.
#[derive(Clone, Copy)]
struct Case<'a> {
    tool: &'a str,
    port: u16,
    ours_serves: bool,
    device: &'a str,
    near: &'a str,
    far: &'a str,
}

fn run_case(lab: &Lab, c: Case<'_>) -> Outcome<usize> {
    let soft = Soft::open(c.device, &Default::default()).map_err(|e| e.to_string())?;
    let kind = if c.tool == "udaddy" { qp_type::UD } else { qp_type::RC };
    let mut talk = Talk::new(&soft, kind)?;
    let mut listener = 0;
    if c.ours_serves {
        let ps = if kind == qp_type::UD { port_space::UDP } else { port_space::TCP };
        let m = cm(soft.dev());
        listener = m.create(ps, 0).map_err(|e| e.to_string())?;
        m.bind(listener, c.port).and_then(|_| m.listen(listener, 0)).map_err(|e| e.to_string())?;
    }
    let family = if c.near.contains(':') && c.tool != "rping" { "-f ip6 " } else { "" };
    let command = match (c.tool, c.ours_serves) {
        ("rping", true) => format!("rping -c -a {} -C {ROUNDS} -S {PING} -V -v", c.near),
        ("rping", false) => format!("rping -s -a {} -C {ROUNDS} -S {PING} -V -v", c.far),
        (tool, true) => format!("{tool} {family}-s {}", c.near),
        (tool, false) => format!("{tool} {family}-b {}", c.far),
    };
    let tool = lab.vm.begin(&command, 100);
    let gid: Ipv6Addr = match c.far.parse() {
        Ok(v6) => v6,
        Err(_) => c.far.parse::<std::net::Ipv4Addr>().map_err(|e| e.to_string())?.to_ipv6_mapped(),
    };
    let far = AhAttr { dgid: gid.octets(), ..AhAttr::default() };
    let outcome: Outcome<usize> = (|| {
        if c.ours_serves {
            talk.accept()?;
        }
        let n = match (c.tool, c.ours_serves) {
            ("rping", true) => talk.rping_server()?,
            ("rping", false) => {
                talk.connect(&far, c.port)?;
                talk.rping_client()?
            }
            ("ucmatose", serves) => {
                if !serves {
                    talk.connect(&far, c.port)?;
                }
                talk.messages()?
            }
            (_, true) => {
                let qpn = talk.datagrams_in()?;
                talk.datagrams_out(&far, qpn, talk.end.qkey)?;
                2 * MESSAGES as usize
            }
            (_, false) => {
                let e = talk.connect(&far, c.port)?;
                talk.datagrams_out(&e.peer, e.remote_qpn, e.qkey)?;
                talk.datagrams_in()?;
                2 * MESSAGES as usize
            }
        };
        if kind != qp_type::UD {
            // rping's client disconnects, and ucmatose's server.
            talk.disconnect(c.ours_serves == (c.tool == "ucmatose"))?;
        }
        Ok(n)
    })();
    let mut tool = tool;
    let end = deadline(60);
    while tool.still_runs() && Instant::now() < end {
        talk.turn("the tool's end").or_else(|e| if outcome.is_ok() { Err(e) } else { Ok(()) })?;
    }
    let done = tool.finish(Duration::from_secs(1));
    if listener != 0 {
        cm(soft.dev()).destroy(listener).map_err(|e| e.to_string())?;
    }
    let n = outcome.map_err(|e| format!("{e}; the tool: {}", end_of(&done.output)))?;
    if done.ok() || !c.ours_serves && has_served(c.tool, &done) {
        return Ok(n);
    }
    Err(format!("{command}: {:?}: {}", done.code(), end_of(&done.output)))
}

/// The end of what a tool has printed, where its errors are: rping prints whole pings before.
pub(super) fn end_of(output: &str) -> String {
    let all = output.trim();
    let skipped = all.chars().count().saturating_sub(600);
    all.chars().skip(skipped).collect()
}

/// Runs every tool with either role ours.
pub fn tools(report: &mut Report, lab: &Lab) {
    let v4 = ("soft:10.77.1.1", "10.77.1.1", "10.77.1.2");
    let v6 = ("soft:[fd00:78::1]", "fd00:78::1", "fd00:78::2");
    for (tool, port, families) in
        [("rping", 7174, &[v4, v6][..]), ("ucmatose", 7471, &[v4][..]), ("udaddy", 7174, &[v4][..])]
    {
        let feature = format!("{tool} of rdmacm-utils");
        for &(device, near, far) in families {
            let what = if near.contains(':') { "IPv6" } else { "IPv4" };
            for (side, ours_serves) in [(Side::Ours, false), (Side::Rxe, true)] {
                let case = Case { tool, port, ours_serves, device, near, far };
                report.case(&feature, side, what, || run_case(lab, case));
            }
        }
    }
}

/// Runs a tool whose port is 7174 with either role ours. `places`: our device, the address by which
/// the far end knows it, and the far end's.
pub(super) fn by(report: &mut Report, lab: &Lab, feature: &str, tool: &str, places: [&str; 3]) {
    let [device, near, far] = places;
    for (side, ours_serves) in [(Side::Ours, false), (Side::Rxe, true)] {
        let case = Case { tool, port: 7174, ours_serves, device, near, far };
        report.case(feature, side, "IPv4", || run_case(lab, case));
    }
}

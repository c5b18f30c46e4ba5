//! A member of the swarm: connects to the other members, exchanges rounds with them and checks
//! every byte.

use gdrcore_core::cm::types::{cm_event, port_space, CmEvent, ConnParam};
use gdrcore_core::config::Config;
use gdrcore_core::device::{CmDevice, Device};
use gdrcore_core::verbs::types::{wc_opcode, wc_status, AhAttr, Handle, Wc};
use gdrcore_net::soft::{PathChoice, SoftConfig};
use gdrcore_tests::ends::{pattern, End, Op, Shape};
use gdrcore_tests::patience;
use gdrcore_tests::soft::Soft;
use std::io::Read;
use std::sync::mpsc::{channel, TryRecvError};
use std::time::{Duration, Instant};

/// Port of slot 0; the others follow.
const PORT: u16 = 2000;
/// Largest message, and size of each quarter of the buffer: to send, received, written by the peer,
/// read from the peer.
const PART: usize = 8192;
/// Rounds over a connection.
const ROUNDS: u32 = 12;
/// Connections that a member has requested and that have not ended.
const ACTIVE: usize = 4;
/// Seconds after which an operation that has not completed is a failure.
const LOST: u64 = 20;
/// Seconds within which a peer that caused a failure must be dead.
const MOURNING: u64 = 5;

const WRITE: u64 = 1;
const SEND: u64 = 2;
const READ: u64 = 3;
const RECV: u64 = 4;

/// Reports a failure and ends the process.
macro_rules! wrong {
    ($($what:tt)*) => {{
        eprintln!("WRONG (process {}): {}", std::process::id(), format_args!($($what)*));
        std::process::exit(3)
    }};
}

/// Private data of REQ and REP.
#[derive(Clone, Copy)]
struct Hello {
    pid: u32,
    addr: u64,
    rkey: u32,
}

impl Hello {
    fn of(end: &End) -> [u8; 16] {
        let mut b = [0; 16];
        b[..4].copy_from_slice(&std::process::id().to_le_bytes());
        b[4..12].copy_from_slice(&end.own.addr.to_le_bytes());
        b[12..].copy_from_slice(&end.own.rkey.to_le_bytes());
        b
    }

    fn read(data: &[u8]) -> Hello {
        let Some(b) = data.first_chunk::<16>() else {
            wrong!("private data of {} bytes", data.len())
        };
        let [p0, p1, p2, p3, addr @ .., r0, r1, r2, r3] = *b;
        Hello {
            pid: u32::from_le_bytes([p0, p1, p2, p3]),
            addr: u64::from_le_bytes(addr),
            rkey: u32::from_le_bytes([r0, r1, r2, r3]),
        }
    }
}

/// A connection, at either side.
struct Conn<'d> {
    id: Handle,
    end: End<'d>,
    /// The slot that this member requested the connection of; `None`: the peer requested it.
    active: Option<u32>,
    peer: Option<u32>,
    up: bool,
    over: bool,
    round: u32,
    data: Vec<u8>,
    /// Since when it has waited for the next event or completion.
    since: Instant,
}

struct Member<'d> {
    slot: u32,
    slots: u32,
    dev: &'d dyn Device,
    to: AhAttr,
    conns: Vec<Conn<'d>>,
    next: u32,
    /// Processes that a failure says are dead, and the time by which they must be.
    suspects: Vec<(u32, Instant, String)>,
    finished: u64,
    rounds: u64,
}

fn param(data: &[u8]) -> ConnParam<'_> {
    ConnParam {
        responder_resources: 4,
        initiator_depth: 4,
        retry_count: 7,
        rnr_retry: 7,
        ack_timeout: 17,
        response_timeout: 17,
        private_data: data,
        ..ConnParam::default()
    }
}

fn shape() -> Shape {
    Shape { buffer: 4 * PART, depth: 8, cqe: 32, ..Shape::default() }
}

fn is_alive(pid: u32) -> bool {
    // "PID (name) STATE ...": a zombie is dead, too.
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .and_then(|(_, rest)| rest.trim_start().chars().next())
        .is_some_and(|s| s != 'Z' && s != 'X')
}

impl<'d> Member<'d> {
    fn cm(&self) -> &'d dyn CmDevice {
        self.dev.cm().unwrap_or_else(|e| wrong!("no connection manager: {e}"))
    }

    /// Requests a connection of the next slot.
    fn ask(&mut self) {
        if self.conns.iter().filter(|c| c.active.is_some() && !c.over).count() >= ACTIVE {
            return;
        }
        self.next = (self.next + 1) % self.slots;
        let slot = self.next;
        if slot == self.slot || self.conns.iter().any(|c| c.active == Some(slot)) {
            return;
        }
        let end = End::new(self.dev, shape()).unwrap_or_else(|e| wrong!("no end: {e}"));
        let id = self.cm().create(port_space::TCP, 0).unwrap_or_else(|e| wrong!("no id: {e}"));
        let hello = Hello::of(&end);
        let asked = self.cm().connect(id, &self.to, PORT + slot as u16, end.qp, &param(&hello));
        asked.unwrap_or_else(|e| wrong!("connect: {e}"));
        end.post_recv(RECV, PART as u64, PART as u32).unwrap_or_else(|e| wrong!("post_recv: {e}"));
        self.conns.push(Conn {
            id,
            end,
            active: Some(slot),
            peer: None,
            up: false,
            over: false,
            round: 0,
            data: Vec::new(),
            since: Instant::now(),
        });
    }

    fn on_event(&mut self, e: &CmEvent) {
        match e.event {
            cm_event::CONNECT_REQUEST => {
                let mut end = End::new(self.dev, shape()).unwrap_or_else(|e| wrong!("no end: {e}"));
                let hello = Hello::read(e.private_data());
                (end.peer.addr, end.peer.rkey) = (hello.addr, hello.rkey);
                let own = Hello::of(&end);
                // The peer may have died or given up meanwhile.
                if self.cm().accept(e.id, end.qp, &param(&own)).is_err() {
                    let _ = self.cm().destroy(e.id);
                    return end.destroy().unwrap_or_else(|e| wrong!("destroy: {e}"));
                }
                end.post_recv(RECV, PART as u64, PART as u32)
                    .unwrap_or_else(|e| wrong!("post_recv: {e}"));
                let peer = Some(hello.pid);
                let (data, since) = (Vec::new(), Instant::now());
                self.conns.push(Conn {
                    id: e.id,
                    end,
                    active: None,
                    peer,
                    up: false,
                    over: false,
                    round: 0,
                    data,
                    since,
                });
            }
            cm_event::TIMEWAIT_EXIT => {}
            event => {
                let Some(c) = self.conns.iter_mut().find(|c| c.id == e.id) else { return };
                if event != cm_event::ESTABLISHED {
                    c.over = true;
                    return;
                }
                c.up = true;
                if c.active.is_some() {
                    let hello = Hello::read(e.private_data());
                    c.peer = Some(hello.pid);
                    (c.end.peer.addr, c.end.peer.rkey) = (hello.addr, hello.rkey);
                    c.begin_round(self.slot);
                }
            }
        }
    }

    /// Serves all connections once; true if any made progress.
    fn turn(&mut self) -> bool {
        let mut happened = false;
        let mut i = 0;
        while i < self.conns.len() {
            let c = &mut self.conns[i];
            happened |= c.end.poll() > 0;
            for wc in std::mem::take(&mut c.end.done) {
                if wc.status != wc_status::SUCCESS {
                    if wc.status != wc_status::WR_FLUSH_ERR {
                        let Some(peer) = c.peer else {
                            wrong!("status {} before a peer was connected", wc.status)
                        };
                        let cause = c.end.dev.qp_cause(c.end.qp);
                        let what = format!("status {} with process {peer}: {cause:?}", wc.status);
                        self.suspects.push((peer, patience::deadline(MOURNING), what));
                    }
                    c.over = true;
                    continue;
                }
                c.since = Instant::now();
                if c.active.is_some() {
                    self.rounds += u64::from(c.on_active(&wc, self.slot));
                } else {
                    c.on_passive(&wc);
                }
            }
            if c.active.is_some() && c.since.elapsed() > patience::limit(LOST) && !c.over {
                // A peer that died between its ACK and its echo leaves nothing outstanding, so no
                // retry detects its death.
                if c.peer.is_none_or(is_alive) {
                    let state = c
                        .end
                        .dev
                        .qp_query(c.end.qp)
                        .map(|(attr, _)| (attr.qp_state, attr.sq_psn, attr.rq_psn));
                    wrong!(
                        "nothing for {LOST} s and more: peer {:?}, round {}, up {}: {state:?}",
                        c.peer,
                        c.round,
                        c.up
                    );
                }
                c.over = true;
            }
            if c.over || c.round == ROUNDS {
                self.finished += u64::from(c.round == ROUNDS);
                let c = self.conns.swap_remove(i);
                self.end(c);
                happened = true;
                continue;
            }
            i += 1;
        }
        self.suspects.retain(|(pid, until, what)| {
            if Instant::now() > *until && is_alive(*pid) {
                wrong!("{what}, but it is alive");
            }
            Instant::now() <= *until
        });
        happened
    }

    fn end(&mut self, c: Conn<'d>) {
        // Both fail where the connection has ended.
        let _ = self.cm().disconnect(c.id);
        let _ = self.cm().destroy(c.id);
        c.end.destroy().unwrap_or_else(|e| wrong!("destroy: {e}"));
    }
}

impl Conn<'_> {
    /// WRITE, then SEND of the same bytes: when the message arrives, what was written is there.
    fn begin_round(&mut self, slot: u32) {
        let seed =
            u64::from(std::process::id()) << 32 | u64::from(slot << 16) | u64::from(self.round);
        let len = 64 + (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize % (PART - 64);
        self.data = pattern(seed, len);
        self.end.buffer.write(0, &self.data);
        self.since = Instant::now();
        let posted = self.end.post(WRITE, Op::Write(2 * PART as u64, None), 0, len as u32);
        posted
            .and_then(|()| self.end.post(SEND, Op::Send(None), 0, len as u32))
            .unwrap_or_else(|e| wrong!("post: {e}"));
    }

    /// Handles a completion of the requesting side; true if a round is complete.
    fn on_active(&mut self, wc: &Wc, slot: u32) -> bool {
        let len = self.data.len();
        match wc.wr_id {
            RECV => {
                if wc.byte_len as usize != len || self.end.buffer.read(PART, len) != self.data {
                    wrong!("a wrong echo, of {} bytes for {len}", wc.byte_len);
                }
                self.end
                    .post_recv(RECV, PART as u64, PART as u32)
                    .unwrap_or_else(|e| wrong!("post_recv: {e}"));
                let read =
                    self.end.post(READ, Op::Read(2 * PART as u64), 3 * PART as u64, len as u32);
                read.unwrap_or_else(|e| wrong!("post: {e}"));
            }
            READ => {
                if self.end.buffer.read(3 * PART, len) != self.data {
                    wrong!("READ returns other bytes than were written");
                }
                self.round += 1;
                if self.round < ROUNDS {
                    self.begin_round(slot);
                }
                return true;
            }
            _ => {}
        }
        false
    }

    /// Handles a completion of the other side: sends echoes.
    fn on_passive(&mut self, wc: &Wc) {
        if wc.opcode & wc_opcode::RECV == 0 {
            return;
        }
        let len = wc.byte_len as usize;
        let message = self.end.buffer.read(PART, len);
        if self.end.buffer.read(2 * PART, len) != message {
            wrong!("a SEND arrived before the WRITE posted before it");
        }
        self.end.buffer.write(0, &message);
        self.end
            .post_recv(RECV, PART as u64, PART as u32)
            .unwrap_or_else(|e| wrong!("post_recv: {e}"));
        // The peer may have ended the connection by now.
        let _ = self.end.post(SEND, Op::Send(None), 0, len as u32);
    }
}

pub fn run(slot: u32, slots: u32, device: &str, path: &str) {
    let core = Config {
        max_qp: 512,
        max_cq: 512,
        max_mr: 512,
        max_pd: 512,
        max_cm_ids: 1024,
        ring_bytes: 16 << 20,
        ..Config::default()
    };
    let path = if path == "udp" { PathChoice::Udp } else { PathChoice::Auto };
    let config = SoftConfig { core, path, ..SoftConfig::default() };
    let soft = Soft::open(device, &config).unwrap_or_else(|e| wrong!("{device}: {e}"));
    let dev = soft.dev();
    let d = dev.query().unwrap_or_else(|e| wrong!("query: {e}"));
    let to = d.ah();
    let mut m = Member {
        slot,
        slots,
        dev,
        to,
        conns: Vec::new(),
        next: slot,
        suspects: Vec::new(),
        finished: 0,
        rounds: 0,
    };
    let listener = m.cm().create(port_space::TCP, 0).unwrap_or_else(|e| wrong!("create: {e}"));
    m.cm().bind(listener, PORT + slot as u16).unwrap_or_else(|e| wrong!("bind: {e}"));
    m.cm().listen(listener, 128).unwrap_or_else(|e| wrong!("listen: {e}"));
    let (send, ended) = channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        let _ = send.send(());
    });
    let mut asked = Instant::now();
    while ended.try_recv() == Err(TryRecvError::Empty) {
        let mut happened = false;
        while let Some(e) = m.cm().event().unwrap_or_else(|e| wrong!("event: {e}")) {
            m.on_event(&e);
            happened = true;
        }
        happened |= m.turn();
        if asked.elapsed() > Duration::from_millis(5) {
            asked = Instant::now();
            m.ask();
        }
        if !happened {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    while let Some(c) = m.conns.pop() {
        m.end(c);
    }
    m.cm().destroy(listener).unwrap_or_else(|e| wrong!("destroy: {e}"));
    // Lets the messages that end connections leave; nobody waits for answers.
    for _ in 0..20 {
        dev.progress().unwrap_or_else(|e| wrong!("progress: {e}"));
        std::thread::sleep(Duration::from_millis(1));
    }
    let leaks = dev.leaks().unwrap_or_else(|e| wrong!("leaks: {e}"));
    if leaks != Default::default() {
        wrong!("left behind: {leaks:?}");
    }
    println!("done {} {}", m.finished, m.rounds);
}

//! A link: two connected QPs, the requests that they post, and the conditions that their results
//! must meet.
//!
//! Every request has a number; source bytes are the pattern of that number. An RC link is checked
//! in full: completions in the order of posting, receives in the order of sending, each once, every
//! byte in its place and no other byte written, atomics executed once in order. UC and UD may lose
//! messages, never mix them.

mod request;

use std::collections::VecDeque;

use gdrcore_core::verbs::types::*;
use gdrcore_testkit::rng::Rng;

use crate::host::{split, Area, Host};
use crate::scenario::{feature, Scenario};

/// Bytes behind every slot that must stay unwritten.
pub const GAP: usize = 128;
/// Bytes that UD places before a datagram.
pub const GRH: usize = 40;

/// The attributes of a link.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Its two hosts; the same one for loopback.
    pub hosts: [usize; 2],
    /// RC, UC or UD.
    pub kind: u32,
    /// MTU code.
    pub mtu: u32,
    /// Largest message.
    pub most: usize,
    /// Send requests outstanding.
    pub depth: usize,
    /// Receive requests posted.
    pub recvs: usize,
    /// ACK timeout code.
    pub timeout: u8,
    /// Retries.
    pub retry: u8,
    /// Retries after RNR.
    pub rnr: u8,
    /// READs and atomics outstanding.
    pub rd_atomic: u8,
    /// Scatter/gather entries of a request.
    pub sge: u32,
    /// Requests that each end is to post.
    pub todo: u32,
    /// Whether windows are bound, used and invalidated.
    pub windows: bool,
    /// Which ends receive from their host's SRQ.
    pub srq: [bool; 2],
    /// XRC, of which the first end is the initiator and the second the target; `kind` is RC.
    pub xrc: bool,
    /// DC, of which the first end is an initiator, and the second has this many targets, which
    /// share its memory; 0: another transport. `kind` is RC: an initiator ends its requests to one
    /// target before it begins those to the next, so all of them are as one connection.
    pub targets: usize,
    /// One request in how many is signalled.
    pub signal_every: u64,
}

impl Plan {
    /// Draws the attributes of a link.
    pub fn draw(scenario: &Scenario, rng: &mut Rng, hosts: &[Host]) -> Plan {
        let mut kind = rng.pick(&[
            qp_type::RC,
            qp_type::RC,
            qp_type::RC,
            qp_type::RC,
            qp_type::UC,
            qp_type::UD,
        ]);
        let mut ends = [0, 0].map(|_| rng.below(hosts.len() as u64) as usize);
        if scenario.has(feature::DC) && rng.below(3) > 0 {
            // Initiators that want the same contexts.
            (kind, ends[1]) = (qp_type::RC, 0);
        }
        let dense = scenario.has(feature::DENSE);
        if dense && ends[0] == ends[1] {
            // Traffic within one engine sends no packets.
            ends[1] = (ends[0] + 1) % hosts.len();
        }
        let most = rng.pick(&[300, 5_000, 5_000, 20_000, 20_000, 150_000]);
        let mut most = if dense { rng.pick(&[2_000, 8_000, 19_000]) } else { most };
        let mut srq = [false; 2];
        let of_xrc = |i: usize| hosts[ends[i]].shared.as_ref().map(|s| s.xrc.is_some());
        for (i, srq) in srq.iter_mut().enumerate() {
            *srq = of_xrc(i) == Some(false) && rng.coin();
        }
        let xrc = kind == qp_type::RC && of_xrc(1) == Some(true) && rng.coin();
        let has_contexts = hosts[ends[1]].contexts > 0;
        let dc = kind == qp_type::RC && has_contexts && !xrc && rng.below(4) > 0;
        let targets = if dc { rng.pick(&[1, 1, 2, 3]) } else { 0 };
        if xrc || dc {
            srq = [false, true];
        }
        if kind == qp_type::UD {
            most = most.min(4096);
        }
        if srq[0] || srq[1] {
            most = most.min(20_000 - GRH);
        }
        let todo = match most {
            _ if dense => rng.range(500, 6000) as u32,
            100_001.. => 20,
            _ => rng.range(20, 150) as u32,
        };
        Plan {
            hosts: ends,
            kind,
            mtu: if dense { 1 } else { rng.range(1, 5) as u32 },
            most,
            depth: if dense { rng.pick(&[8, 16, 32]) } else { rng.pick(&[1, 2, 4, 16]) },
            recvs: if dense { rng.pick(&[16, 32]) } else { rng.pick(&[1, 4, 16]) },
            timeout: rng.range(8, 13) as u8,
            retry: rng.pick(&[1, 3, 7, 7, 7]),
            rnr: rng.pick(&[7, 7, 7, 7, 3, 0]),
            rd_atomic: rng.pick(&[1, 2, 4, 16]),
            sge: rng.pick(&[1, 3, 8]),
            todo: todo.min(scenario.ops),
            srq,
            xrc,
            targets,
            windows: scenario.has(feature::WINDOW) && !xrc && !dc,
            signal_every: rng.pick(&[1, 2, 8]),
        }
    }
}

impl Plan {
    /// `qp_type` of an end.
    pub fn qp_type(&self, i: usize) -> u32 {
        match (self.xrc, i) {
            _ if self.targets > 0 => [qp_type::DCI, qp_type::DCT][i],
            (false, _) => self.kind,
            (true, 0) => qp_type::XRC_SEND,
            (true, _) => qp_type::XRC_RECV,
        }
    }

    /// Whether only the first end sends.
    pub fn is_one_way(&self) -> bool {
        self.xrc || self.targets > 0
    }

    /// Queue pairs of an end.
    pub fn qps(&self, i: usize) -> usize {
        if i == 1 {
            self.targets.max(1)
        } else {
            1
        }
    }

    /// The CQs of an end, by index: of its send queue, and of its receives.
    pub fn draw_cqs(&self, i: usize, h: &Host, rng: &mut Rng) -> [usize; 2] {
        let n = h.cqs.len() as u64;
        let [scq, rcq] = [rng.below(n) as usize, rng.below(n) as usize];
        match h.shared.as_ref().and_then(|s| s.xrc) {
            Some((_, cq, _)) if self.xrc && i == 1 => [cq, cq],
            _ if self.xrc => [scq, scq],
            _ => [scq, rcq],
        }
    }
}

/// A send request that has not completed.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// Its number.
    pub id: u64,
    /// Its opcode.
    pub opcode: u32,
    /// Bytes.
    pub len: usize,
    /// Its slot, at both ends.
    pub slot: usize,
    /// Whether it is signalled.
    pub signaled: bool,
    /// CMP_SWAP: compare; FETCH_ADD: add; ATOMIC WRITE: the word.
    pub a: u64,
    /// CMP_SWAP: swap.
    pub b: u64,
    /// Its number among the messages that consume a receive of the peer.
    pub message: u64,
    /// Whether it uses a window of the peer.
    pub via: bool,
    /// When it was posted, by the host's clock.
    pub posted_at: u64,
    /// DC: the target that it is for, of those of the peer.
    pub target: usize,
}

/// State of a send queue between RTS and SQD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// In RTS.
    No,
    /// In SQD, not drained yet.
    Begun,
    /// Drained; goes back to RTS at this time.
    Done(u64),
}

/// A message that consumes a receive.
#[derive(Clone, Copy, Debug)]
pub struct Message {
    /// Number of its request.
    pub id: u64,
    /// SEND (else WRITE with immediate data).
    pub send: bool,
    /// Bytes.
    pub len: usize,
    /// With immediate data.
    pub imm: bool,
    /// The key that it invalidates at the receiver.
    pub inv: Option<u32>,
    /// DC: the target that receives it, of those of its end.
    pub target: usize,
}

/// One end of a link.
pub struct End {
    /// Its host.
    pub host: usize,
    /// Its QP.
    pub qp: Handle,
    /// Its QPN.
    pub qpn: u32,
    /// Further DC targets: QP and QPN.
    pub more: Vec<(Handle, u32)>,
    /// Indexes of its CQs.
    pub cqs: [usize; 2],
    /// Source and target of its own requests.
    pub src: Area,
    /// Memory that its peer may access.
    pub win: Area,
    /// Memory of its receives, unless it uses the SRQ.
    pub rcv: Area,
    /// UD, DC: address handle of the peer.
    pub ah: Handle,
    /// Its type 2 window over all of `win`: handle, key, and whether it is bound or about to be.
    pub mw: (Handle, u32, bool),
    /// The key by which the peer may use the window.
    pub mw_key: Option<u32>,
    /// Whether its engine has died.
    pub dead: bool,
    /// Last time, by the host's clock, at which nothing that it had sent was unanswered.
    pub mute_at: u64,
    /// When its send queue last began to send again, by the host's clock.
    pub ready_at: u64,
    /// Whether its send queue drains.
    pub drain: Drain,
    /// Requests that have not completed.
    pub ops: VecDeque<Op>,
    /// Receives: request id, slot.
    pub posted: VecDeque<(u64, usize)>,
    /// Slots that are not posted.
    pub free: Vec<usize>,
    /// Messages that the peer has sent and this end has not received, in order.
    pub expected: VecDeque<Message>,
    /// Messages received since the QPs were made.
    pub got: u64,
    /// Messages sent since then.
    pub sent: u64,
    /// Value of the peer's word after this end's atomics.
    pub word: u64,
    /// UC, UD: numbers and lengths of the latest messages, in order.
    pub lens: VecDeque<(u64, usize)>,
    /// Whether its queues flush.
    pub failed: bool,
    /// Whether a request has failed.
    pub broken: bool,
    /// Whether it reported the last receive of the SRQ.
    pub last_wqe: bool,
    /// Requests still to post.
    pub todo: u32,
    /// Number of requests that succeeded, and that failed.
    pub ended: [u64; 2],
}

/// A link.
pub struct Link {
    /// How it was made.
    pub plan: Plan,
    /// Its ends.
    pub ends: [End; 2],
    /// Whether both QPs are in ERR, to be made anew.
    pub ending: bool,
    /// Whether they are destroyed and wait for free QPNs.
    pub down: bool,
    /// Whether memory of it was deregistered: requests may fail for that.
    pub doomed: bool,
    /// Deregistered memory: end, area, and checksum at that time.
    pub gone: Option<(usize, usize, u64)>,
    /// DC: QPN of the initiator.
    pub initiator: u32,
    /// How many times the QPs were made anew.
    pub remade: u64,
    /// Slots of each area.
    pub slots: usize,
    /// Bytes of a slot, gap included.
    pub stride: usize,
}

impl Link {
    /// A connected link.
    pub fn new(plan: Plan, hosts: &[Host], rng: &mut Rng, now: u64) -> Link {
        let stride = (plan.most + GRH + GAP).next_multiple_of(8);
        let mut end = |i: usize| {
            let h = &hosts[plan.hosts[i]];
            let slow = |rng: &mut Rng| h.slow.delay_ns() > 0 && rng.below(3) == 0;
            let slots = plan.recvs;
            End {
                host: plan.hosts[i],
                qp: 0,
                qpn: 0,
                more: Vec::new(),
                cqs: plan.draw_cqs(i, h, rng),
                src: h.area(plan.depth * stride, slow(rng)),
                win: h.area(plan.depth * stride + 8, slow(rng)),
                rcv: h.area(slots * stride, slow(rng)),
                ah: 0,
                mw: (0, 0, false),
                mw_key: None,
                dead: false,
                ready_at: 0,
                mute_at: 0,
                drain: Drain::No,
                ops: VecDeque::new(),
                posted: VecDeque::new(),
                free: (0..slots).collect(),
                expected: VecDeque::new(),
                got: 0,
                sent: 0,
                word: 0,
                lens: VecDeque::new(),
                failed: false,
                broken: false,
                last_wqe: false,
                todo: if plan.is_one_way() && i == 1 { 0 } else { plan.todo },
                ended: [0; 2],
            }
        };
        let ends = [end(0), end(1)];
        let (down, doomed, gone) = (true, false, None);
        let mut link = Link {
            plan,
            ends,
            ending: false,
            down,
            doomed,
            gone,
            initiator: 0,
            remade: 0,
            slots: plan.depth,
            stride,
        };
        link.connect(hosts, rng, now);
        link
    }

    /// Offset of the word for the peer's atomics.
    pub fn word_at(&self) -> usize {
        self.slots * self.stride
    }

    /// Offset of a slot's first byte.
    pub fn at(&self, slot: usize) -> usize {
        slot * self.stride
    }

    /// Whether nothing is left to post or to wait for.
    pub fn is_done(&self) -> bool {
        let rc = self.plan.kind == qp_type::RC;
        !self.ending
            && !self.down
            && !self.is_orphan()
            && self
                .ends
                .iter()
                .all(|e| e.todo == 0 && e.ops.is_empty() && (!rc || e.expected.is_empty()))
    }

    /// Whether an engine of it has died.
    pub fn is_orphan(&self) -> bool {
        self.ends.iter().any(|e| e.dead)
    }

    /// Posts receives and requests at random. True: it posted something.
    pub fn step(
        &mut self,
        hosts: &[Host],
        rng: &mut Rng,
        next_id: &mut u64,
        now: u64,
    ) -> Result<bool, String> {
        let mut moved = false;
        for i in 0..2 {
            if self.ending || self.down || self.is_orphan() {
                break;
            }
            if !self.plan.srq[i] && !self.plan.is_one_way() && rng.below(3) == 0 {
                for _ in 0..rng.range(1, 4) {
                    let Some(slot) = self.ends[i].free.pop() else { break };
                    moved = true;
                    *next_id += 1;
                    let e = &mut self.ends[i];
                    let sges = split(
                        rng,
                        &e.rcv,
                        slot * self.stride,
                        self.stride - GAP,
                        self.plan.sge as usize,
                    );
                    e.posted.push_back((*next_id, slot));
                    hosts[e.host].post_recv(Some(e.qp), *next_id, &sges)?;
                }
            }
            for _ in 0..rng.below(4) {
                let e = &self.ends[i];
                if e.todo == 0 || e.ops.len() == self.slots {
                    break;
                }
                moved = true;
                self.post(hosts, rng, i, next_id, now)?;
            }
        }
        Ok(moved)
    }
}

impl End {
    /// Its memory areas: source, window, receives.
    pub fn areas(&self) -> [&Area; 3] {
        [&self.src, &self.win, &self.rcv]
    }

    /// Its queue pairs: handle and QPN.
    pub fn qps(&self) -> impl Iterator<Item = (Handle, u32)> + '_ {
        let first = (self.qpn != 0).then_some((self.qp, self.qpn));
        first.into_iter().chain(self.more.iter().copied())
    }

    /// UC, UD: the length of a message.
    pub fn len_of(&self, id: u64) -> Option<usize> {
        let i = self.lens.binary_search_by_key(&id, |m| m.0).ok()?;
        Some(self.lens[i].1)
    }

    /// UC, UD: the message whose number ends with this immediate data.
    pub fn by_imm(&self, imm: u32) -> Option<(u64, usize)> {
        let newest = self.lens.back()?.0;
        let id = newest.wrapping_sub(u64::from((newest as u32).wrapping_sub(imm)));
        Some((id, self.len_of(id)?))
    }
}

/// Access key of a DC target, by its place among those of its end.
pub fn dc_key(target: usize) -> u64 {
    0xffee_ddcc + target as u64
}

/// The index in a handle.
pub fn index(h: Handle) -> usize {
    (h & 0xff_ffff) as usize
}

impl Op {
    /// CMP_SWAP, FETCH_ADD or ATOMIC WRITE: an operation on the peer's word.
    pub fn is_atomic(&self) -> bool {
        matches!(self.opcode, wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD)
            || self.is_atomic_write()
    }

    /// ATOMIC WRITE.
    pub fn is_atomic_write(&self) -> bool {
        self.opcode == wr_opcode::ATOMIC_WRITE
    }

    /// The word after this operation.
    pub fn apply(&self, word: u64) -> u64 {
        match self.opcode {
            wr_opcode::ATOMIC_FETCH_AND_ADD => word.wrapping_add(self.a),
            wr_opcode::ATOMIC_CMP_AND_SWP if word == self.a => self.b,
            wr_opcode::ATOMIC_WRITE => self.a,
            _ => word,
        }
    }
}

//! Single messages leave what the general path leaves: the same requests in two worlds, of which
//! one is offered the single path, and everything compared after each step. Within an engine
//! ([`local`]); over a link and as packets ([`single`], with the frames in between, [`framed`]).

mod ack_order;
mod closed_window;
mod dc_single;
mod deferred_timer;
mod framed;
mod local;
mod single;

use std::fmt::Debug;

use gdrcore_core::roce::peer::Peer;
use gdrcore_core::verbs::types::*;

use crate::flush::range;
use crate::util::*;

/// How often the single path was taken, and how often it was offered in vain.
#[derive(Clone, Copy, Debug, Default)]
struct Ways {
    sent: u64,
    not_sent: u64,
    /// READs among those sent.
    reads: u64,
    /// Requests that had no slot.
    slotless: u64,
    requests: u64,
    acks: u64,
    not_taken: u64,
    /// Completions that were handed to the thread that polled for them.
    handed: u64,
}

/// Two connected ends.
struct World {
    net: Net,
    ends: [End; 2],
    /// It is offered the single path.
    single: bool,
    way: Way,
    ways: Ways,
    /// An end to which something is delivered polls then, as a program that runs the engine does.
    polls: bool,
    /// Completions that these polls have brought.
    polled: Vec<Wc>,
}

/// A request, the same in both worlds, though their addresses differ.
#[derive(Clone, Copy, Debug)]
struct Plan {
    from: usize,
    opcode: u32,
    flags: u32,
    len: usize,
    pieces: usize,
    src: usize,
    dst: usize,
    /// What is wrong with it: 0 nothing, 1 the remote key, 2 the remote range, 3 the local key.
    wrong: u64,
}

impl Plan {
    /// As it is posted: an atomic or ATOMIC WRITE has 8 bytes in one piece, and a short request is
    /// inline half of the time, where its kind `may_be_inline`.
    fn posted(self, rng: &mut Rng, may_be_inline: bool) -> Plan {
        let inline = may_be_inline && self.len <= 64 && rng.below(2) == 0;
        let atomic =
            matches!(self.opcode, wr_opcode::ATOMIC_FETCH_AND_ADD | wr_opcode::ATOMIC_WRITE);
        let (len, pieces) = if atomic { (8, 1) } else { (self.len, self.pieces) };
        let flags = self.flags | if inline { send_flags::INLINE } else { 0 };
        Plan { flags, len, pieces, ..self }
    }
}

/// A WRITE of one small packet.
const SMALL_WRITE: Plan = Plan {
    from: 0,
    opcode: wr_opcode::RDMA_WRITE,
    flags: send_flags::SIGNALED,
    len: 8,
    pieces: 1,
    src: 0,
    dst: 0,
    wrong: 0,
};

/// The two worlds: the first is offered the single path.
fn worlds(o: Opts) -> [World; 2] {
    [true, false].map(|single| {
        let (net, a, b) = Net::pair(o);
        for (i, e) in [&a, &b].iter().enumerate() {
            e.buf.write(0, &pattern(i as u64, e.buf.len()));
        }
        let (ways, polled) = (Ways::default(), Vec::new());
        World { net, ends: [a, b], single, way: o.way, ways, polls: false, polled }
    })
}

impl World {
    fn post(&mut self, id: u64, p: &Plan) -> Result<(), gdrcore_core::Error> {
        self.net.try_post(&self.ends[p.from], self.request(id, p))
    }

    fn request(&self, id: u64, p: &Plan) -> Wr {
        let (e, peer) = (&self.ends[p.from], &self.ends[1 - p.from]);
        let mut wr = Wr::new(p.opcode).id(id).flags(p.flags).imm(0x0102_0304);
        let each = p.len / p.pieces;
        for i in 0..p.pieces {
            let length = if i + 1 == p.pieces { p.len - each * i } else { each };
            let mut sge = Sge {
                addr: e.mr.iova + (p.src + each * i) as u64,
                length: length as u32,
                lkey: e.mr.lkey,
            };
            if p.wrong == 3 {
                sge.lkey ^= 0x55;
            }
            wr = wr.sge(sge);
        }
        let rkey = peer.mr.rkey ^ if p.wrong == 1 { 0x55 } else { 0 };
        let at = peer.mr.iova + if p.wrong == 2 { peer.buf.len() as u64 } else { p.dst as u64 };
        match p.opcode {
            wr_opcode::ATOMIC_FETCH_AND_ADD => wr.atomic(peer, p.dst, 3, 0),
            wr_opcode::FLUSH => {
                wr.raw.wr = WrOp { flush: range(at, rkey, p.len as u64) };
                wr
            }
            _ => wr.key(at, rkey),
        }
    }

    /// All that the two paths could leave behind differently, as text. Within an engine no time is
    /// taken, so times differ.
    fn state(&self) -> String {
        let mut out = format!("polled {:?}\n", self.polled);
        for (i, e) in self.ends.iter().enumerate() {
            out += &end_state(&self.net, i, e, self.way != Way::Loopback);
        }
        out
    }

    /// Changes what an end knows of its peer's host; `None`: it has no peer.
    fn with_peer<R>(&self, end: usize, change: impl FnOnce(&mut Peer) -> R) -> Option<R> {
        let e = &self.ends[end];
        let mut g = self.net.lock(e);
        let t = &mut g.transport;
        t.peers.get_mut(t.qps[index(e.qp)].conn.peer as usize).map(change)
    }

    /// Whether frames are packets, not records of a link.
    fn is_wire(&self) -> bool {
        self.way == Way::Wire
    }

    /// Whether a connection has failed.
    fn has_failed(&self) -> bool {
        self.ends.iter().any(|e| self.net.state(e) == qp_state::ERR)
    }
}

fn same(worlds: &[World; 2], what: &dyn Debug) {
    let [single, general] = worlds;
    let (a, b) = (single.state(), general.state());
    assert!(a == b, "{what:?}\n--- offered the single path:\n{a}--- not:\n{b}");
    for i in 0..2 {
        let (x, y) = (&single.ends[i].buf, &general.ends[i].buf);
        assert!(x.read(0, x.len()) == y.read(0, y.len()), "{what:?}: memory of end {i}");
    }
}

/// Polls of all CQs but one, and their events, bring the same in both.
fn same_completions(worlds: &[World; 2], but: u64, what: &dyn Debug) {
    for end in 0..2 {
        if but != end {
            let take = |w: &World| {
                let e = &w.ends[end as usize];
                (w.net.poll(e.host, e.scq), w.net.poll(e.host, e.rcq))
            };
            assert_eq!(take(&worlds[0]), take(&worlds[1]), "{what:?}");
        }
    }
    for host in 0..worlds[0].net.hosts.len() {
        let events = |w: &World| w.net.hosts[host].lock().take_cq_event();
        assert_eq!(events(&worlds[0]).is_some(), events(&worlds[1]).is_some(), "{what:?}");
    }
}

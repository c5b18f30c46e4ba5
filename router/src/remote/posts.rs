//! Work requests of a session: copied, judged, posted to the device.
//!
//! What the copy says is what counts: the tenant may change the slot meanwhile. The number of
//! pieces and of inline bytes must fit the slot, handles must be the session's, an opcode must be
//! one that the router knows. Keys and ranges are the device's to check, against the QP's
//! protection domain, which is the session's alone. A request that is refused fails its queue pair,
//! with a completion that says so, as a NIC does.

use super::session::{count, Counts, Qp, Session, Watched, IDLE};
use gdrcore_core::device::Device;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;
use gdrcore_core::sleep::ANY;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{
    qp_type, send_flags, wc_opcode, wc_status, wr_opcode, AtomicWr, BindMwWr, FlushWr, Handle,
    MwBindInfo, RdmaWr, RecvWr, SendWr, Sge, UdWr, Wc, WrExt, WrOp,
};
use gdrcore_core::verbs::wqe::{RecvWqe, SendWqe};
use gdrcore_core::wire::Feth;
use gdrcore_net::remote::queue::{Doorbell, Entry, QueueMap, STRIDE_MAX};

/// Sends of one queue in a round, before a call of their session all. Receives have no bound but
/// their queue: a send may need them.
pub(super) const SENDS_PER_ROUND: u32 = 32;
/// Most pieces that a slot can have.
const PIECES_MAX: usize = STRIDE_MAX as usize / size_of::<Sge>();

/// What a request and its pieces are copied to.
pub(super) struct Scratch {
    /// Of the request that was judged last.
    wr_id: u64,
    /// Of the send request that was judged last, its flags and the number of its pieces.
    flags: u32,
    num_sge: usize,
    pieces: [Sge; PIECES_MAX],
    /// Requests that were judged.
    pub(super) judged: u64,
}

impl Scratch {
    pub(super) fn new() -> Box<Scratch> {
        let pieces = [Sge::default(); PIECES_MAX];
        Box::new(Scratch { wr_id: 0, flags: 0, num_sge: 0, pieces, judged: 0 })
    }
}

/// Copies the pieces of a request, if its slot has so many.
fn read_pieces<E: Entry>(
    map: &QueueMap,
    (k, at): (usize, u32),
    n: usize,
    to: &mut [Sge; PIECES_MAX],
) -> Result<()> {
    let has = to.get_mut(..n).is_some_and(|to| map.pieces::<E>(k, at, to));
    has.then_some(())
        .ok_or_else(|| refuse!(Invalid, "a work request of {n} pieces, and its slot has fewer"))
}

/// Bytes of a send request that has them in its slot.
fn inline_bytes(wqe: &SendWqe) -> u64 {
    // ATOMIC WRITE has its length elsewhere.
    if u32::from(wqe.opcode) == wr_opcode::ATOMIC_WRITE {
        wqe.a
    } else {
        wqe.length
    }
}

/// The transport part of a request, in the device's handles.
fn operands(session: &Session, wqe: &SendWqe, is_ud: bool) -> Result<(WrOp, WrExt)> {
    let SendWqe { remote_addr, rkey, a, b, .. } = *wqe;
    let mut ext = WrExt::default();
    let wr = match u32::from(wqe.opcode) {
        wr_opcode::SEND | wr_opcode::SEND_WITH_IMM if is_ud => {
            let (remote_qpn, remote_qkey) = ((b >> 32) as u32, b as u32);
            let ah = session.ahs.get(a)?;
            if session.guard.has_rules() {
                session.guard.check(session.tenant, &ah.to, remote_qpn)?;
            }
            WrOp { ud: UdWr { ah: ah.device, remote_qpn, remote_qkey } }
        }
        wr_opcode::RDMA_WRITE
        | wr_opcode::RDMA_WRITE_WITH_IMM
        | wr_opcode::RDMA_READ
        | wr_opcode::ATOMIC_WRITE
        | wr_opcode::SEND
        | wr_opcode::SEND_WITH_IMM
        | wr_opcode::SEND_WITH_INV
        | wr_opcode::LOCAL_INV => WrOp { rdma: RdmaWr { remote_addr, rkey } },
        wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD => {
            WrOp { atomic: AtomicWr { remote_addr, compare_add: a, swap: b, rkey } }
        }
        wr_opcode::FLUSH => {
            let feth = Feth::of_word(wqe.imm);
            let (placement, level) = (feth.placement.into(), feth.selectivity.into());
            WrOp { flush: FlushWr { remote_addr, rkey, placement, length: a, level } }
        }
        wr_opcode::BIND_MW => {
            let bind_info = MwBindInfo {
                mr: session.mrs.get(b)?.device,
                addr: remote_addr,
                length: wqe.length,
                mw_access_flags: wqe.access,
            };
            ext.bind_mw = BindMwWr { mw: *session.mws.get(a)?, rkey, bind_info };
            WrOp { rdma: RdmaWr { remote_addr: 0, rkey: 0 } }
        }
        opcode => return Err(refuse!(Invalid, "a work request with the opcode {opcode}")),
    };
    Ok((wr, ext))
}

/// Copies the send request at `at`, judges it, and posts it. `more`: another one follows at once.
fn send(
    session: &Session,
    device: &dyn Device,
    q: &Qp,
    at: u32,
    scratch: &mut Scratch,
    more: bool,
) -> Result<()> {
    let wqe: SendWqe = q.map.entry(0, at);
    let Scratch { wr_id, flags: signals, num_sge, pieces, .. } = scratch;
    *wr_id = wqe.wr_id;
    let opcode = u32::from(wqe.opcode);
    let mut flags = u32::from(wqe.flags) & !send_flags::INLINE;
    if wqe.inline != 0 {
        let length = inline_bytes(&wqe);
        // What they are is the tenant's: only their number is judged.
        let addr = q.map.inline::<SendWqe>(0, at, length).ok_or_else(|| {
            refuse!(Invalid, "a work request of {length} inline bytes, and its slot has fewer")
        })?;
        flags |= send_flags::INLINE;
        pieces[0] = Sge { addr, length: length as u32, lkey: 0 };
        *num_sge = usize::from(length > 0);
    } else {
        *num_sge = wqe.num_sge.into();
        read_pieces::<SendWqe>(&q.map, (0, at), *num_sge, pieces)?;
    }
    *signals = flags;
    let (wr, ext) = operands(session, &wqe, q.init.qp_type == qp_type::UD)?;
    let wr = SendWr {
        wr_id: wqe.wr_id,
        next: core::ptr::null(),
        sg_list: pieces.as_ptr(),
        num_sge: *num_sge as i32,
        opcode,
        send_flags: flags | if more { send_flags::MORE } else { 0 },
        imm_data: wqe.imm,
        wr,
        remote_srqn: wqe.srqn,
        ext,
    };
    // SAFETY: a list of one, whose pieces live on; inline bytes lie in the slot, which is mapped.
    unsafe { device.post_send(q.device, &wr, &mut core::ptr::null()) }
}

/// The bytes of the send request that was posted last, and whether it has a completion.
fn weight(scratch: &Scratch, all_signalled: bool) -> (u64, bool) {
    let pieces = scratch.pieces.get(..scratch.num_sge).unwrap_or_default();
    let bytes = pieces.iter().map(|piece| u64::from(piece.length)).sum();
    (bytes, all_signalled || scratch.flags & send_flags::SIGNALED != 0)
}

/// As [`send`], for a receive request in queue `k` of a map; `srq`: of an SRQ.
fn receive(
    device: &dyn Device,
    (to, srq): (Handle, bool),
    map: &QueueMap,
    (k, at): (usize, u32),
    scratch: &mut Scratch,
) -> Result<()> {
    let wqe: RecvWqe = map.entry(k, at);
    let Scratch { wr_id, pieces, .. } = scratch;
    *wr_id = wqe.wr_id;
    let n = wqe.num_sge as usize;
    read_pieces::<RecvWqe>(map, (k, at), n, pieces)?;
    let wr = RecvWr {
        wr_id: wqe.wr_id,
        next: core::ptr::null(),
        sg_list: pieces.as_ptr(),
        num_sge: n as i32,
    };
    let mut bad = core::ptr::null();
    // SAFETY: a list of one, whose pieces live on.
    unsafe {
        match srq {
            true => device.post_srq_recv(to, &wr, &mut bad),
            false => device.post_recv(to, &wr, &mut bad),
        }
    }
}

/// What ended a turn early.
enum TurnEnd {
    /// The device has no room for the next request.
    Again,
    /// A request was refused: its `wr_id`.
    Refused(u64),
}

/// Posts `turn` requests that wait in queue `k` of a map by `post`, which gets the place of each
/// and whether another one follows at once. Moves `head` behind them. Returns what ended the turn
/// early.
fn take_turn(
    map: &QueueMap,
    (k, head): (usize, &mut u32),
    turn: u32,
    scratch: &mut Scratch,
    counts: &Counts,
    post: impl Fn(u32, &mut Scratch, bool) -> Result<()>,
) -> Option<TurnEnd> {
    let mut posted = 0;
    let mut end = None;
    while posted < turn && end.is_none() {
        match post(head.wrapping_add(posted), scratch, posted + 1 < turn) {
            Ok(()) => posted += 1,
            Err(Error::Again) => end = Some(TurnEnd::Again),
            Err(_) => end = Some(TurnEnd::Refused(scratch.wr_id)),
        }
    }
    let refused = u32::from(matches!(end, Some(TurnEnd::Refused(_))));
    count(&counts.posted, posted.into());
    count(&counts.refused, refused.into());
    scratch.judged += u64::from(posted + refused);
    *head = head.wrapping_add(posted + refused);
    map.release(k, *head);
    end
}

/// Kinds of queues that are watched.
const SENDS: usize = 0;
const RECEIVES: usize = 1;

fn kind_of(bell: u32) -> usize {
    match Doorbell::of(bell) {
        Doorbell::Send(_) => SENDS,
        Doorbell::Receive(_) | Doorbell::Srq(_) => RECEIVES,
    }
}

/// Watches the queue of a bell.
fn note_bell(watched: &mut [Vec<Watched>; 2], is_watched: &mut [bool], bell: u32) {
    let Some(is_watched) = is_watched.get_mut(bell as usize) else { return };
    if !core::mem::replace(is_watched, true) {
        watched[kind_of(bell)].push(Watched { bell, tail: None, idle: 0 });
    }
}

impl Session {
    /// Looks at a new queue in each round.
    pub(super) fn watch(&mut self, bell: Doorbell) {
        note_bell(&mut self.watched, &mut self.is_watched, bell.number());
    }

    /// The same for one that goes on in other memory: what was seen of it is of the old one.
    pub(super) fn watch_anew(&mut self, bell: Doorbell) {
        self.watch(bell);
        let bell = bell.number();
        let of = self.watched[kind_of(bell)].iter_mut().find(|w| w.bell == bell);
        of.into_iter().for_each(|w| w.tail = None);
    }

    /// Watches the queues whose bells have rung.
    fn hear(&mut self) {
        let Session { door, watched, is_watched, .. } = self;
        door.answer(|bell| note_bell(watched, is_watched, bell));
    }

    /// Notes how many requests wait in the watched queues of a kind, `most` at most. Those that had
    /// none for `idle` looks, which they share, are left to their bells. True: there are requests
    /// that came since the last look.
    fn look(&mut self, kind: usize, idle: u32, most: u32) -> bool {
        let Session { watched, is_watched, sends, receives, qps, srqs, .. } = self;
        let noted = if kind == SENDS { sends } else { receives };
        let watched = &mut watched[kind];
        let last = idle / (watched.len() as u32).max(1);
        let (mut i, mut news) = (0, false);
        while let Some(w) = watched.get_mut(i) {
            let (bell, is_last) = (w.bell, w.idle >= last);
            let queue = match Doorbell::of(bell) {
                Doorbell::Send(qp) => qps.at(qp as usize).map(|(_, q)| (&q.map, 0, q.heads[0])),
                Doorbell::Receive(qp) => qps.at(qp as usize).map(|(_, q)| (&q.map, 1, q.heads[1])),
                Doorbell::Srq(srq) => srqs.at(srq as usize).map(|(_, s)| (&s.map, 0, s.head)),
            };
            let n = queue.map_or(0, |(map, k, head)| {
                if is_last {
                    // A request that came before has no bell, so it is looked for afterwards.
                    map.armed(k).announce(ANY);
                }
                let n = match kind {
                    SENDS => map.waiting::<SendWqe>(k, head, most),
                    _ => map.waiting::<RecvWqe>(k, head, most),
                };
                let tail = Some(head.wrapping_add(n));
                news |= n > 0 && core::mem::replace(&mut w.tail, tail) != tail;
                n
            });
            if n == 0 && (is_last || queue.is_none()) {
                is_watched[bell as usize] = false;
                watched.swap_remove(i);
                continue;
            }
            w.idle = if n > 0 { 0 } else { w.idle + 1 };
            if n > 0 {
                noted.push((bell, n));
            }
            i += 1;
        }
        news
    }

    /// Begins a round: notes what waits in the send queues, `most` of each at most. True: there is
    /// something.
    ///
    /// A datagram for which no receive request is posted is lost. So receives that a program has
    /// posted before a send, in whichever session, are posted to the device before it: all sessions
    /// begin a round, then all post their receives, those that came meanwhile included, and then
    /// their sends, as many as there were.
    pub(super) fn begin(&mut self, most: u32) -> bool {
        self.hear();
        self.look(SENDS, IDLE, most);
        !self.sends.is_empty()
    }

    /// Leaves all queues to their bells, before a sleep. True: a request came since the last round.
    pub(super) fn rest(&mut self) -> bool {
        let news = self.look(SENDS, 0, SENDS_PER_ROUND) | self.look(RECEIVES, 0, u32::MAX);
        self.sends.clear();
        self.receives.clear();
        news
    }

    /// Posts the receives of a round.
    pub(super) fn post_receives(&mut self, device: &dyn Device, scratch: &mut Scratch) {
        self.hear();
        self.look(RECEIVES, IDLE, u32::MAX);
        while let Some((bell, n)) = self.receives.pop() {
            self.serve(device, bell, n, scratch);
        }
    }

    /// Posts the sends of a round.
    pub(super) fn post_sends(&mut self, device: &dyn Device, scratch: &mut Scratch) {
        while let Some((bell, n)) = self.sends.pop() {
            self.serve(device, bell, n, scratch);
        }
    }

    /// Posts the requests of a round that cost nothing: those of queue pairs in ERR.
    pub(super) fn post_flushed(&mut self, device: &dyn Device, scratch: &mut Scratch) {
        let mut i = 0;
        while let Some(&(bell, n)) = self.sends.get(i) {
            if !self.qps.at(bell as usize / 2).is_some_and(|(_, q)| q.flushes) {
                i += 1;
                continue;
            }
            self.sends.swap_remove(i);
            self.serve(device, bell, n.min(SENDS_PER_ROUND), scratch);
        }
    }

    /// Posts the next request of a round; its queues take turns. Returns its bytes. `None`: none
    /// is left that the device has room for.
    pub(super) fn post_one(&mut self, device: &dyn Device, scratch: &mut Scratch) -> Option<u64> {
        while let Some((bell, n)) = self.sends.pop() {
            let Some((qp, before)) = self.head_of(bell) else { continue };
            self.serve(device, bell, 1, scratch);
            let after = self.head_of(bell).map(|(_, head)| head);
            // What failed its queue pair is over, and the next round begins with the rest.
            let Ok(q) = self.qps.get_mut(qp) else { continue };
            if after == Some(before) || q.flushes {
                continue;
            }
            if n > 1 {
                self.sends.insert(0, (bell, n - 1));
            }
            let (bytes, signalled) = weight(scratch, q.init.sq_sig_all != 0);
            q.under_way.posted(bytes, signalled);
            count(&self.counts.charged, bytes);
            return Some(bytes);
        }
        None
    }

    fn head_of(&mut self, bell: u32) -> Option<(Handle, u32)> {
        self.qps.at(bell as usize / 2).map(|(qp, q)| (qp, q.heads[0]))
    }

    /// Posts `turn` requests of a queue, which wait there.
    fn serve(&mut self, device: &dyn Device, bell: u32, turn: u32, scratch: &mut Scratch) {
        let (k, qp) = match Doorbell::of(bell) {
            Doorbell::Srq(srq) => return self.serve_srq(device, srq as usize, turn, scratch),
            Doorbell::Send(qp) => (0, qp),
            Doorbell::Receive(qp) => (1, qp),
        };
        let Some((qp, q)) = self.qps.at(qp as usize) else { return };
        let mut head = q.heads[k];
        let at = (k, &mut head);
        let end = match k {
            0 => take_turn(&q.map, at, turn, scratch, &self.counts, |at, scratch, more| {
                send(self, device, q, at, scratch, more)
            }),
            _ => take_turn(&q.map, at, turn, scratch, &self.counts, |at, scratch, _| {
                receive(device, (q.device, false), &q.map, (1, at), scratch)
            }),
        };
        if let Ok(q) = self.qps.get_mut(qp) {
            q.heads[k] = head;
        }
        if let Some(TurnEnd::Refused(wr_id)) = end {
            self.fail(device, qp, wr_id, k == 1);
        }
    }

    fn serve_srq(&mut self, device: &dyn Device, srq: usize, turn: u32, scratch: &mut Scratch) {
        let Some((srq, s)) = self.srqs.at(srq) else { return };
        let (mut head, end) = (s.head, s.head.wrapping_add(turn));
        let post = |at, scratch: &mut Scratch, _| {
            receive(device, (s.device, true), &s.map, (0, at), scratch)
        };
        // There is no queue pair to fail: what its library would have refused is dropped.
        loop {
            let (left, at) = (end.wrapping_sub(head), (0, &mut head));
            match take_turn(&s.map, at, left, scratch, &self.counts, post) {
                Some(TurnEnd::Refused(_)) => {}
                Some(TurnEnd::Again) | None => break,
            }
        }
        if let Ok(s) = self.srqs.get_mut(srq) {
            s.head = head;
        }
    }

    /// Fails a queue pair for a request that was refused.
    fn fail(&mut self, device: &dyn Device, qp: Handle, wr_id: u64, receives: bool) {
        let Ok(q) = self.qps.get_mut(qp) else { return };
        q.fail(device);
        let q = &*q;
        let (cq, opcode) = match receives {
            true => (q.init.recv_cq, wc_opcode::RECV),
            false => (q.init.send_cq, wc_opcode::SEND),
        };
        let status = wc_status::LOC_QP_OP_ERR;
        let vendor_err = CauseCode::BadOpcode as u32;
        let wc = Wc { wr_id, status, opcode, vendor_err, qp_num: q.number, ..Wc::default() };
        // First what the device has: the completions of earlier requests.
        self.move_completions(device, cq, usize::MAX);
        let Session { cqs, is_broken, .. } = self;
        let Ok(c) = cqs.get_mut(cq) else { return };
        if c.has_failed {
            return;
        }
        if c.room(is_broken) == 0 {
            return self.fail_cq(device, cq);
        }
        c.map.put(c.tail, &wc);
        c.tail = c.tail.wrapping_add(1);
        if c.map.must_tell() || c.owed {
            self.tell(cq);
        }
    }
}

//! Posting: from the caller's linked list of work requests into a ring. Bounded by the ring, no
//! lock.
//!
//! Every pointer comes from a C program. Lists are followed only as far as the ring has room, so a
//! cycle ends; SGE arrays are read only as far as the QP's limits.

use core::sync::atomic::Ordering::Relaxed;

use crate::error::{Error, Result};
use crate::mem::host;
use crate::reason::refuse;
use crate::ring::Producer;
use crate::verbs::kind::QpKind;
use crate::verbs::opcode;
use crate::verbs::shared::{plain, posted, QpShared};
use crate::verbs::types::{
    flush_level, flush_type, qp_state, send_flags, wr_opcode, FlushWr, RecvWr, SendWr, Sge,
};
use crate::verbs::wqe::{DcAddr, RecvWqe, SendWqe};
use crate::wire::Feth;

/// Largest message in bytes (IBTA: 2^31).
pub const MAX_MESSAGE: u64 = 1 << 31;

/// Result of a post, also of one that stopped at a bad request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Posted {
    /// Requests that were posted.
    pub count: u32,
    /// The last one has the flag MORE: the doorbell may wait.
    pub more: bool,
    /// The opcode of the last one ([`wr_opcode`]): a SEND, WRITE or READ may pass in one step if
    /// nothing else waits.
    pub opcode: u32,
    /// The QP is a DCI.
    pub dc: bool,
}

/// Which requests are posted of a list with a bad request, or with more than the ring has room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Take {
    /// Those before the bad one (`ibv_post_send`).
    Some,
    /// None (`ibv_wr_complete`).
    AllOrNone,
}

/// Posts a list of send requests.
///
/// # Safety
/// `wr`, every `next` and every `sg_list` are null or point to readable, initialised structs.
#[inline(always)]
pub unsafe fn send(
    qp: &QpShared,
    wr: *const SendWr,
    bad: &mut *const SendWr,
) -> (Posted, Result<()>) {
    // SAFETY: the caller's promise.
    if let Some(posted) = unsafe { send_one::<false>(qp, wr) } {
        *bad = core::ptr::null();
        return (posted, Ok(()));
    }
    // SAFETY: as above.
    unsafe { send_list(qp, wr, bad, Take::Some) }
}

/// Fast path: one SEND or WRITE of one piece, with valid arguments, on a QP that is RC or UC, or
/// (`DC`) a DCI. `None`: nothing was posted, and [`send_list`] is next.
///
/// # Safety
/// As for [`send`].
#[inline(always)]
pub unsafe fn send_one<const DC: bool>(qp: &QpShared, wr: *const SendWr) -> Option<Posted> {
    // SAFETY: the caller's promise.
    let Plain { w, sge, inline, signaled } = unsafe { Plain::read::<DC>(qp, wr)? };
    let mut side = qp.sq.producer()?;
    if side.room() == 0 {
        return None;
    }
    let mut slot = side.slot(0);
    if inline {
        host::fetch_short(sge.addr, slot.tail_mut().get_mut(..sge.length as usize)?).ok()?;
    } else {
        *slot.sges_mut(1).first_mut()? = sge;
    }
    let wqe = slot.header_mut();
    *wqe = SendWqe {
        wr_id: w.wr_id,
        imm: w.imm,
        opcode: w.opcode as u16,
        flags: (w.flags | signaled) as u16,
        num_sge: u16::from(!inline),
        inline: inline.into(),
        length: sge.length.into(),
        ..SendWqe::default()
    };
    if w.opcode <= wr_opcode::RDMA_WRITE_WITH_IMM {
        // SAFETY: as for `w`; plain integers, whichever part of the union it was that the program
        // wrote.
        let r = unsafe { (&raw const (*wr).wr.rdma).read_unaligned() };
        wqe.remote_addr = r.remote_addr;
        wqe.rkey = r.rkey;
    }
    if DC {
        // SAFETY: as for `w`.
        unsafe { write_target(slot.tail_mut(), wr) };
    }
    side.publish(1);
    let more = w.flags & send_flags::MORE != 0;
    Some(Posted { count: 1, more, opcode: w.opcode, dc: DC })
}

const _: () = assert!(
    flush_type::GLOBAL == Feth::GLOBAL as u32
        && flush_type::PERSISTENT == Feth::PERSISTENT as u32
        && flush_level::RANGE == Feth::RANGE as u32
        && flush_level::MR == Feth::MR as u32
);
const _: () = assert!(
    wr_opcode::RDMA_WRITE == 0
        && wr_opcode::RDMA_WRITE_WITH_IMM == 1
        && wr_opcode::SEND == 2
        && wr_opcode::SEND_WITH_IMM == 3
);
/// [`send`] of any list.
///
/// # Safety
/// As for [`send`].
#[inline(never)]
pub unsafe fn send_list(
    qp: &QpShared,
    mut wr: *const SendWr,
    bad: &mut *const SendWr,
    take: Take,
) -> (Posted, Result<()>) {
    *bad = wr;
    let Some(mut side) = qp.sq.producer() else { return (Posted::default(), Err(posted("qp"))) };
    let state = qp.state.load(Relaxed);
    // rxe rxe_verbs.c rxe_post_send: Sends are taken from RTS on.
    if matches!(state, qp_state::RESET | qp_state::INIT | qp_state::RTR) {
        return (Posted::default(), Err(not_ready(state)));
    }
    let mut free = side.free();
    let mut posted = Posted { dc: qp.kind() == QpKind::Dci, ..Posted::default() };
    let mut outcome = Ok(());
    while !wr.is_null() {
        // SAFETY: the caller promises that `wr` is readable.
        let head = unsafe { RequestFields::read(wr) };
        let done = if free == posted.count {
            Err(Error::Again)
        } else {
            // SAFETY: as above.
            unsafe { write_send(qp, &mut side, posted.count, wr, &head) }
        };
        if let Err(e) = done {
            *bad = wr;
            outcome = Err(e);
            if take == Take::AllOrNone {
                posted.count = 0;
            }
            break;
        }
        posted.count += 1;
        posted.more = head.flags & send_flags::MORE != 0;
        posted.opcode = head.opcode;
        if posted.count == free {
            // The engine may have released slots since: counts once more.
            free = side.free();
        }
        wr = head.next;
    }
    side.publish(posted.count);
    if outcome.is_ok() {
        *bad = core::ptr::null();
    } else {
        // What was posted before the bad one must still leave.
        posted.more = false;
    }
    (posted, outcome)
}

/// One SEND or WRITE of one piece that is in no ring, as its request says.
#[derive(Clone, Copy, Debug)]
pub struct Single {
    /// The program's number of it.
    pub wr_id: u64,
    /// [`wr_opcode`]: one up to SEND_WITH_IMM.
    pub opcode: u32,
    /// Its immediate data, if the opcode has any.
    pub imm: u32,
    /// Where its bytes are, and how many.
    pub sge: Sge,
    /// They are the program's, without a key.
    pub inline: bool,
    /// It completes also with success.
    pub signaled: bool,
    /// It asks for a solicited event.
    pub solicited: bool,
    /// Where the bytes of a WRITE go.
    pub remote_addr: u64,
    /// The key of that place.
    pub rkey: u32,
}

/// Asks for the cache line that a WRITE into mapped memory of the peer goes to. The line comes
/// while the request is read and checked.
///
/// # Safety
/// As for [`send`].
#[inline(always)]
pub unsafe fn expect_write(qp: &QpShared, wr: *const SendWr) {
    if wr.is_null() {
        return;
    }
    // SAFETY: as in `send_one`; whatever the union holds, it is but an address to ask for.
    let (opcode, to) = unsafe {
        let opcode = (&raw const (*wr).opcode).read_unaligned();
        (opcode, (&raw const (*wr).wr.rdma.remote_addr).read_unaligned())
    };
    if opcode == wr_opcode::RDMA_WRITE {
        qp.expect_peer_write(to);
    }
}

/// Reads a single request that is to be executed at once; the send queue is empty. `None`: it is
/// no SEND or WRITE of one piece, or the queue is not empty, and [`send`] is next.
///
/// # Safety
/// As for [`send`].
#[inline(always)]
pub unsafe fn single(qp: &QpShared, wr: *const SendWr) -> Option<Single> {
    // SAFETY: the caller's promise.
    let Plain { w, sge, inline, signaled } = unsafe { Plain::read::<false>(qp, wr)? };
    if w.flags & send_flags::MORE != 0 || !qp.sq.is_empty() {
        return None;
    }
    // SAFETY: as in `send_one`.
    let r = unsafe { (&raw const (*wr).wr.rdma).read_unaligned() };
    let signaled = (w.flags | signaled) & send_flags::SIGNALED != 0;
    let solicited = w.flags & send_flags::SOLICITED != 0;
    let (remote_addr, rkey) = (r.remote_addr, r.rkey);
    let RequestFields { wr_id, opcode, imm, .. } = w;
    Some(Single { wr_id, opcode, imm, sge, inline, signaled, solicited, remote_addr, rkey })
}

/// A SEND or WRITE of one piece, with valid arguments, on a QP that may send it.
struct Plain {
    w: RequestFields,
    sge: Sge,
    inline: bool,
    /// [`send_flags::SIGNALED`] if the QP's requests all are, or 0.
    signaled: u32,
}

impl Plain {
    /// Reads a request. `None`: it is another one. `DC`: the QP is a DCI; else RC or UC.
    ///
    /// # Safety
    /// As for [`send`].
    #[inline(always)]
    unsafe fn read<const DC: bool>(qp: &QpShared, wr: *const SendWr) -> Option<Plain> {
        if wr.is_null() {
            return None;
        }
        let word = qp.plain.load(Relaxed);
        if word & if DC { plain::TO_TARGET } else { plain::TO_PEER } == 0 {
            return None;
        }
        // SAFETY: the caller promises that `wr` is readable.
        let w = unsafe { RequestFields::read_plain(wr)? };
        // SAFETY: one readable element, as the caller promises.
        let sge: Sge = unsafe { core::ptr::read_unaligned(w.sg_list) };
        let inline = w.flags & send_flags::INLINE != 0;
        if sge.length > if inline { word as u32 } else { MAX_MESSAGE as u32 } {
            return None;
        }
        let flags = (word >> plain::FLAGS_AT) as u32 & send_flags::SIGNALED;
        Some(Plain { w, sge, inline, signaled: flags })
    }
}

/// Fields that every send request has. The others are read where their opcodes are handled. Each
/// field is read once, so that the value that was checked is used, whatever another thread writes.
struct RequestFields {
    wr_id: u64,
    next: *const SendWr,
    sg_list: *const Sge,
    num_sge: i32,
    opcode: u32,
    flags: u32,
    imm: u32,
}

impl RequestFields {
    /// Those of a SEND or WRITE of one piece; `None`: it is another request.
    ///
    /// # Safety
    /// As for [`RequestFields::read`].
    #[inline(always)]
    unsafe fn read_plain(wr: *const SendWr) -> Option<RequestFields> {
        macro_rules! field {
            ($f:ident) => {
                // SAFETY: the caller's promise.
                unsafe { (&raw const (*wr).$f).read_unaligned() }
            };
        }
        // Each is read where it is asked about: conditions on values that are there already are
        // computed without branches, which takes more instructions.
        let opcode = field!(opcode);
        // WRITE and SEND, with immediate data and without, are the lowest opcodes.
        if opcode > wr_opcode::SEND_WITH_IMM {
            return None;
        }
        let num_sge = field!(num_sge);
        if num_sge != 1 {
            return None;
        }
        let next: *const SendWr = field!(next);
        if !next.is_null() {
            return None;
        }
        let sg_list: *const Sge = field!(sg_list);
        if sg_list.is_null() {
            return None;
        }
        let (wr_id, flags, imm) = (field!(wr_id), field!(send_flags), field!(imm_data));
        Some(RequestFields { wr_id, next, sg_list, num_sge, opcode, flags, imm })
    }

    /// # Safety
    /// `wr` points to a readable, initialised struct, maybe misaligned.
    #[inline(always)]
    unsafe fn read(wr: *const SendWr) -> RequestFields {
        macro_rules! field {
            ($f:ident) => {
                // SAFETY: the caller's promise.
                unsafe { (&raw const (*wr).$f).read_unaligned() }
            };
        }
        RequestFields {
            wr_id: field!(wr_id),
            next: field!(next),
            sg_list: field!(sg_list),
            num_sge: field!(num_sge),
            opcode: field!(opcode),
            flags: field!(send_flags),
            imm: field!(imm_data),
        }
    }
}

/// Checks a request and writes it into the `k`-th free slot, which is not published yet.
///
/// # Safety
/// `wr` points to a readable, initialised struct, and so does every piece of its list.
#[inline(always)]
unsafe fn write_send(
    qp: &QpShared,
    side: &mut Producer<'_, SendWqe>,
    k: u32,
    wr: *const SendWr,
    w: &RequestFields,
) -> Result<()> {
    let kind = qp.kind();
    let allowed = match kind {
        QpKind::Rc | QpKind::XrcIni | QpKind::Dci => opcode::TAKEN_BY_RC,
        QpKind::Uc => opcode::TAKEN_BY_UC,
        QpKind::Ud => opcode::TAKEN_BY_UD,
        QpKind::XrcTgt | QpKind::Dct | QpKind::DcContext => 0,
    };
    if w.opcode > 31 || allowed & (1 << w.opcode) == 0 {
        return Err(bad_opcode(w.opcode, kind));
    }
    let local = matches!(w.opcode, wr_opcode::LOCAL_INV | wr_opcode::BIND_MW);
    let has_data = opcode::has_data(w.opcode);
    let n = if has_data { w.num_sge } else { 0 };
    if n < 0 || n as u32 > qp.max_send_sge.load(Relaxed) || (n > 0 && w.sg_list.is_null()) {
        return Err(bad_list(n, qp.max_send_sge.load(Relaxed)));
    }
    let n = n as usize;
    let atomic =
        matches!(w.opcode, wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD);
    // The bytes of an ATOMIC WRITE are always taken here: one word, which the slot has room for.
    let word = w.opcode == wr_opcode::ATOMIC_WRITE;
    let inline = (w.flags & send_flags::INLINE != 0 || word) && has_data;
    if inline && (atomic || w.opcode == wr_opcode::RDMA_READ) {
        return Err(inline_result(w.opcode));
    }
    let mut flags = (w.flags & 0xffff) as u16;
    if qp.sig_all.load(Relaxed) != 0 {
        flags |= send_flags::SIGNALED as u16;
    }
    let mut slot = side.slot(k);
    *slot.header_mut() = SendWqe {
        wr_id: w.wr_id,
        imm: w.imm,
        opcode: w.opcode as u16,
        flags,
        num_sge: if inline { 0 } else { n as u16 },
        inline: inline.into(),
        ..SendWqe::default()
    };
    let most_inline = match () {
        () if word => Some(8),
        () if inline => Some(qp.max_inline.load(Relaxed) as usize),
        () => None,
    };
    // SAFETY: the caller's promise.
    let length = unsafe { write_pieces(qp, slot.tail_mut(), w.sg_list, n, most_inline)? };
    let wqe = slot.header_mut();
    wqe.length = length;
    if kind == QpKind::XrcIni {
        // SAFETY: the caller's promise; a plain integer.
        wqe.srqn = unsafe { (&raw const (*wr).remote_srqn).read_unaligned() } & 0xff_ffff;
    }
    if kind == QpKind::Dci && !local {
        // SAFETY: the caller's promise.
        unsafe { write_target(slot.tail_mut(), wr) };
    }
    let wqe = slot.header_mut();
    // SAFETY: the caller's promise.
    unsafe { write_operands(wqe, wr, w.opcode, kind, length) }
}

/// Writes the target of a DCI's request to the end of its slot.
///
/// # Safety
/// `wr` points to a readable, initialised struct.
#[inline(always)]
unsafe fn write_target(tail: &mut [u8], wr: *const SendWr) {
    // SAFETY: the caller's promise; plain integers, whatever part of the union was written.
    let dc = unsafe { (&raw const (*wr).ext.dc).read_unaligned() };
    DcAddr { ah: dc.ah, key: dc.dc_key, dctn: dc.dctn & 0xff_ffff }.write(tail);
}

/// Writes the pieces of a request into the rest of its slot, or their bytes, of which there may be
/// `most_inline`. Returns how many bytes they have together.
///
/// # Safety
/// `list` holds `n` readable, initialised pieces.
#[inline(always)]
unsafe fn write_pieces(
    qp: &QpShared,
    tail: &mut [u8],
    list: *const Sge,
    n: usize,
    most_inline: Option<usize>,
) -> Result<u64> {
    let mut length = 0u64;
    for i in 0..n {
        // SAFETY: the list has more than `i` readable elements, as the caller promises.
        let sge: Sge = unsafe { core::ptr::read_unaligned(list.add(i)) };
        if let Some(most) = most_inline {
            let at = length as usize;
            let end = at.checked_add(sge.length as usize).filter(|end| *end <= most);
            let dst = end.and_then(|end| tail.get_mut(at..end)).ok_or_else(|| not_inline(most))?;
            host::fetch(sge.addr, dst).map_err(|_| unreadable(sge.addr, sge.length))?;
        } else {
            let dst = tail.get_mut(i * 16..i * 16 + 16);
            let dst = dst.ok_or_else(|| bad_list(n as i32, qp.max_send_sge.load(Relaxed)))?;
            dst[..8].copy_from_slice(&sge.addr.to_ne_bytes());
            dst[8..12].copy_from_slice(&sge.length.to_ne_bytes());
            dst[12..].copy_from_slice(&sge.lkey.to_ne_bytes());
        }
        length += u64::from(sge.length);
    }
    if length > MAX_MESSAGE {
        return Err(too_long(length));
    }
    Ok(length)
}

/// Writes the operands of an opcode.
///
/// # Safety
/// `wr` points to a readable, initialised struct.
#[inline(always)]
unsafe fn write_operands(
    wqe: &mut SendWqe,
    wr: *const SendWr,
    opcode: u32,
    kind: QpKind,
    length: u64,
) -> Result<()> {
    macro_rules! part {
        ($($f:ident).+) => {
            // SAFETY: the caller's promise; plain integers, whichever part of the union it was that
            // the program wrote.
            unsafe { (&raw const (*wr).$($f).+).read_unaligned() }
        };
    }
    match opcode {
        wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM | wr_opcode::RDMA_READ => {
            let r = part!(wr.rdma);
            wqe.remote_addr = r.remote_addr;
            wqe.rkey = r.rkey;
        }
        wr_opcode::ATOMIC_WRITE => {
            if length != 8 {
                return Err(not_a_word(opcode, length));
            }
            let r = part!(wr.rdma);
            wqe.remote_addr = r.remote_addr;
            wqe.rkey = r.rkey;
            (wqe.length, wqe.a) = (0, length);
        }
        wr_opcode::FLUSH => {
            let f = part!(wr.flush);
            check_flush(&f)?;
            let FlushWr { placement, level, .. } = f;
            let feth = Feth { placement: placement as u8, selectivity: level as u8, reserved: 0 };
            wqe.rkey = f.rkey;
            wqe.imm = feth.word();
            // A FLUSH of a whole region names no range.
            if level == flush_level::RANGE {
                (wqe.remote_addr, wqe.a) = (f.remote_addr, f.length);
            }
        }
        wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD => {
            // rxe rxe_verbs.c validate_send_wr: An atomic has room for at least 8 bytes; its result
            // fills the first 8.
            if length < 8 {
                return Err(not_a_word(opcode, length));
            }
            wqe.length = 8;
            let r = part!(wr.atomic);
            wqe.remote_addr = r.remote_addr;
            wqe.rkey = r.rkey;
            wqe.a = r.compare_add;
            wqe.b = r.swap;
        }
        wr_opcode::BIND_MW => {
            let b = part!(ext.bind_mw);
            wqe.a = b.mw;
            wqe.rkey = b.rkey;
            wqe.b = b.bind_info.mr;
            wqe.remote_addr = b.bind_info.addr;
            wqe.length = b.bind_info.length;
            wqe.access = b.bind_info.mw_access_flags;
        }
        _ if !kind.is_connected() => {
            let u = part!(wr.ud);
            wqe.a = u.ah;
            wqe.b = u64::from(u.remote_qpn) << 32 | u64::from(u.remote_qkey);
        }
        _ => {}
    }
    Ok(())
}

/// Checks the operands of a FLUSH, for every device; other requests have none to check.
///
/// # Errors
/// `Invalid`, `MessageSize`: those of a FLUSH.
pub fn check_operands(w: &SendWr) -> Result<()> {
    match w.opcode {
        // SAFETY: a union of plain integers: each reading is a value.
        wr_opcode::FLUSH => check_flush(unsafe { &w.wr.flush }),
        _ => Ok(()),
    }
}

#[inline(never)]
fn check_flush(&FlushWr { placement, level, length, .. }: &FlushWr) -> Result<()> {
    let types = flush_type::GLOBAL | flush_type::PERSISTENT;
    if placement == 0 || placement & !types != 0 {
        let words = "GLOBAL (1), PERSISTENT (2) or both";
        return Err(refuse!(Invalid, "wr->wr.flush.placement {placement:#x}: {words}"));
    }
    if level > flush_level::MR {
        return Err(refuse!(Invalid, "wr->wr.flush.level {level}: RANGE (0) or MR (1)"));
    }
    if level == flush_level::RANGE && length > MAX_MESSAGE {
        return Err(refuse!(MessageSize, "wr->wr.flush.length {length}: at most {MAX_MESSAGE}"));
    }
    Ok(())
}

/// Posts a list of receive requests into `ring`, with at most `max_sge` pieces each. Returns how
/// many.
///
/// # Safety
/// As for [`send`].
#[inline(always)]
pub unsafe fn recv(
    ring: &crate::ring::SlotRing<RecvWqe>,
    max_sge: u32,
    wr: *const RecvWr,
    bad: &mut *const RecvWr,
) -> Result<u32> {
    // SAFETY: the caller's promise.
    if unsafe { recv_one(ring, max_sge, wr) }.is_some() {
        *bad = core::ptr::null();
        return Ok(1);
    }
    // SAFETY: as above.
    unsafe { recv_list(ring, max_sge, wr, bad) }
}

/// Fast path: one request of one piece. `None`: nothing was posted, and [`recv_list`] is next.
///
/// # Safety
/// As for [`send`].
#[inline(always)]
unsafe fn recv_one(
    ring: &crate::ring::SlotRing<RecvWqe>,
    max_sge: u32,
    wr: *const RecvWr,
) -> Option<()> {
    if wr.is_null() {
        return None;
    }
    // SAFETY: the caller promises that `wr` is readable; copied once.
    let w = unsafe { core::ptr::read_unaligned(wr) };
    if w.num_sge != 1 || max_sge == 0 || !w.next.is_null() || w.sg_list.is_null() {
        return None;
    }
    // SAFETY: one readable element, as the caller promises.
    let sge: Sge = unsafe { core::ptr::read_unaligned(w.sg_list) };
    let mut side = ring.producer()?;
    if side.room() == 0 {
        return None;
    }
    let mut slot = side.slot(0);
    *slot.sges_mut(1).first_mut()? = sge;
    *slot.header_mut() =
        RecvWqe { wr_id: w.wr_id, num_sge: 1, length: sge.length, ..RecvWqe::default() };
    side.publish(1);
    Some(())
}

/// [`recv`] of any list.
///
/// # Safety
/// As for [`send`].
#[inline(never)]
unsafe fn recv_list(
    ring: &crate::ring::SlotRing<RecvWqe>,
    max_sge: u32,
    mut wr: *const RecvWr,
    bad: &mut *const RecvWr,
) -> Result<u32> {
    *bad = wr;
    let mut side = ring.producer().ok_or_else(|| posted("queue"))?;
    let mut free = side.free();
    let mut count = 0;
    let mut outcome = Ok(());
    while !wr.is_null() {
        // SAFETY: the caller promises that `wr` is readable; copied once.
        let w = unsafe { core::ptr::read_unaligned(wr) };
        let n = w.num_sge;
        if free == count {
            outcome = Err(Error::Again);
        } else if n < 0 || n as u32 > max_sge || (n > 0 && w.sg_list.is_null()) {
            outcome = Err(bad_list(n, max_sge));
        }
        if outcome.is_err() {
            *bad = wr;
            break;
        }
        let mut slot = side.slot(count);
        let mut length = 0u64;
        for (i, dst) in slot.tail_mut().chunks_exact_mut(16).take(n as usize).enumerate() {
            // SAFETY: `sg_list` holds at least `num_sge` readable elements, as the caller promises.
            let sge: Sge = unsafe { core::ptr::read_unaligned(w.sg_list.add(i)) };
            dst[..8].copy_from_slice(&sge.addr.to_ne_bytes());
            dst[8..12].copy_from_slice(&sge.length.to_ne_bytes());
            dst[12..].copy_from_slice(&sge.lkey.to_ne_bytes());
            length += u64::from(sge.length);
        }
        *slot.header_mut() = RecvWqe {
            wr_id: w.wr_id,
            num_sge: n as u16,
            length: length.min(u64::from(u32::MAX)) as u32,
            ..RecvWqe::default()
        };
        count += 1;
        if count == free {
            free = side.free();
        }
        wr = w.next;
    }
    side.publish(count);
    outcome?;
    *bad = core::ptr::null();
    Ok(count)
}

// Why a request is refused. Out of line: most posts are none of these.

#[cold]
#[inline(never)]
fn not_ready(state: u32) -> Error {
    refuse!(Invalid, "qp: it is in {}, and sends are taken from RTS on", qp_state::name(state))
}

#[cold]
#[inline(never)]
fn bad_opcode(opcode: u32, kind: QpKind) -> Error {
    match wr_opcode::name(opcode) {
        "?" => refuse!(Invalid, "wr->opcode {opcode}: unknown"),
        name => refuse!(Invalid, "wr->opcode {name}: not for {}", kind),
    }
}

#[cold]
#[inline(never)]
fn bad_list(n: i32, most: u32) -> Error {
    match u32::try_from(n).is_ok_and(|n| n <= most) {
        true => refuse!(Invalid, "wr->sg_list: NULL, and num_sge is {n}"),
        false => refuse!(Invalid, "wr->num_sge {n}: 0 to {most}"),
    }
}

#[cold]
#[inline(never)]
fn inline_result(opcode: u32) -> Error {
    refuse!(
        Invalid,
        "wr->send_flags INLINE: {} brings data, it sends none",
        wr_opcode::name(opcode)
    )
}

#[cold]
#[inline(never)]
fn not_inline(most: usize) -> Error {
    refuse!(MessageSize, "wr->sg_list: longer than max_inline_data, which is {most}")
}

#[cold]
#[inline(never)]
fn unreadable(addr: u64, length: u32) -> Error {
    refuse!(Fault, "wr->sg_list: {length} bytes at {addr:#x} cannot be read")
}

#[cold]
#[inline(never)]
fn too_long(length: u64) -> Error {
    refuse!(MessageSize, "wr->sg_list: {length} bytes, a message has at most {MAX_MESSAGE}")
}

#[cold]
#[inline(never)]
fn not_a_word(opcode: u32, length: u64) -> Error {
    refuse!(Invalid, "wr->sg_list: {length} bytes, and {} is about 8", wr_opcode::name(opcode))
}

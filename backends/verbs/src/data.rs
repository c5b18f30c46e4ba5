//! The data path: looks up the handle, checks the list, calls the provider.
//!
//! A plain list goes to the provider unchanged. Any other list is copied in chunks, for three
//! reasons. Requests that name objects (address handles of UD and DC, windows and regions of
//! BIND_MW) hold our handles where libibverbs expects pointers. Some requests need other calls
//! ([`extended`]). And a list that is longer than the queue, or has a bad request in it, must stop
//! at the right request.

use core::sync::atomic::Ordering::Relaxed;

use crate::abi::Object;
use crate::device::VerbsDevice;
use crate::extended;
use crate::fast::{Empty, Polled, Posted};
use crate::objects::{Ah, Mr, Mw, Qp};
use crate::refused;
use crate::slots::{used_by_two, Use};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::pool::{stale, tag};
use gdrcore_core::refuse;
use gdrcore_core::verbs::opcode;
use gdrcore_core::verbs::post::check_operands;
use gdrcore_core::verbs::types::{
    qp_type, send_flags, wr_opcode, BindMwWr, DcWr, Handle, MwBindInfo, RecvWr, SendWr, Sge, UdWr,
    Wc, WrExt, WrOp,
};

/// Requests that are copied at a time.
const CHUNK: usize = 8;
/// After this many empty polls of a CQ, the kernel is asked whether the device still exists.
const LOOK_EVERY: u32 = 1 << 14;

/// Opcodes that a QP of this type supports, as bits, except those of [`extended::EXTENDED`].
pub fn opcodes(kind: u32) -> u32 {
    match kind {
        qp_type::RC | qp_type::XRC_SEND | qp_type::DCI => opcode::TAKEN_BY_RC & !extended::BITS,
        qp_type::UC => opcode::TAKEN_BY_UC,
        qp_type::UD => opcode::TAKEN_BY_UD,
        _ => 0,
    }
}

/// The opcode that [`Qp::plain`] excludes, because its request holds handles.
const NAMES_OBJECTS: u32 = 1 << wr_opcode::BIND_MW;

/// Opcodes whose requests go to the provider unchanged.
pub fn plain_opcodes(kind: u32) -> u32 {
    match kind {
        qp_type::RC | qp_type::UC | qp_type::XRC_SEND => opcodes(kind) & !NAMES_OBJECTS,
        _ => 0,
    }
}

/// Bytes of a request's entries.
///
/// # Safety
/// `sg_list` has `n` readable entries.
unsafe fn total(sg_list: *const Sge, n: usize) -> u64 {
    // SAFETY: i < n, readable as promised.
    (0..n).map(|i| u64::from(unsafe { (*sg_list.add(i)).length })).sum()
}

/// Checks one request for this QP, without the objects that it names.
///
/// # Safety
/// `w.sg_list` is null or has `num_sge` readable entries.
unsafe fn check_send(qp: &Qp, opcodes: u32, w: &SendWr) -> Result<(), Wrong> {
    if w.opcode > 31 || opcodes >> w.opcode & 1 == 0 {
        return Err(Wrong::Opcode);
    }
    check_operands(w).map_err(Wrong::Operands)?;
    if w.num_sge != 0 && w.opcode != wr_opcode::FLUSH {
        if w.num_sge as u32 > qp.send_sge.load(Relaxed) || w.sg_list.is_null() {
            return Err(Wrong::List);
        }
        if w.send_flags & send_flags::INLINE != 0 && w.opcode != wr_opcode::ATOMIC_WRITE {
            // SAFETY: the caller's promise; num_sge is positive, being at most send_sge as
            // unsigned.
            let bytes = unsafe { total(w.sg_list, w.num_sge as usize) };
            if bytes > u64::from(qp.inline.load(Relaxed)) {
                return Err(Wrong::Inline);
            }
        }
    }
    if w.opcode == wr_opcode::ATOMIC_WRITE {
        // SAFETY: as above.
        match unsafe { total(w.sg_list, w.num_sge as usize) } {
            8 => {}
            bytes => return Err(Wrong::Word(bytes)),
        }
    }
    Ok(())
}

/// The fault of a request. The reason is written only if the request is refused, because this check
/// also finds requests that name objects.
enum Wrong {
    Opcode,
    List,
    Inline,
    /// An ATOMIC WRITE of so many bytes.
    Word(u64),
    /// Operands that its opcode does not allow; the reason is written already.
    Operands(Error),
}

impl Wrong {
    #[cold]
    fn refused(self, opcode: u32, n: i32, sge_max: u32, inline: u32) -> Error {
        match self {
            Wrong::Opcode => {
                refuse!(
                    Invalid,
                    "wr->opcode {} ({opcode}): not for this type of QP",
                    wr_opcode::name(opcode)
                )
            }
            Wrong::List if n < 0 || n as u32 > sge_max => {
                refuse!(Invalid, "wr->num_sge {n}: 0 to {sge_max}")
            }
            Wrong::List => refuse!(Invalid, "wr->sg_list: NULL, and num_sge is {n}"),
            Wrong::Inline => {
                refuse!(MessageSize, "wr->sg_list: longer than max_inline_data, which is {inline}")
            }
            Wrong::Word(bytes) => {
                refuse!(Invalid, "wr->sg_list: {bytes} bytes; an ATOMIC WRITE has 8")
            }
            Wrong::Operands(e) => e,
        }
    }
}

/// Whether a list can go to the provider unchanged: every request is valid and names no objects,
/// and the list is no longer than the queue, so it has an end.
///
/// # Safety
/// The list and its entries are readable.
unsafe fn is_plain(qp: &Qp, mut wr: *const SendWr) -> bool {
    let plain = qp.plain.load(Relaxed);
    if plain == 0 {
        return false;
    }
    // One round more than there may be requests: the last round finds the end.
    for _ in 0..=qp.send_depth.load(Relaxed) {
        // SAFETY: the caller's promise: null or readable.
        let Some(w) = (unsafe { wr.as_ref() }) else { return true };
        // SAFETY: as promised for its pieces.
        if unsafe { check_send(qp, plain, w) }.is_err() {
            return false;
        }
        wr = w.next;
    }
    false
}

#[inline(always)]
fn check_recv(sge_max: u32, w: &RecvWr) -> Result<(), Wrong> {
    if w.num_sge != 0 && (w.num_sge as u32 > sge_max || w.sg_list.is_null()) {
        return Err(Wrong::List);
    }
    Ok(())
}

/// Posts a list of receives to `object`, whose queue holds `depth` requests of at most `sge_max`
/// entries.
///
/// # Safety
/// `post` and `object` belong together and exist; the list is readable.
#[inline(always)]
unsafe fn post_receives(
    post: crate::abi::PostRecv,
    object: Object,
    sge_max: u32,
    depth: u32,
    wr: *const RecvWr,
    bad: &mut *const RecvWr,
) -> Result<()> {
    *bad = wr;
    let mut next = wr;
    for _ in 0..=depth {
        // SAFETY: the caller's promise: null or readable.
        let Some(w) = (unsafe { next.as_ref() }) else {
            // SAFETY: the whole list is checked.
            let rc = unsafe { post(object, wr, bad) };
            return if rc == 0 { Ok(()) } else { Err(refused(rc)) };
        };
        if check_recv(sge_max, w).is_err() {
            break;
        }
        next = w.next;
    }
    // SAFETY: our contract.
    unsafe { copy_receives(post, object, sge_max, depth, wr, bad) }
}

/// As [`post_receives`], but posts copies, one request at a time, and at most as many as the queue
/// holds. Otherwise a list without end would never stop on a NIC that takes requests as fast as
/// they come.
///
/// # Safety
/// As for [`post_receives`].
#[cold]
#[inline(never)]
unsafe fn copy_receives(
    post: crate::abi::PostRecv,
    object: Object,
    sge_max: u32,
    mut left: u32,
    mut wr: *const RecvWr,
    bad: &mut *const RecvWr,
) -> Result<()> {
    while !wr.is_null() {
        *bad = wr;
        left = left.checked_sub(1).ok_or(Error::Again)?;
        // SAFETY: not null, so readable; one copy, so that what is checked is what is posted.
        let mut w = unsafe { wr.read() };
        check_recv(sge_max, &w).map_err(|wrong| wrong.refused(0, w.num_sge, sge_max, 0))?;
        wr = w.next;
        w.next = core::ptr::null();
        let mut first = core::ptr::null();
        // SAFETY: the provider's own object and a checked list of one.
        let rc = unsafe { post(object, &w, &mut first) };
        if rc != 0 {
            return Err(refused(rc));
        }
    }
    *bad = wr;
    Ok(())
}

/// The objects that a chunk of copied requests names. They are held until it is posted.
#[derive(Default)]
struct Named<'d> {
    ah: [Option<Use<'d, Ah>>; CHUNK],
    mw: [Option<Use<'d, Mw>>; CHUNK],
    mr: [Option<Use<'d, Mr>>; CHUNK],
}

/// Links copied requests to a list; returns the first.
fn link(copies: &mut [SendWr]) -> *mut SendWr {
    let n = copies.len();
    let first: *mut SendWr = copies.as_mut_ptr();
    for i in 0..n {
        let last = i + 1 == n;
        let next = if last { core::ptr::null() } else { first.wrapping_add(i + 1).cast_const() };
        // SAFETY: i < n, inside `copies`.
        unsafe { (*first.add(i)).next = next };
    }
    first
}

fn pointer(object: Object) -> Handle {
    object.expose_provenance() as Handle
}

impl VerbsDevice {
    /// See [`gdrcore_core::device::Device::post_send`].
    ///
    /// # Safety
    /// The list is readable.
    #[inline(always)]
    pub(crate) unsafe fn do_post_send(
        &self,
        h: Handle,
        wr: *const SendWr,
        bad: &mut *const SendWr,
    ) -> Result<()> {
        *bad = wr;
        // SAFETY: our contract, and a reference.
        match unsafe { self.quick_post_send(h, wr, bad) } {
            Posted::Done => return Ok(()),
            Posted::Refused(rc) => return Err(refused(rc)),
            Posted::Declined => {}
        }
        let slot = self.qps.slot(h)?;
        let qp = &slot.more;
        qp.send.enter()?;
        let outcome = if slot.is(h) {
            // SAFETY: inside the send flag a QP whose handle lives is not destroyed; the list is
            // readable.
            unsafe { self.send_list(slot.object(), qp, wr, bad) }
        } else {
            Err(stale(tag::QP, h))
        };
        qp.send.leave();
        outcome
    }

    /// Posts any list.
    ///
    /// # Safety
    /// `object` is the existing QP of `qp`; the list is readable.
    pub(crate) unsafe fn send_list(
        &self,
        object: Object,
        qp: &Qp,
        wr: *const SendWr,
        bad: &mut *const SendWr,
    ) -> Result<()> {
        // SAFETY: the list is readable.
        if !unsafe { is_plain(qp, wr) } {
            // SAFETY: our contract.
            return unsafe { self.copy_list(object, qp, wr, bad) };
        }
        *bad = wr;
        // SAFETY: a live QP of this provider; the list is checked.
        match unsafe { (self.opened.data.post_send)(object, wr, bad) } {
            0 => Ok(()),
            rc => Err(refused(rc)),
        }
    }

    /// Posts copies in chunks, with libibverbs' pointers in place of our handles, and at most as
    /// many as the queue holds. Otherwise a list without end would never stop on a NIC that takes
    /// requests as fast as they come.
    ///
    /// # Safety
    /// `object` is the existing QP of `qp`; the list is readable.
    #[inline(never)]
    unsafe fn copy_list(
        &self,
        object: Object,
        qp: &Qp,
        mut wr: *const SendWr,
        bad: &mut *const SendWr,
    ) -> Result<()> {
        if !qp.has_sends() {
            *bad = wr;
            let kind = qp_type::name(qp.kind());
            return Err(refuse!(Invalid, "qp: {kind} has no send queue"));
        }
        let mut left = qp.send_depth.load(Relaxed);
        while !wr.is_null() {
            let mut named = Named::default();
            let mut theirs = [core::ptr::null::<SendWr>(); CHUNK];
            let mut copies = [EMPTY; CHUNK];
            let (mut n, mut by_extended) = (0, false);
            let mut stop = Ok(());
            while n < CHUNK && !wr.is_null() {
                // SAFETY: not null, so readable; one copy, so that what is checked is what is
                // posted.
                let mut w = unsafe { wr.read() };
                let way = extended::takes(qp.kind(), w.opcode);
                if n > 0 && way != by_extended {
                    break;
                }
                by_extended = way;
                let Some(fewer) = left.checked_sub(1) else {
                    stop = Err(Error::Again);
                    break;
                };
                left = fewer;
                // SAFETY: as promised for its pieces.
                let checked = unsafe { self.check_any(qp, &w) };
                stop = checked.and_then(|()| self.name_objects(qp, &mut w, &mut named, n));
                if stop.is_err() {
                    break;
                }
                theirs[n] = wr;
                wr = w.next;
                copies[n] = w;
                n += 1;
            }
            *bad = wr;
            if n > 0 {
                let first = link(&mut copies[..n]);
                let mut refused_at = core::ptr::null();
                // SAFETY: a live QP of this provider and a checked list whose objects `named` keeps
                // alive.
                let posted = unsafe {
                    if by_extended {
                        self.post_extended(object, first, n, &mut refused_at)
                    } else {
                        match (self.opened.data.post_send)(object, first, &mut refused_at) {
                            0 => Ok(()),
                            rc => Err(refused(rc)),
                        }
                    }
                };
                if let Err(e) = posted {
                    let at = (refused_at.addr().wrapping_sub(first.addr())) / size_of::<SendWr>();
                    *bad = theirs.get(at).copied().unwrap_or(theirs[0]);
                    return Err(e);
                }
            }
            stop?;
        }
        *bad = wr;
        Ok(())
    }

    /// Checks a request of any opcode that the QP may have.
    ///
    /// # Safety
    /// As for [`check_send`].
    unsafe fn check_any(&self, qp: &Qp, w: &SendWr) -> Result<()> {
        let (kind, has) = (qp.kind(), qp.extended.load(Relaxed));
        let all = opcodes(kind) | has & extended::BITS;
        // SAFETY: our contract.
        unsafe { check_send(qp, all, w) }.map_err(|wrong| {
            match (wrong, extended::known(kind, w.opcode)) {
                (Wrong::Opcode, Some(lacking)) => self.lacks_opcode(kind, lacking),
                (wrong, _) => {
                    let (sge_max, inline) = (qp.send_sge.load(Relaxed), qp.inline.load(Relaxed));
                    wrong.refused(w.opcode, w.num_sge, sge_max, inline)
                }
            }
        })
    }

    /// Puts libibverbs' pointers in place of the handles in `w`.
    fn name_objects<'d>(
        &'d self,
        qp: &Qp,
        w: &mut SendWr,
        named: &mut Named<'d>,
        i: usize,
    ) -> Result<()> {
        let local = matches!(w.opcode, wr_opcode::LOCAL_INV | wr_opcode::BIND_MW);
        if qp.kind() == qp_type::DCI && !local {
            // SAFETY: a union of integers only: every reading is a value.
            let dc = unsafe { w.ext.dc };
            let ah = self.ahs.enter(dc.ah)?;
            w.ext.dc = DcWr { ah: pointer(ah.object()), ..dc };
            named.ah[i] = Some(ah);
        }
        if qp.kind() == qp_type::UD {
            // SAFETY: a union of integers only: every reading is a value.
            let ud = unsafe { w.wr.ud };
            let ah = self.ahs.enter(ud.ah)?;
            w.wr = WrOp { ud: UdWr { ah: pointer(ah.object()), ..ud } };
            named.ah[i] = Some(ah);
        }
        if w.opcode == wr_opcode::BIND_MW {
            // SAFETY: a union of integers only: every reading is a value.
            let bind = unsafe { w.ext.bind_mw };
            let mw = self.mws.enter(bind.mw)?;
            let info = bind.bind_info;
            let mr = if info.mr == 0 { None } else { Some(self.mrs.enter(info.mr)?) };
            let mr_pointer = mr.as_ref().map_or(0, |mr| pointer(mr.object()));
            w.ext.bind_mw = BindMwWr {
                mw: pointer(mw.object()),
                bind_info: MwBindInfo { mr: mr_pointer, ..info },
                ..bind
            };
            named.mw[i] = Some(mw);
            named.mr[i] = mr;
        }
        Ok(())
    }

    /// See [`gdrcore_core::device::Device::post_recv`].
    ///
    /// # Safety
    /// The list is readable.
    #[inline(always)]
    pub(crate) unsafe fn do_post_recv(
        &self,
        h: Handle,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()> {
        *bad = wr;
        let slot = self.qps.slot(h)?;
        let qp = &slot.more;
        qp.recv.enter()?;
        let outcome = if slot.is(h) {
            // SAFETY: inside the receive flag a QP whose handle lives is not destroyed; the list is
            // readable.
            unsafe { self.receive_list(slot.object(), qp, wr, bad) }
        } else {
            Err(stale(tag::QP, h))
        };
        qp.recv.leave();
        outcome
    }

    /// Posts any list of receives.
    ///
    /// # Safety
    /// `object` is the existing QP of `qp`; the list is readable.
    #[inline(always)]
    pub(crate) unsafe fn receive_list(
        &self,
        object: Object,
        qp: &Qp,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()> {
        let (sge, depth) = (qp.recv_sge.load(Relaxed), qp.recv_depth.load(Relaxed));
        if depth == 0 && !qp.has_receives() {
            let kind = qp_type::name(qp.kind());
            return Err(refuse!(Invalid, "qp: this {kind} QP has no receive queue of its own"));
        }
        // SAFETY: our contract.
        unsafe { post_receives(self.opened.data.post_recv, object, sge, depth, wr, bad) }
    }

    /// See [`gdrcore_core::device::Device::post_srq_recv`].
    ///
    /// # Safety
    /// The list is readable.
    #[inline(always)]
    pub(crate) unsafe fn do_post_srq_recv(
        &self,
        h: Handle,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()> {
        *bad = wr;
        let slot = self.srqs.slot(h)?;
        let srq = &slot.more;
        srq.post.enter()?;
        let outcome = if slot.is(h) {
            let (sge, depth) = (srq.sge.load(Relaxed), srq.depth.load(Relaxed));
            // SAFETY: inside the flag an SRQ whose handle lives is not destroyed; the list is
            // readable.
            unsafe {
                post_receives(self.opened.data.post_srq_recv, slot.object(), sge, depth, wr, bad)
            }
        } else {
            Err(stale(tag::SRQ, h))
        };
        srq.post.leave();
        outcome
    }

    /// See [`gdrcore_core::device::Device::poll_cq`].
    #[inline]
    pub(crate) fn do_poll_cq(&self, h: Handle, wc: &mut [Wc]) -> Result<usize> {
        let room = i32::try_from(wc.len()).unwrap_or(i32::MAX);
        // SAFETY: `wc` has `room` writable entries.
        match unsafe { self.quick_poll_cq(h, room, wc.as_mut_ptr()) } {
            Polled::Done(n) => Ok(n as usize),
            Polled::Failed(n) => Ok(self.explain_all(wc, n as usize)),
            Polled::Nothing(cq, n) => self.polled_nothing(cq, n),
            Polled::Declined => {
                let slot = self.cqs.slot(h)?;
                // Another handle's object, or none; or another thread polls it.
                Err(if slot.is(h) { used_by_two() } else { stale(tag::CQ, h) })
            }
        }
    }

    /// Ends a poll without completions, or with the provider's error `n`. A program that only polls
    /// must also learn that the device is gone, because then no completion comes.
    ///
    /// # Errors
    /// [`Error::NoDevice`]: it is gone; else the provider's error.
    #[inline(never)]
    pub fn polled_nothing(&self, cq: Empty<'_>, n: i32) -> Result<usize> {
        let empty = &cq.0.more.empty;
        // Only one thread polls a CQ, so a load and a store are exact. Several may poll a pinned
        // CQ, and miss a few counts.
        let polls = empty.load(Relaxed).wrapping_add(1);
        empty.store(polls, Relaxed);
        if polls.is_multiple_of(LOOK_EVERY) {
            self.look();
        }
        if n < 0 || self.gone.load(Relaxed) {
            return Err(self.poll_failed(n));
        }
        Ok(0)
    }

    #[cold]
    fn poll_failed(&self, n: i32) -> Error {
        if self.gone.load(Relaxed) {
            return Error::NoDevice;
        }
        // Some providers return −1 or −2 without an errno.
        match n {
            -2..=0 => Error::from_errno(libc::EIO),
            n => Error::from_errno(n.saturating_neg()),
        }
    }
}

/// A request with all fields zero.
pub const EMPTY: SendWr = SendWr {
    wr_id: 0,
    next: core::ptr::null(),
    sg_list: core::ptr::null(),
    num_sge: 0,
    opcode: 0,
    send_flags: 0,
    imm_data: 0,
    wr: WrOp { ud: UdWr { ah: 0, remote_qpn: 0, remote_qkey: 0 } },
    remote_srqn: 0,
    ext: WrExt {
        bind_mw: BindMwWr {
            mw: 0,
            rkey: 0,
            bind_info: MwBindInfo { mr: 0, addr: 0, length: 0, mw_access_flags: 0 },
        },
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::c_int;
    use core::sync::atomic::AtomicU32;

    static TAKEN: AtomicU32 = AtomicU32::new(0);

    /// A NIC that is always faster than the program.
    unsafe extern "C" fn takes_all(_: Object, _: *const RecvWr, _: *mut *const RecvWr) -> c_int {
        TAKEN.fetch_add(1, Relaxed);
        0
    }

    #[test]
    fn a_list_without_end_ends_where_the_queue_would_be_full() {
        let mut wr =
            RecvWr { wr_id: 1, next: core::ptr::null(), sg_list: core::ptr::null(), num_sge: 0 };
        let own = &raw mut wr;
        // SAFETY: the list is this function's own.
        unsafe { (*own).next = own };
        let own = own.cast_const();
        let mut bad = core::ptr::null();
        // SAFETY: a list of one that leads to itself, and a provider that looks at nothing.
        let done = unsafe { post_receives(takes_all, core::ptr::null_mut(), 4, 16, own, &mut bad) };
        assert_eq!((done, bad, TAKEN.load(Relaxed)), (Err(Error::Again), own, 16));
    }
}

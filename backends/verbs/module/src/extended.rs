//! Posts by the extended calls (`ibv_wr_start` to `ibv_wr_complete`).

use core::ffi::{c_int, c_void};
use core::mem::offset_of;

use crate::{code, mlx5};
use gdrcore_core::verbs::opcode;
use gdrcore_core::verbs::types::{qp_type, send_flags, wr_opcode, SendWr, Sge};
use gdrcore_verbs::abi::Object;
use rdma_sys::*;

type AtomicWrite = unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, *const c_void);
type Flush = unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8);

/// Indexes of the entries of `ibv_qp_ex` that headers before rdma-core 44 and 45 do not declare.
/// Each release appends its own after the last one, which was `wr_abort`.
const ATOMIC_WRITE: usize = offset_of!(ibv_qp_ex, wr_abort) + size_of::<usize>();
const FLUSH: usize = ATOMIC_WRITE + size_of::<usize>();

/// The function at such an index.
///
/// # Safety
/// The QP's driver is of a release that has the entry: it has made the QP with that operation.
unsafe fn entry<F>(qp: *mut ibv_qp_ex, place: usize) -> Result<F, c_int> {
    const { assert!(size_of::<F>() == size_of::<usize>()) };
    // SAFETY: our contract.
    let found = unsafe { qp.byte_add(place).cast::<*const c_void>().read() };
    if found.is_null() {
        return Err(libc::EOPNOTSUPP);
    }
    // SAFETY: not null, so the driver's function of that entry; of a pointer's size.
    Ok(unsafe { core::mem::transmute_copy::<*const c_void, F>(&found) })
}

/// Most pieces of inline data of one request: more than queue pairs of any driver have.
const PIECES: usize = 64;

/// Calls an entry that all releases have; it is null where the QP lacks the operation.
macro_rules! call {
    ($qp:expr, $name:ident $(, $argument:expr)*) => {
        match (*$qp).$name {
            Some(f) => f($qp $(, $argument)*),
            None => return Err(libc::EOPNOTSUPP),
        }
    };
}

/// # Safety
/// As documented for the table (`gdrcore_verbs::abi::Module`).
pub unsafe extern "C" fn post_extended(qp: Object, wr: *const SendWr) -> c_int {
    let base: *mut ibv_qp = qp.cast();
    // SAFETY: the table's contract: a live QP.
    let ex = unsafe { ibv_qp_to_qp_ex(base) };
    if ex.is_null() {
        return libc::EOPNOTSUPP;
    }
    // SAFETY: as above.
    let kind = unsafe { (*base).qp_type };
    // SAFETY: as above; of type DRIVER there are DCIs only here.
    let dci = (kind == ibv_qp_type::IBV_QPT_DRIVER).then(|| unsafe { mlx5::Dci::from_qp_ex(ex) });
    let dci = match dci {
        Some(None) => return libc::EOPNOTSUPP,
        Some(dci) => dci,
        None => None,
    };
    // SAFETY: the table's contract; the calls are those of this QP, in their order.
    match unsafe { post(ex, kind == qp_type::XRC_SEND, dci, wr) } {
        Ok(rc) => code(rc),
        Err(e) => {
            // SAFETY: begun in `post`, as nothing fails before that.
            unsafe { (*ex).wr_abort.map(|abort| abort(ex)) };
            e
        }
    }
}

/// Posts a list. After an error the caller aborts the calls.
///
/// # Safety
/// A live QP that has these operations, of type XRC_SEND if `xrc`; a readable list whose objects
/// live.
unsafe fn post(
    ex: *mut ibv_qp_ex,
    xrc: bool,
    dci: Option<mlx5::Dci>,
    wr: *const SendWr,
) -> Result<c_int, c_int> {
    // SAFETY: our contract, for all that follows.
    unsafe {
        let (Some(start), Some(complete)) = ((*ex).wr_start, (*ex).wr_complete) else {
            return Ok(libc::EOPNOTSUPP);
        };
        start(ex);
        let mut next = wr;
        while let Some(w) = next.as_ref() {
            (*ex).wr_id = w.wr_id;
            // Inline data has its own call.
            (*ex).wr_flags = w.send_flags & !send_flags::INLINE;
            request(ex, w)?;
            if !matches!(w.opcode, wr_opcode::LOCAL_INV | wr_opcode::BIND_MW) {
                if xrc {
                    call!(ex, wr_set_xrc_srqn, w.remote_srqn);
                }
                if let Some(dci) = &dci {
                    dci.set_target(&w.ext.dc)?;
                }
            }
            pieces(ex, w)?;
            next = w.next;
        }
        Ok(complete(ex))
    }
}

/// Begins a request.
///
/// # Safety
/// As for [`post`], behind `ibv_wr_start`.
unsafe fn request(ex: *mut ibv_qp_ex, w: &SendWr) -> Result<(), c_int> {
    // SAFETY: our contract, for all that follows.
    unsafe {
        let (rdma, atomic) = (w.wr.rdma, w.wr.atomic);
        match w.opcode {
            wr_opcode::RDMA_WRITE => call!(ex, wr_rdma_write, rdma.rkey, rdma.remote_addr),
            wr_opcode::RDMA_WRITE_WITH_IMM => {
                call!(ex, wr_rdma_write_imm, rdma.rkey, rdma.remote_addr, w.imm_data)
            }
            wr_opcode::SEND => call!(ex, wr_send),
            wr_opcode::SEND_WITH_IMM => call!(ex, wr_send_imm, w.imm_data),
            wr_opcode::SEND_WITH_INV => call!(ex, wr_send_inv, w.imm_data),
            wr_opcode::RDMA_READ => call!(ex, wr_rdma_read, rdma.rkey, rdma.remote_addr),
            wr_opcode::ATOMIC_CMP_AND_SWP => {
                let (compare, swap) = (atomic.compare_add, atomic.swap);
                call!(ex, wr_atomic_cmp_swp, atomic.rkey, atomic.remote_addr, compare, swap)
            }
            wr_opcode::ATOMIC_FETCH_AND_ADD => {
                let add = atomic.compare_add;
                call!(ex, wr_atomic_fetch_add, atomic.rkey, atomic.remote_addr, add)
            }
            wr_opcode::LOCAL_INV => call!(ex, wr_local_inv, w.imm_data),
            wr_opcode::BIND_MW => {
                let b = w.ext.bind_mw;
                let info = ibv_mw_bind_info {
                    mr: pointer(b.bind_info.mr),
                    addr: b.bind_info.addr,
                    length: b.bind_info.length,
                    mw_access_flags: b.bind_info.mw_access_flags,
                };
                call!(ex, wr_bind_mw, pointer(b.mw), b.rkey, &info)
            }
            wr_opcode::ATOMIC_WRITE => {
                let write: AtomicWrite = entry(ex, ATOMIC_WRITE)?;
                let word = word(w);
                write(ex, rdma.rkey, rdma.remote_addr, word.as_ptr().cast())
            }
            wr_opcode::FLUSH => {
                let flush: Flush = entry(ex, FLUSH)?;
                let f = w.wr.flush;
                let (placement, level) = (f.placement as u8, f.level as u8);
                flush(ex, f.rkey, f.remote_addr, f.length as usize, placement, level)
            }
            _ => return Err(libc::EINVAL),
        }
    }
    Ok(())
}

/// A pointer of libibverbs that a request holds in place of a handle.
fn pointer<T>(word: u64) -> *mut T {
    core::ptr::with_exposed_provenance_mut(word as usize)
}

/// The pieces of a request, which need not be aligned.
///
/// # Safety
/// The list is readable.
unsafe fn list(w: &SendWr) -> impl Iterator<Item = Sge> + '_ {
    let n = usize::try_from(w.num_sge).unwrap_or(0);
    // SAFETY: our contract; i < n.
    (0..n).map(|i| unsafe { w.sg_list.add(i).read_unaligned() })
}

/// The 8 bytes of an ATOMIC WRITE.
///
/// # Safety
/// The list is readable, and so is what it leads to.
unsafe fn word(w: &SendWr) -> [u8; 8] {
    let mut word = [0; 8];
    let mut at = 0;
    // SAFETY: our contract.
    for piece in unsafe { list(w) } {
        let n = (piece.length as usize).min(word.len() - at);
        let from: *const u8 = pointer(piece.addr);
        // SAFETY: as above; `n` bytes from `at` are inside the word.
        unsafe { core::ptr::copy_nonoverlapping(from, word[at..].as_mut_ptr(), n) };
        at += n;
    }
    word
}

/// Gives the request its pieces.
///
/// # Safety
/// As for [`request`].
unsafe fn pieces(ex: *mut ibv_qp_ex, w: &SendWr) -> Result<(), c_int> {
    if !opcode::has_data(w.opcode) || w.opcode == wr_opcode::ATOMIC_WRITE {
        return Ok(());
    }
    // SAFETY: our contract, for all that follows.
    unsafe {
        let inline = w.send_flags & send_flags::INLINE != 0;
        let one = if w.num_sge == 1 { list(w).next() } else { None };
        match one {
            Some(s) if inline => {
                call!(ex, wr_set_inline_data, pointer(s.addr), s.length as usize)
            }
            Some(s) => call!(ex, wr_set_sge, s.lkey, s.addr, s.length),
            None if inline => {
                let none = ibv_data_buf { addr: core::ptr::null_mut(), length: 0 };
                let (mut buffers, mut n) = ([none; PIECES], 0);
                for s in list(w) {
                    let to = buffers.get_mut(n).ok_or(libc::EINVAL)?;
                    *to = ibv_data_buf { addr: pointer(s.addr), length: s.length as usize };
                    n += 1;
                }
                call!(ex, wr_set_inline_data_list, n, buffers.as_ptr())
            }
            None => {
                let n = usize::try_from(w.num_sge).unwrap_or(0);
                call!(ex, wr_set_sge_list, n, w.sg_list.cast())
            }
        }
    }
    Ok(())
}

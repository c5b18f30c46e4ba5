//! Requests that `ibv_post_send` does not take: ATOMIC WRITE and FLUSH, and all of a DCI. They are
//! posted by libibverbs' extended calls (`ibv_wr_start` to `ibv_wr_complete`), where NIC, driver
//! and libibverbs have them.

use crate::abi::{caps, Object};
use crate::device::VerbsDevice;
use crate::refused;
use gdrcore_core::error::Error;
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::{access, qp_type, wr_opcode, SendWr};

/// Such opcodes on any queue pair, as bits.
pub(crate) const BITS: u32 = 1 << wr_opcode::ATOMIC_WRITE | 1 << wr_opcode::FLUSH;

/// The first release of rdma-core whose `ibv_qp_ex` has an entry for an opcode, and the
/// capabilities of which a NIC must have one.
const fn needs(opcode: u32) -> (u32, u32) {
    match opcode {
        wr_opcode::FLUSH => (45, caps::FLUSH_GLOBAL | caps::FLUSH_PERSISTENT),
        _ => (44, caps::ATOMIC_WRITE),
    }
}

/// Whether a request goes by the extended calls.
pub(crate) fn takes(kind: u32, opcode: u32) -> bool {
    kind == qp_type::DCI || matches!(opcode, wr_opcode::ATOMIC_WRITE | wr_opcode::FLUSH)
}

/// Whether queue pairs of a type have such an opcode on a NIC that has it.
pub(crate) fn is_known(kind: u32, opcode: u32) -> bool {
    matches!(kind, qp_type::RC | qp_type::XRC_SEND | qp_type::DCI)
        && matches!(opcode, wr_opcode::ATOMIC_WRITE | wr_opcode::FLUSH)
}

impl VerbsDevice {
    /// Whether NIC and libibverbs have an opcode.
    fn has(&self, opcode: u32) -> bool {
        let (release, any) = needs(opcode);
        self.opened.caps & any != 0 && (self.opened.release == 0 || self.opened.release >= release)
    }

    /// The opcodes that a new queue pair is to have beside those of `ibv_post_send`.
    pub(crate) fn extended_wanted(&self, kind: u32) -> u32 {
        let each = [wr_opcode::ATOMIC_WRITE, wr_opcode::FLUSH];
        each.into_iter().filter(|&op| is_known(kind, op) && self.has(op)).map(|op| 1 << op).sum()
    }

    /// The rights to FLUSH that the NIC knows.
    pub(crate) fn flush_rights(&self) -> u32 {
        let right = |cap, right| if self.opened.caps & cap != 0 { right } else { 0 };
        right(caps::FLUSH_GLOBAL, access::FLUSH_GLOBAL)
            | right(caps::FLUSH_PERSISTENT, access::FLUSH_PERSISTENT)
    }

    /// The refusal of an opcode that is not among those of its queue pair.
    #[cold]
    pub(crate) fn lacks_opcode(&self, kind: u32, opcode: u32) -> Error {
        let (release, any) = needs(opcode);
        let (name, have) = (wr_opcode::name(opcode), self.opened.release);
        if self.opened.caps & any == 0 {
            return refuse!(Unsupported, "wr->opcode {name}: this NIC has not got it");
        }
        if have != 0 && have < release {
            return refuse!(
                Unsupported,
                "wr->opcode {name}: this libibverbs is of rdma-core {have}; it is there since \
                 {release}"
            );
        }
        let kind = qp_type::name(kind);
        refuse!(Unsupported, "wr->opcode {name}: this NIC's driver offers it on no {kind} QP")
    }

    /// Posts `n` copied requests by the extended calls. As `ibv_post_send`: on failure `*bad` is
    /// the first request that was not posted.
    ///
    /// # Safety
    /// `object` exists and has all of these opcodes; `wr` is the first of `n` requests of an array,
    /// whose links this changes, with libibverbs' pointers for objects that live.
    pub(crate) unsafe fn post_extended(
        &self,
        object: Object,
        wr: *mut SendWr,
        n: usize,
        bad: &mut *const SendWr,
    ) -> Result<(), Error> {
        *bad = wr;
        // SAFETY: our contract.
        let rc = unsafe { (self.module.post_extended)(object, wr) };
        if rc == 0 {
            return Ok(());
        }
        if n == 1 || refused(rc) != Error::Again {
            return Err(refused(rc));
        }
        // The queue has no room for all of them; perhaps for some.
        for i in 0..n {
            let one = wr.wrapping_add(i);
            *bad = one;
            // SAFETY: i < n, inside the array.
            unsafe { (*one).next = core::ptr::null() };
            // SAFETY: our contract.
            let rc = unsafe { (self.module.post_extended)(object, one) };
            if rc != 0 {
                return Err(refused(rc));
            }
        }
        Ok(())
    }
}

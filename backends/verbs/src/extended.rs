//! Requests that `ibv_post_send` does not take: ATOMIC WRITE and FLUSH, and all of a DCI. They need
//! libibverbs' extended calls (`ibv_wr_start` to `ibv_wr_complete`), and a NIC and a driver that
//! support them.

use crate::abi::{caps, Object};
use crate::device::VerbsDevice;
use crate::refused;
use gdrcore_core::error::Error;
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::{access, qp_type, wr_opcode, SendWr};

/// An opcode that needs the extended calls, and its requirements.
pub struct Extended {
    /// The opcode.
    pub opcode: u32,
    /// Its flag in `ibv_qp_create_send_ops_flags`.
    pub send_ops_flag: u64,
    /// The first release of rdma-core whose `ibv_qp_ex` has an entry for it.
    release: u32,
    /// The capabilities for it; a NIC needs one of them.
    pub caps: &'static [Cap],
}

/// A capability of a NIC for an opcode.
pub struct Cap {
    /// Its bit in `device_cap_flags_ex` (`ib_uverbs_device_cap_flags` of the kernel), which headers
    /// do not name yet.
    pub kernel: u64,
    /// Its bit of [`caps`].
    pub cap: u32,
    /// The access flag that regions can only have with this capability, or 0.
    right: u32,
}

const fn cap(kernel: u64, cap: u32, right: u32) -> Cap {
    Cap { kernel, cap, right }
}

/// All such opcodes of any queue pair.
pub const EXTENDED: [Extended; 2] = [
    Extended {
        opcode: wr_opcode::FLUSH,
        send_ops_flag: 1 << 11,
        release: 45,
        caps: &[
            cap(1 << 38, caps::FLUSH_GLOBAL, access::FLUSH_GLOBAL),
            cap(1 << 39, caps::FLUSH_PERSISTENT, access::FLUSH_PERSISTENT),
        ],
    },
    Extended {
        opcode: wr_opcode::ATOMIC_WRITE,
        send_ops_flag: 1 << 12,
        release: 44,
        caps: &[cap(1 << 40, caps::ATOMIC_WRITE, 0)],
    },
];

/// Their opcodes as bits.
pub(crate) const BITS: u32 = 1 << EXTENDED[0].opcode | 1 << EXTENDED[1].opcode;

/// Whether a request goes by the extended calls.
pub(crate) fn takes(kind: u32, opcode: u32) -> bool {
    kind == qp_type::DCI || BITS >> (opcode & 31) & 1 != 0
}

/// The row of such an opcode, if queue pairs of this type can have it.
pub(crate) fn known(kind: u32, opcode: u32) -> Option<&'static Extended> {
    let reliable = matches!(kind, qp_type::RC | qp_type::XRC_SEND | qp_type::DCI);
    EXTENDED.iter().find(|e| reliable && e.opcode == opcode)
}

impl VerbsDevice {
    /// Whether the NIC has a capability for an opcode.
    fn has_cap(&self, e: &Extended) -> bool {
        e.caps.iter().any(|cap| self.opened.caps & cap.cap != 0)
    }

    /// The opcodes that a new queue pair requests in addition to those of `ibv_post_send`.
    pub(crate) fn extended_wanted(&self, kind: u32) -> u32 {
        let release = self.opened.release;
        EXTENDED
            .iter()
            .filter(|e| known(kind, e.opcode).is_some() && self.has_cap(e))
            .filter(|e| release == 0 || release >= e.release)
            .map(|e| 1 << e.opcode)
            .sum()
    }

    /// The access flags for which the NIC lacks the capability.
    pub(crate) fn unknown_rights(&self) -> u32 {
        let all = EXTENDED.iter().flat_map(|e| e.caps);
        all.filter(|cap| self.opened.caps & cap.cap == 0).map(|cap| cap.right).sum()
    }

    /// The refusal of an opcode that its queue pair lacks.
    #[cold]
    pub(crate) fn lacks_opcode(&self, kind: u32, lacking: &Extended) -> Error {
        let Extended { opcode, release, .. } = *lacking;
        let (name, have) = (wr_opcode::name(opcode), self.opened.release);
        if !self.has_cap(lacking) {
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

    /// Posts `n` copied requests by the extended calls. As with `ibv_post_send`, on failure `*bad`
    /// is the first request that was not posted.
    ///
    /// # Safety
    /// `object` exists and has all of these opcodes; `wr` points to an array of `n` requests, whose
    /// `next` this changes, and libibverbs' pointers in them are of objects that live.
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
        // The queue has no room for all of them, but perhaps for some.
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

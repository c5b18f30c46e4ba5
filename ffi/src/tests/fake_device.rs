//! A fake device for unit tests of the C calls: it counts and records calls.

use crate::c_types::gdrc_context;
use crate::context_device::ContextDevice;
use crate::context_slots::open_test_device;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gdrcore_core::counters::Counters;
use gdrcore_core::device::{AsyncEvent, Device, DeviceAttr, Leaks, MrAttr, MrReg, SrqAttr};
use gdrcore_core::verbs::cause::{Cause, CauseCode};
use gdrcore_core::verbs::types::{
    qp_attr_mask, qp_state, AhAttr, Handle, QpAttr, QpCap, QpInit, RecvWr, SendWr, Wc,
};
use gdrcore_core::{Error, Result};
use std::sync::Mutex;

/// The only handle of each kind that is valid.
pub(crate) const GOOD: Handle = 0x0123_4567_89ab_cdef;
pub(crate) const QPN: u32 = 0x1234;
/// Requests that fit a queue; a list without end stops there, as in a real device.
pub(crate) const DEPTH: usize = 8;

#[derive(Default)]
pub(crate) struct Fake {
    pub(crate) calls: AtomicU64,
    pub(crate) closed: AtomicU32,
    pub(crate) modified: Mutex<Vec<(QpAttr, u32)>>,
    pub(crate) reg: Mutex<Option<MrReg>>,
    pub(crate) ah: Mutex<Option<AhAttr>>,
    /// Fails the transition to this state.
    pub(crate) fail_at: AtomicU32,
    pub(crate) qp_type: AtomicU32,
    pub(crate) event: AtomicU32,
    /// Number of pins of QPs and CQs.
    pub(crate) pins: AtomicU32,
}

impl Fake {
    pub(crate) fn open() -> (&'static Fake, *mut gdrc_context) {
        let fake: &'static Fake = Box::leak(Box::new(Fake {
            fail_at: AtomicU32::new(u32::MAX),
            qp_type: AtomicU32::new(gdrcore_core::verbs::types::qp_type::RC),
            ..Fake::default()
        }));
        (fake, open_test_device(fake))
    }

    fn good(&self, h: Handle) -> Result<()> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if h == GOOD {
            Ok(())
        } else {
            Err(Error::StaleHandle)
        }
    }

    fn state(&self) -> u32 {
        self.modified.lock().unwrap().last().map_or(qp_state::RESET, |(a, _)| a.qp_state)
    }
}

impl ContextDevice for Fake {
    unsafe fn close(&self) -> Leaks {
        self.closed.fetch_add(1, Ordering::Relaxed);
        Leaks { qp: 2, mr: 1, ..Leaks::default() }
    }
}

/// Walks a list as a queue of [`DEPTH`] slots would.
macro_rules! walk {
    ($self:ident, $h:expr, $wr:expr, $bad:expr) => {{
        $self.good($h)?;
        let mut p = $wr;
        for _ in 0..DEPTH {
            *$bad = p;
            // SAFETY: the tests give readable lists.
            let Some(wr) = (unsafe { p.as_ref() }) else { return Ok(()) };
            if !(0..=4).contains(&wr.num_sge) {
                return Err(Error::Invalid);
            }
            p = wr.next;
        }
        *$bad = p;
        if p.is_null() {
            Ok(())
        } else {
            Err(Error::Again)
        }
    }};
}

impl Device for Fake {
    fn query(&self) -> Result<DeviceAttr> {
        Ok(DeviceAttr {
            max_qp: 7,
            max_rd_atomic: 16,
            active_mtu: 5,
            udp_port: 4791,
            gid: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1],
            scope_id: 3,
            ..DeviceAttr::default()
        })
    }
    fn counters(&self) -> Result<Counters> {
        // The first two and the last, whatever their names are.
        let mut values = [0; Counters::NAMES.len()];
        (values[0], values[1]) = (11, 22);
        values[Counters::NAMES.len() - 1] = 99;
        Ok(Counters::of_values(values))
    }
    fn qp_counters(&self, qp: Handle) -> Result<Counters> {
        self.good(qp)?;
        self.counters()
    }
    fn last_cause(&self) -> Result<Cause> {
        Ok(Cause {
            code: CauseCode::RemoteAccess as u32,
            arg0: 0xabcd,
            arg1: 0x1000,
            ..Cause::default()
        })
    }
    fn qp_cause(&self, qp: Handle) -> Result<Cause> {
        self.good(qp)?;
        self.last_cause()
    }
    fn pd_alloc(&self) -> Result<Handle> {
        Ok(GOOD)
    }
    fn pd_dealloc(&self, pd: Handle) -> Result<()> {
        self.good(pd)
    }
    fn mr_reg(&self, reg: &MrReg) -> Result<(Handle, MrAttr)> {
        self.good(reg.pd)?;
        *self.reg.lock().unwrap() = Some(*reg);
        Ok((GOOD, self.mr_query(GOOD)?))
    }
    fn mr_query(&self, mr: Handle) -> Result<MrAttr> {
        self.good(mr)?;
        Ok(MrAttr {
            addr: 0x1000,
            length: 4096,
            iova: 0x8000,
            lkey: 1,
            rkey: 2,
            access: 3,
            provider: 0,
        })
    }
    fn mr_dereg(&self, mr: Handle) -> Result<()> {
        self.good(mr)
    }
    fn mw_alloc(&self, pd: Handle, mw_type: u32) -> Result<(Handle, u32)> {
        self.good(pd)?;
        if !(1..=2).contains(&mw_type) {
            return Err(Error::Invalid);
        }
        Ok((GOOD, 77))
    }
    fn mw_dealloc(&self, mw: Handle) -> Result<()> {
        self.good(mw)
    }
    fn ah_create(&self, pd: Handle, attr: &AhAttr) -> Result<Handle> {
        self.good(pd)?;
        *self.ah.lock().unwrap() = Some(*attr);
        Ok(GOOD)
    }
    fn ah_destroy(&self, ah: Handle) -> Result<()> {
        self.good(ah)
    }
    fn cq_create(&self, cqe: u32) -> Result<(Handle, u32)> {
        if cqe == 0 || cqe > 1 << 20 {
            return Err(Error::Invalid);
        }
        Ok((GOOD, cqe))
    }
    fn cq_resize(&self, cq: Handle, cqe: u32) -> Result<u32> {
        self.good(cq)?;
        self.cq_create(cqe).map(|(_, n)| n)
    }
    fn cq_destroy(&self, cq: Handle) -> Result<()> {
        self.good(cq)
    }
    fn srq_create(&self, pd: Handle, attr: &SrqAttr) -> Result<(Handle, SrqAttr)> {
        self.good(pd)?;
        Ok((GOOD, SrqAttr { max_wr: attr.max_wr.saturating_add(1), ..*attr }))
    }
    fn srq_create_xrc(&self, of: [Handle; 3], attr: &SrqAttr) -> Result<(Handle, SrqAttr)> {
        for handle in of {
            self.good(handle)?;
        }
        self.srq_create(GOOD, attr)
    }
    fn xrcd_alloc(&self) -> Result<Handle> {
        Ok(GOOD)
    }
    fn xrcd_dealloc(&self, xrcd: Handle) -> Result<()> {
        self.good(xrcd)
    }
    fn srq_modify(&self, srq: Handle, _: u32) -> Result<()> {
        self.good(srq)
    }
    fn srq_resize(&self, srq: Handle, max_wr: u32, _: Option<u32>) -> Result<u32> {
        self.good(srq)?;
        Ok(max_wr)
    }
    fn srq_number(&self, srq: Handle) -> Result<u32> {
        self.good(srq)?;
        Ok(0x12_3456)
    }
    fn srq_query(&self, srq: Handle) -> Result<SrqAttr> {
        self.good(srq)?;
        Ok(SrqAttr { max_wr: 5, max_sge: 6, srq_limit: 7 })
    }
    fn srq_destroy(&self, srq: Handle) -> Result<()> {
        self.good(srq)
    }
    fn qp_create(&self, init: &QpInit) -> Result<(Handle, u32, QpCap)> {
        self.good(init.pd)?;
        self.qp_type.store(init.qp_type, Ordering::Relaxed);
        Ok((GOOD, QPN, QpCap { max_send_wr: init.cap.max_send_wr.saturating_add(1), ..init.cap }))
    }
    fn qp_modify(&self, qp: Handle, attr: &QpAttr, mask: u32) -> Result<()> {
        self.good(qp)?;
        if attr.qp_state == self.fail_at.load(Ordering::Relaxed) {
            return Err(Error::NoMemory);
        }
        self.modified.lock().unwrap().push((*attr, mask));
        Ok(())
    }
    fn qp_query(&self, qp: Handle) -> Result<(QpAttr, QpInit)> {
        self.good(qp)?;
        let init =
            QpInit { pd: GOOD, qp_type: self.qp_type.load(Ordering::Relaxed), ..QpInit::default() };
        Ok((
            QpAttr {
                qp_state: self.state(),
                sq_psn: 9,
                rate_limit_bytes_per_s: 10,
                ..QpAttr::default()
            },
            init,
        ))
    }
    fn qp_reset(&self, qp: Handle) -> Result<()> {
        self.qp_modify(
            qp,
            &QpAttr { qp_state: qp_state::RESET, ..QpAttr::default() },
            qp_attr_mask::STATE,
        )
    }
    fn qp_destroy(&self, qp: Handle) -> Result<()> {
        self.good(qp)
    }
    fn qp_num(&self, qp: Handle) -> Result<u32> {
        self.good(qp)?;
        Ok(QPN)
    }
    unsafe fn post_send(
        &self,
        qp: Handle,
        wr: *const SendWr,
        bad: &mut *const SendWr,
    ) -> Result<()> {
        walk!(self, qp, wr, bad)
    }
    unsafe fn post_recv(
        &self,
        qp: Handle,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()> {
        walk!(self, qp, wr, bad)
    }
    unsafe fn post_srq_recv(
        &self,
        srq: Handle,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()> {
        walk!(self, srq, wr, bad)
    }
    fn poll_cq(&self, cq: Handle, wc: &mut [Wc]) -> Result<usize> {
        self.good(cq)?;
        for w in wc.iter_mut().take(2) {
            *w = Wc { wr_id: 42, opcode: 128, ..Wc::default() };
        }
        Ok(wc.len().min(2))
    }
    fn cq_arm(&self, cq: Handle, _: bool) -> Result<()> {
        self.good(cq)
    }
    fn cq_event(&self) -> Result<Option<Handle>> {
        Ok((self.event.load(Ordering::Relaxed) != 0).then_some(GOOD))
    }
    fn async_event(&self) -> Result<Option<AsyncEvent>> {
        let event = self.event.load(Ordering::Relaxed);
        Ok((event != 0).then_some(AsyncEvent { event, reserved: 0, handle: GOOD }))
    }
    fn qp_pin(&self, qp: Handle) -> Result<()> {
        self.good(qp)?;
        self.pins.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn qp_unpin(&self, _: Handle) -> Result<()> {
        self.pins.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
    fn cq_pin(&self, cq: Handle) -> Result<()> {
        self.qp_pin(cq)
    }
    fn cq_unpin(&self, cq: Handle) -> Result<()> {
        self.qp_unpin(cq)
    }
    fn progress(&self) -> Result<usize> {
        Ok(usize::MAX)
    }
    fn fd(&self) -> Result<i32> {
        Ok(5)
    }
    fn arm(&self) -> Result<bool> {
        Ok(true)
    }
    fn wait(&self, timeout_ms: i32) -> Result<bool> {
        if timeout_ms == 77 {
            return Err(Error::Os(-3));
        }
        Ok(timeout_ms != 0)
    }
    fn helper(&self, _: bool) -> Result<()> {
        Ok(())
    }
    unsafe fn arena_add(&self, _: *mut u8, bytes: usize) -> Result<()> {
        if bytes < 4096 {
            return Err(Error::Invalid);
        }
        Ok(())
    }
    fn leaks(&self) -> Result<Leaks> {
        Ok(Leaks::default())
    }
}

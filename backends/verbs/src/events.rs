//! Waiting, events of CQs, and the kernel's events of QPs, ports and the device.
//!
//! The program's descriptor is an epoll set of three: the completion channel, the kernel's
//! asynchronous events, and an eventfd. The eventfd is readable while events that
//! [`VerbsDevice::look`] has taken wait.

use core::sync::atomic::Ordering::Relaxed;

use crate::abi::{Event, Object};
use crate::device::VerbsDevice;
use crate::errno;
use crate::sys::{now_ns, sleep_on};
use gdrcore_core::device::{async_event, AsyncEvent};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::Handle;

impl VerbsDevice {
    /// Refuses a size that no CQ of the NIC has.
    pub(crate) fn check_cqe(&self, cqe: u32) -> Result<()> {
        match self.opened.max_cqe {
            most if (1..=most).contains(&cqe) => Ok(()),
            most => Err(refuse!(Invalid, "cqe {cqe}: 1 to {most}, the NIC's limit")),
        }
    }

    /// Makes a CQ whose events go to a channel of libibverbs; `handle` 0: the device's own channel.
    pub(crate) fn cq_with(
        &self,
        cqe: u32,
        handle: Handle,
        channel: Object,
    ) -> Result<(Handle, u32)> {
        self.check_cqe(cqe)?;
        let mut given = cqe;
        let cq = self.add(&self.cqs, |cookie, more| {
            let mut cq = core::ptr::null_mut();
            // SAFETY: an open context and a channel of it, writable results.
            errno(unsafe {
                (self.module.cq_create)(self.opened.context, channel, cookie, &mut given, &mut cq)
            })?;
            more.empty.store(0, Relaxed);
            more.channel.store(handle, Relaxed);
            Ok(cq)
        })?;
        Ok((cq, given))
    }

    /// Takes the event of one armed CQ of the device's own channel.
    pub(crate) fn take_cq_event(&self) -> Result<Option<Handle>> {
        self.take_event_of(self.opened.channel)
    }

    /// Takes the event of one armed CQ of a channel. Skips events of CQs that were destroyed
    /// meanwhile.
    pub(crate) fn take_event_of(&self, channel: Object) -> Result<Option<Handle>> {
        loop {
            let mut cq = 0;
            // SAFETY: a live, non-blocking channel of the device, a writable result.
            match unsafe { (self.module.cq_event)(channel, &mut cq) } {
                0 => {}
                libc::EAGAIN => return Ok(None),
                libc::EIO | libc::ENODEV => {
                    self.look();
                    return Err(Error::NoDevice);
                }
                e => return Err(Error::from_errno(e)),
            }
            if self.cqs.enter(cq).is_ok() {
                return Ok(Some(cq));
            }
        }
    }

    /// Sleeps until a channel has an event, and takes it. Keeps the device's events that come
    /// meanwhile for the program.
    pub(crate) fn wait_for_event_of(
        &self,
        channel: Object,
        fd: i32,
        timeout_ms: i32,
    ) -> Result<Option<Handle>> {
        let end = u64::try_from(timeout_ms)
            .map_or(u64::MAX, |ms| now_ns().saturating_add(ms * 1_000_000));
        loop {
            if let Some(cq) = self.take_event_of(channel)? {
                return Ok(Some(cq));
            }
            if self.gone.load(Relaxed) {
                return Err(Error::NoDevice);
            }
            let left = end.saturating_sub(now_ns());
            if left == 0 {
                return Ok(None);
            }
            let ms = if end == u64::MAX {
                -1
            } else {
                i32::try_from(left.div_ceil(1_000_000)).unwrap_or(i32::MAX)
            };
            if sleep_on([fd, self.opened.async_fd], ms)? {
                self.look();
            }
        }
    }

    pub(crate) fn take_async_event(&self) -> Option<AsyncEvent> {
        self.look();
        self.events.take()
    }

    /// Takes the kernel's events. So causes are recorded and a removal is noticed, even if the
    /// program takes no events. Cost: one system call if there is none.
    pub(crate) fn look(&self) {
        loop {
            let mut event = Event::default();
            // SAFETY: an open device, a writable result.
            let rc = unsafe { (self.module.async_event)(self.opened.context, &mut event) };
            if rc != 0 {
                if rc != libc::EAGAIN && rc != libc::EINTR && !self.gone.swap(true, Relaxed) {
                    self.note_device(CauseCode::DeviceGone, rc.unsigned_abs().into());
                    self.events.keep(AsyncEvent {
                        event: async_event::DEVICE_FATAL,
                        reserved: 0,
                        handle: 0,
                    });
                }
                return;
            }
            self.note_event(&event);
        }
    }

    /// Records an event of the kernel, and keeps it for the program.
    pub(crate) fn note_event(&self, event: &Event) {
        match event.kind {
            async_event::QP_FATAL | async_event::QP_REQ_ERR | async_event::QP_ACCESS_ERR => {
                if let Ok(qp) = self.qps.enter(event.cookie) {
                    let code = match event.kind {
                        async_event::QP_REQ_ERR => CauseCode::PeerBadRequest,
                        async_event::QP_ACCESS_ERR => CauseCode::PeerLacksAccess,
                        _ => CauseCode::DeviceError,
                    };
                    self.note(qp.more(), code, 0, (0, 0));
                }
            }
            async_event::CQ_ERR => self.note_device(CauseCode::CqOverrun, event.cookie),
            async_event::DEVICE_FATAL => {
                if self.gone.swap(true, Relaxed) {
                    // This thread had the event while another one found the device gone.
                    return;
                }
                self.note_device(CauseCode::DeviceGone, 0);
            }
            async_event::PORT_ERR => self.note_device(CauseCode::PortDown, event.cookie),
            _ => {}
        }
        let handle = if event.object != 0 { event.cookie } else { 0 };
        self.events.keep(AsyncEvent { event: event.kind, reserved: 0, handle });
    }
}

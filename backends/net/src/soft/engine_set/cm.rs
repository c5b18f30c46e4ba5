//! The connection manager of a device of several engines: that of the first engine, with queue
//! pairs of all of them.

use super::{inner, EngineSet};
use crate::clock::now_ns;
use crate::soft::cm::next_event;
use crate::soft::{witness, SoftDevice};
use gdrcore_core::cm::general::Datagram;
use gdrcore_core::cm::mad::MAD_LEN;
use gdrcore_core::cm::types::{CmEvent, ConnParam};
use gdrcore_core::cm::Cm;
use gdrcore_core::device::{CmDevice, Device};
use gdrcore_core::engine::cm_qps::{self, ManagedQps};
use gdrcore_core::error::Result;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::verbs::types::{AhAttr, Handle, QpAttr, QpInit};

/// The first engine's connection manager and the queue pairs of the device, which it knows by the
/// program's handles. Each call takes the lock of one engine.
struct AllQps<'d>(&'d EngineSet);

impl ManagedQps for AllQps<'_> {
    fn address(&mut self, to: &AhAttr) -> Result<PeerAddr> {
        self.0.manager().lock()?.address(to)
    }

    fn with_cm<R>(&mut self, f: impl FnOnce(&mut Cm) -> R) -> R {
        f(self.0.manager().lock_control().cm())
    }

    fn query(&self, qp: Handle) -> Result<(QpAttr, QpInit)> {
        self.0.qp_query(qp)
    }

    fn number(&self, qp: Handle) -> Result<u32> {
        self.0.qp_num(qp)
    }

    fn modify(&mut self, _: u64, qp: Handle, attr: &QpAttr, m: u32) -> Result<()> {
        self.0.qp_modify(qp, attr, m)
    }

    fn note_failed(&mut self, now: u64, e: &CmEvent) {
        let (engine, e) = self.0.of_event(e);
        engine.lock_control().cm_note_failed(now, &e);
    }
}

impl EngineSet {
    /// [`SoftDevice::drain_and_ack`] of all engines.
    fn drain_and_ack(&self) {
        self.engines.iter().for_each(|engine| engine.drain_and_ack(None));
    }

    /// The engine whose connection manager is the device's.
    fn manager(&self) -> &'static SoftDevice {
        self.engines.first()
    }

    /// The engine of an event's queue pair, and the event as that engine knows it.
    fn of_event(&self, e: &CmEvent) -> (&'static SoftDevice, CmEvent) {
        let engine = match e.qp {
            0 => self.manager(),
            // The program has given it, so its engine exists.
            qp => self.of(qp).map_or(self.manager(), |(_, engine, _)| engine),
        };
        (engine, CmEvent { qp: inner(e.qp), ..*e })
    }

    /// [`SoftDevice::send_general`].
    ///
    /// # Errors
    /// As there.
    pub fn send_general(&self, to: &AhAttr, mad: &[u8; MAD_LEN]) -> Result<()> {
        self.manager().send_general(to, mad)
    }

    /// [`SoftDevice::take_general`], of any engine: which of them gets a packet to QP1 that names
    /// none is by chance.
    ///
    /// # Errors
    /// As there.
    pub fn take_general(&self) -> Result<Option<Datagram>> {
        for (_, engine) in self.engines.numbered() {
            if let Some(found) = engine.take_general()? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Makes a change of the connection manager and queue pairs, then sends the messages that it
    /// caused.
    fn manage<R>(&self, change: impl FnOnce(&mut AllQps<'_>, u64) -> R) -> Result<R> {
        self.fork.check()?;
        let done = change(&mut AllQps(self), now_ns());
        self.manager().try_send();
        Ok(done)
    }
}

impl CmDevice for EngineSet {
    fn create(&self, port_space: u16, context: u64) -> Result<Handle> {
        self.manager().create(port_space, context)
    }

    fn set_context(&self, id: Handle, context: u64) -> Result<()> {
        self.manager().set_context(id, context)
    }

    fn bind(&self, id: Handle, port: u16) -> Result<u16> {
        self.manager().bind(id, port)
    }

    fn announce(&self, id: Handle, soon: bool) -> Result<()> {
        CmDevice::announce(self.manager(), id, soon)
    }

    fn listen(&self, id: Handle, backlog: u32) -> Result<()> {
        self.manager().listen(id, backlog)
    }

    fn connect(
        &self,
        id: Handle,
        to: &AhAttr,
        port: u16,
        qp: Handle,
        param: &ConnParam<'_>,
    ) -> Result<()> {
        let param = self.manager().request(to, param)?;
        self.manage(|qps, now| cm_qps::connect(qps, now, id, to, port, qp, &param))?
    }

    fn accept(&self, id: Handle, qp: Handle, param: &ConnParam<'_>) -> Result<()> {
        self.manage(|qps, now| cm_qps::accept(qps, now, id, qp, param))?
    }

    fn establish(&self, id: Handle) -> Result<()> {
        self.manager().establish(id)
    }

    fn reject(&self, id: Handle, private_data: &[u8]) -> Result<()> {
        self.manager().reject(id, private_data)
    }

    fn disconnect(&self, id: Handle) -> Result<()> {
        self.fork.check()?;
        // The last ACK leaves first, of whatever engine the queue pair is.
        self.drain_and_ack();
        self.manage(|qps, now| cm_qps::disconnect(qps, now, id))?
    }

    fn destroy(&self, id: Handle) -> Result<()> {
        self.fork.check()?;
        self.drain_and_ack();
        self.manager().destroy(id)
    }

    fn qp_attr(&self, id: Handle, state: u32) -> Result<(QpAttr, u32)> {
        self.manager().qp_attr(id, state)
    }

    fn event(&self) -> Result<Option<CmEvent>> {
        let run = || self.progress().unwrap_or(0);
        next_event(
            self.manager(),
            run,
            || self.drain_and_ack(),
            || {
                self.manage(|qps, now| {
                    let event = cm_qps::event(qps, now);
                    let at = event.as_ref().map(|e| self.of_event(e));
                    let cause = at.map_or_else(Default::default, |(engine, e)| {
                        let mut g = engine.lock_control();
                        witness::explain(&mut g, now, &e);
                        g.last_cause()
                    });
                    (event, witness::gather(&mut self.manager().lock_control(), cause))
                })
            },
        )
    }
}

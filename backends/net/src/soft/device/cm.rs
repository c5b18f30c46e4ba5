//! The connection manager of a device: the first engine's, with queue pairs of all engines.

use super::SoftDevice;
use crate::clock::now_ns;
use crate::soft::peers::witness;
use crate::soft::SoftEngine;
use gdrcore_core::cm::mad::MAD_LEN;
use gdrcore_core::cm::other_mads::OtherMad;
use gdrcore_core::cm::types::{CmEvent, ConnParam};
use gdrcore_core::cm::Cm;
use gdrcore_core::device::{CmDevice, Device};
use gdrcore_core::engine::cm_qps::{self, ManagedQps};
use gdrcore_core::error::Result;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::verbs::types::{qp_attr_mask, AhAttr, Handle, QpAttr, QpInit};

/// The first engine's connection manager and the queue pairs of the device, which it knows by the
/// program's handles. Each call takes the lock of one engine.
struct AllQps<'d>(&'d SoftDevice);

impl ManagedQps for AllQps<'_> {
    type Cm = Cm;

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

    fn modify(&mut self, now: u64, qp: Handle, attr: &QpAttr, m: u32) -> Result<()> {
        let (k, engine, qp) = self.0.resolve(qp)?;
        if m & qp_attr_mask::DEST_QPN != 0 {
            self.0.link_to(k, attr.dest_qp_num)?;
        }
        let mut held = engine.lock_control();
        if m & qp_attr_mask::AV != 0 {
            // No link is requested from a router: the end of a link could overtake the DREQ, which
            // the router carries.
            engine.choose_path(&mut held, &attr.ah, Some(attr.dest_qp_num), None)?;
        }
        engine.modify_locked(held, now, qp, attr, m)
    }

    fn note_failed(&mut self, now: u64, e: &CmEvent) {
        let (engine, e) = self.0.event_engine(e);
        engine.lock_control().cm_note_failed(now, &e);
    }
}

impl SoftDevice {
    /// [`SoftEngine::drain_and_ack`] of all engines.
    fn drain_and_ack(&self) {
        self.engines.iter().for_each(|engine| engine.drain_and_ack(None));
    }

    /// Whether [`CmDevice::event`] returns an event of the packets that the engines have received.
    pub fn has_cm_events(&self) -> bool {
        self.manager().lock().is_ok_and(|g| g.has_cm_events())
    }

    /// The engine with the device's connection manager.
    fn manager(&self) -> &'static SoftEngine {
        self.engines.first()
    }

    /// The engine of an event's queue pair, and the event as that engine knows it.
    fn event_engine(&self, e: &CmEvent) -> (&'static SoftEngine, CmEvent) {
        let engine = match e.qp {
            0 => self.manager(),
            // The program gave this handle, so its engine exists.
            qp => self.resolve(qp).map_or(self.manager(), |(_, engine, _)| engine),
        };
        (engine, CmEvent { qp: self.engine_handle(e.qp), ..*e })
    }

    /// Sends a datagram of another management class than communication management, from QP1 to QP1.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::Again`]: others have yet to leave. [`gdrcore_core::Error::Invalid`]:
    /// the class, or no address of one host. [`gdrcore_core::Error::Unsupported`]: a router that
    /// carries no datagrams.
    pub fn send_other_mad(&self, to: &AhAttr, mad: &[u8; MAD_LEN]) -> Result<()> {
        self.manager().send_other_mad(to, mad)
    }

    /// Takes the next datagram of another management class, from any engine: a packet to QP1 that
    /// names no engine comes to one by chance. [`EventSink::other_mad_event`] tells of it.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::OwnerDead`]: in a child of fork.
    ///
    /// [`EventSink::other_mad_event`]: crate::soft::EventSink::other_mad_event
    pub fn take_other_mad(&self) -> Result<Option<OtherMad>> {
        for engine in self.engines.iter() {
            if let Some(found) = engine.lock()?.cm().take_other_mad() {
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

/// Calls of [`CmDevice`] that the manager answers under the lock of its engine.
macro_rules! by_manager {
    ($(fn $call:ident($($arg:ident: $type:ty),*) -> $result:ty;)*) => {$(
        fn $call(&self, $($arg: $type),*) -> Result<$result> {
            self.manager().lock()?.cm().$call($($arg),*)
        }
    )*};
}

impl CmDevice for SoftDevice {
    by_manager! {
        fn create(port_space: u16, context: u64) -> Handle;
        fn set_context(id: Handle, context: u64) -> ();
        fn bind(id: Handle, port: u16) -> u16;
        fn qp_attr(id: Handle, state: u32) -> (QpAttr, u32);
    }

    fn announce(&self, id: Handle, soon: bool) -> Result<()> {
        self.manager().announce_service(id, soon)
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
        self.manager().manage(|g, _| g.cm().establish(id))
    }

    fn reject(&self, id: Handle, private_data: &[u8]) -> Result<()> {
        self.manager().manage(|g, now| g.cm().reject(now, id, private_data))
    }

    fn disconnect(&self, id: Handle) -> Result<()> {
        self.fork.check()?;
        // The last ACKs of all engines leave first: at the end of a connection the peer flushes
        // requests without an ACK.
        self.drain_and_ack();
        self.manage(|qps, now| cm_qps::disconnect(qps, now, id))?
    }

    fn destroy(&self, id: Handle) -> Result<()> {
        self.fork.check()?;
        // As in `disconnect`.
        self.drain_and_ack();
        self.manager().destroy_id(id)
    }

    fn event(&self) -> Result<Option<CmEvent>> {
        // The engines run here, for a program that only waits for events.
        if !self.has_cm_events() {
            self.progress()?;
        }
        // The end of a connection flushes its requests, so earlier packets are handled first: the
        // message of the end comes through the port, and ACKs of the requests may lie in a link.
        if self.has_cm_events() {
            self.drain_and_ack();
        }
        let (event, news) = self.manage(|qps, now| {
            let event = cm_qps::take_event(qps, now);
            let at = event.as_ref().map(|e| self.event_engine(e));
            let cause = at.map_or_else(Default::default, |(engine, e)| {
                let mut g = engine.lock_control();
                witness::explain(&mut g, now, &e);
                g.last_cause()
            });
            (event, witness::gather(&mut self.manager().lock_control(), cause))
        })?;
        witness::print(&news, event.as_ref());
        Ok(event)
    }
}

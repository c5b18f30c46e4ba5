//! [`SoftDevice`]'s connection manager: the engine's, under the lock, and a round that sends its
//! messages.

use super::witness;
use super::SoftDevice;
use crate::clock::now_ns;
use gdrcore_core::cm::general::Datagram;
use gdrcore_core::cm::mad::MAD_LEN;
use gdrcore_core::cm::types::{CmEvent, ConnParam};
use gdrcore_core::device::{CmDevice, Device};
use gdrcore_core::engine::Guard;
use gdrcore_core::error::Result;
use gdrcore_core::verbs::types::{AhAttr, Handle, QpAttr};

/// Control: the connection manager.
impl SoftDevice {
    /// Makes a change under the lock, then sends the messages that it caused.
    fn manage<R>(&self, change: impl FnOnce(&mut Guard<'_>, u64) -> Result<R>) -> Result<R> {
        let mut guard = self.lock()?;
        let done = change(&mut guard, now_ns());
        drop(guard);
        self.try_send();
        done
    }

    /// Sends a datagram of another management class than communication management, from QP1 to QP1.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::Again`]: others have yet to leave. [`gdrcore_core::Error::Invalid`]:
    /// the class, or no address of one host. [`gdrcore_core::Error::Unsupported`]: a router that
    /// carries no datagrams.
    pub fn send_general(&self, to: &AhAttr, mad: &[u8; MAD_LEN]) -> Result<()> {
        self.check_datagrams(to)?;
        self.manage(|g, _| {
            let peer = g.address(to)?;
            g.cm().send_general(Datagram { peer, mad: *mad })
        })
    }

    /// The next datagram of another class that has arrived. [`EventSink::general_event`] tells
    /// of it.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::OwnerDead`]: in a child of fork.
    ///
    /// [`EventSink::general_event`]: super::EventSink::general_event
    pub fn take_general(&self) -> Result<Option<Datagram>> {
        Ok(self.lock()?.cm().take_general())
    }

    /// The parameters of a request for a connection: both ends use its path MTU.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::Unsupported`]: a router that carries no datagrams; as
    /// [`Device::path_mtu`].
    pub(super) fn request<'p>(&self, to: &AhAttr, p: &ConnParam<'p>) -> Result<ConnParam<'p>> {
        self.check_datagrams(to)?;
        let path_mtu = if p.path_mtu == 0 { self.path_mtu(to)? } else { p.path_mtu };
        Ok(ConnParam { path_mtu, ..*p })
    }
}

impl CmDevice for SoftDevice {
    fn create(&self, port_space: u16, context: u64) -> Result<Handle> {
        self.lock()?.cm().create(port_space, context)
    }

    fn set_context(&self, id: Handle, context: u64) -> Result<()> {
        self.lock()?.cm().set_context(id, context)
    }

    fn bind(&self, id: Handle, port: u16) -> Result<u16> {
        self.lock()?.cm().bind(id, port)
    }

    fn announce(&self, id: Handle, soon: bool) -> Result<()> {
        self.fork.check()?;
        if soon {
            self.offer_service(id)?;
        }
        let mut held = self.lock()?;
        let done = held.announce(id, soon);
        drop(held);
        if !soon {
            self.withdraw_service(id);
        }
        done
    }

    fn listen(&self, id: Handle, backlog: u32) -> Result<()> {
        self.fork.check()?;
        self.offer_service(id)?;
        let mut held = self.lock()?;
        let listens = held.listen(id, backlog);
        drop(held);
        // Requests that waited for the listener may be refused now.
        self.try_send();
        listens
    }

    fn connect(
        &self,
        id: Handle,
        to: &AhAttr,
        port: u16,
        qp: Handle,
        param: &ConnParam<'_>,
    ) -> Result<()> {
        let param = self.request(to, param)?;
        self.manage(|g, now| g.cm_connect(now, id, to, port, qp, &param))
    }

    fn accept(&self, id: Handle, qp: Handle, param: &ConnParam<'_>) -> Result<()> {
        self.fork.check()?;
        self.manage_paths(|g, now, path| g.cm_accept(now, id, qp, param, path))
    }

    fn establish(&self, id: Handle) -> Result<()> {
        self.manage(|g, _| g.cm().establish(id))
    }

    fn reject(&self, id: Handle, private_data: &[u8]) -> Result<()> {
        self.manage(|g, now| g.cm().reject(now, id, private_data))
    }

    fn disconnect(&self, id: Handle) -> Result<()> {
        self.fork.check()?;
        // The last ACK leaves first: the peer flushes what has none when it hears of the end.
        self.drain_and_ack(None);
        self.manage(|g, now| g.cm_disconnect(now, id))
    }

    fn destroy(&self, id: Handle) -> Result<()> {
        self.fork.check()?;
        // As in `disconnect`.
        self.drain_and_ack(None);
        self.manage(|g, now| g.cm().destroy(now, id))?;
        self.lock_control().withdraw(id);
        self.withdraw_service(id);
        Ok(())
    }

    fn qp_attr(&self, id: Handle, state: u32) -> Result<(QpAttr, u32)> {
        self.lock()?.cm().qp_attr(id, state)
    }

    fn event(&self) -> Result<Option<CmEvent>> {
        next_event(
            self,
            || self.try_round(None),
            || self.drain_and_ack(None),
            || {
                let mut news = witness::News::default();
                let event = self.manage_paths(|g, now, path| {
                    let event = g.cm_event(now, path);
                    if let Some(e) = &event {
                        witness::explain(g, now, e);
                    }
                    news = witness::gather(g, g.last_cause());
                    event
                });
                Ok((event, news))
            },
        )
    }
}

/// The next event of the connection manager of an engine. `run` and `drain` are of all engines of
/// the device, `take` takes the event and what there is to print of it.
pub(super) fn next_event(
    manager: &SoftDevice,
    run: impl FnOnce() -> usize,
    drain: impl FnOnce(),
    take: impl FnOnce() -> Result<(Option<CmEvent>, witness::News)>,
) -> Result<Option<CmEvent>> {
    // A program that only waits for events runs the engines here.
    if !manager.lock()?.has_cm_events() {
        run();
    }
    // What came before the end of a connection is taken first, as that flushes its requests: the
    // message of the end comes through the port, and their ACKs may lie in a link.
    let has_some = manager.lock()?.has_cm_events();
    if has_some {
        drain();
    }
    let (event, news) = take()?;
    witness::print(&news, event.as_ref());
    Ok(event)
}

//! The connection manager of a remote device.
//!
//! While an event waits, a socket holds a message; a call takes the event.

use super::super::call::{self, CmParam};
use super::*;
use gdrcore_core::cm::arrival;
use gdrcore_core::cm::types::{cm_event, CmEvent, ConnParam, DATA_MAX};
use gdrcore_core::device::{CmDevice, Device};
use gdrcore_core::verbs::types::{AhAttr, QpAttr};

/// What tells of events.
pub(super) struct Bell {
    fd: OwnedFd,
    /// A message was taken from it, and the event was not.
    heard: bool,
    /// Ids and their contexts, for their last event when the router ends.
    ids: Vec<(Handle, u64)>,
}

impl Bell {
    fn forget(&mut self, id: Handle) {
        self.ids.retain(|known| known.0 != id);
    }
}

/// Private data, for a message.
fn bytes(data: &[u8]) -> Result<Vec<u8>> {
    match data.len() {
        n if n > DATA_MAX => {
            Err(refuse!(MessageSize, "private data of {n} bytes: at most {DATA_MAX}"))
        }
        _ => Ok(data.to_vec()),
    }
}

fn param(p: &ConnParam<'_>) -> Result<CmParam> {
    Ok((p.with_data(&[]), bytes(p.private_data)?))
}

impl RemoteDevice {
    fn cm_bell(&self) -> MutexGuard<'_, Option<Bell>> {
        self.cm_bell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the connection manager, unless it is open.
    pub(super) fn open_cm(&self) -> Result<()> {
        let mut bell = self.cm_bell();
        if bell.is_none() {
            let ((), fd) = self.ask_fd::<call::CmOpen, _>(&(), |(), fd| Ok(fd), |()| ())?;
            watch(&self.any, fd.as_raw_fd())?;
            *bell = Some(Bell { fd, heard: false, ids: Vec::new() });
        }
        Ok(())
    }

    /// Whether an event of the connection manager waits. The device's descriptor is not readable
    /// for it any more: another thread is to call [`CmDevice::event`].
    ///
    /// # Errors
    /// ENOTCONN: the router has ended, or has ended the session.
    pub fn hears_cm(&self) -> Result<bool> {
        self.fork.check()?;
        let mut bell = self.cm_bell();
        let Some(bell) = bell.as_mut() else { return Ok(false) };
        bell.heard |= self.event(bell.fd.as_fd())?.is_some();
        Ok(bell.heard)
    }

    /// Keeps an id, with a context.
    fn note_id(&self, id: Handle, context: u64) {
        if let Some(bell) = self.cm_bell().as_mut() {
            bell.forget(id);
            bell.ids.push((id, context));
        }
    }

    /// The device is gone, with the router: what is told to each id that lives, once.
    fn removal(&self) -> Option<CmEvent> {
        let (id, context) = self.cm_bell().as_mut()?.ids.pop()?;
        let event = cm_event::DEVICE_REMOVAL;
        Some(CmEvent { event, id, context, arrival: arrival(), ..CmEvent::default() })
    }

    /// The router may have moved a queue pair.
    fn follow(&self, qp: Handle) {
        if let Some((attr, _)) = (qp != 0).then(|| self.qp_query(qp).ok()).flatten() {
            self.note_state(qp, attr.qp_state);
        }
    }
}

impl CmDevice for RemoteDevice {
    asked! {
        fn bind(id: Handle, port: u16) -> u16 = CmBind(&(id, port));
        fn announce(id: Handle, soon: bool) -> () = CmAnnounce(&(id, soon));
        fn listen(id: Handle, backlog: u32) -> () = CmListen(&(id, backlog));
        fn establish(id: Handle) -> () = CmEstablish(&id);
        fn reject(id: Handle, private_data: &[u8]) -> () = CmReject(&(id, bytes(private_data)?));
        fn disconnect(id: Handle) -> () = CmDisconnect(&id);
        fn qp_attr(id: Handle, state: u32) -> (QpAttr, u32) = CmQpAttr(&(id, state));
    }

    fn create(&self, port_space: u16, context: u64) -> Result<Handle> {
        let id = self.ask::<call::CmCreate>(&(port_space, context))?;
        self.note_id(id, context);
        Ok(id)
    }
    fn set_context(&self, id: Handle, context: u64) -> Result<()> {
        self.ask::<call::CmSetContext>(&(id, context))?;
        self.note_id(id, context);
        Ok(())
    }
    fn connect(
        &self,
        id: Handle,
        to: &AhAttr,
        port: u16,
        qp: Handle,
        p: &ConnParam<'_>,
    ) -> Result<()> {
        self.ask::<call::CmConnect>(&((id, *to, port), qp, param(p)?))?;
        self.follow(qp);
        Ok(())
    }
    fn accept(&self, id: Handle, qp: Handle, p: &ConnParam<'_>) -> Result<()> {
        self.ask::<call::CmAccept>(&(id, qp, param(p)?))?;
        self.follow(qp);
        Ok(())
    }
    fn destroy(&self, id: Handle) -> Result<()> {
        self.cm_bell().iter_mut().for_each(|bell| bell.forget(id));
        self.ask::<call::CmDestroy>(&id)
    }
    fn event(&self) -> Result<Option<CmEvent>> {
        let take = || {
            while self.hears_cm()? {
                self.cm_bell().iter_mut().for_each(|bell| bell.heard = false);
                // None: it has ended with its id.
                if let Some(e) = self.ask::<call::CmTakeEvent>(&())? {
                    self.follow(e.qp);
                    self.note_id(e.id, e.context);
                    return Ok(Some(CmEvent { arrival: arrival(), ..e }));
                }
            }
            Ok(None)
        };
        match take() {
            Err(Error::Os(libc::ENOTCONN)) => match self.removal() {
                Some(e) => Ok(Some(e)),
                None => Err(self.lost()),
            },
            done => done,
        }
    }
}

//! The rules by which a connection manager moves the queue pairs of its connections: either our
//! own, whose queue pairs may belong to other engines, or the host's, with a NIC's queue pairs.

use crate::cm::{cm_event, init_attr, Cm, CmEvent, ConnParam};
use crate::error::{Error, Result};
use crate::reason::refuse;
use crate::roce::peer::PeerAddr;
use crate::verbs::cause::{asked_port, CauseCode};
use crate::verbs::types::{
    qp_attr_mask as mask, qp_state, qp_type, AhAttr, Handle, QpAttr, QpInit,
};

/// Q_Key of UD QPs that programs leave to the connection manager (Linux `RDMA_UDP_QKEY`).
pub const UDP_QKEY: u32 = 0x0123_4567;

/// Implements [`Manager`] for our own manager, by its methods of the same names.
macro_rules! managers {
    ($($(#[$doc:meta])* fn $call:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {
        /// The calls that the rules make to a connection manager: those of [`Cm`] with the same
        /// names and errors.
        #[allow(clippy::missing_errors_doc)]
        pub trait Manager {
            /// A peer.
            type Peer;
            /// As [`Cm::connect`].
            fn connect(
                &mut self,
                now: u64,
                id: Handle,
                to: &Self::Peer,
                port: u16,
                qp: Handle,
                p: &ConnParam<'_>,
            ) -> Result<()>;
            $($(#[$doc])* fn $call(&mut self, $($arg: $type),*) -> $out;)*
        }

        impl Manager for Cm {
            type Peer = PeerAddr;
            fn connect(
                &mut self,
                now: u64,
                id: Handle,
                to: &PeerAddr,
                port: u16,
                qp: Handle,
                p: &ConnParam<'_>,
            ) -> Result<()> {
                Cm::connect(self, now, id, to, port, qp, p)
            }
            $(fn $call(&mut self, $($arg: $type),*) -> $out {
                Cm::$call(self, $($arg),*)
            })*
        }
    };
}

managers! {
    /// As [`Cm::prepare_accept`].
    fn prepare_accept(id: Handle, qp: Handle, p: &ConnParam<'_>) -> Result<()>;
    /// As [`Cm::accept`].
    fn accept(now: u64, id: Handle, qp: Handle, p: &ConnParam<'_>) -> Result<()>;
    /// As [`Cm::establish`].
    fn establish(id: Handle) -> Result<()>;
    /// As [`Cm::reject`].
    fn reject(now: u64, id: Handle, private_data: &[u8]) -> Result<()>;
    /// As [`Cm::disconnect`].
    fn disconnect(now: u64, id: Handle) -> Result<()>;
    /// As [`Cm::qp`].
    fn qp(id: Handle) -> Result<Handle>;
    /// As [`Cm::qp_attr`].
    fn qp_attr(id: Handle, state: u32) -> Result<(QpAttr, u32)>;
    /// As [`Cm::take_event`].
    fn take_event() -> Option<CmEvent>;
}

/// A connection manager, and the QPs that its connections bring up.
pub trait ManagedQps {
    /// The manager.
    type Cm: Manager;
    /// The peer that an address vector names.
    ///
    /// # Errors
    /// As [`super::EngineGuard`]'s `address`.
    fn address(&mut self, to: &AhAttr) -> Result<<Self::Cm as Manager>::Peer>;
    /// Calls `f` with the manager. The QPs are not accessible meanwhile.
    fn with_cm<R>(&mut self, f: impl FnOnce(&mut Self::Cm) -> R) -> R;
    /// As [`crate::device::Device::qp_query`].
    ///
    /// # Errors
    /// As there.
    fn query(&self, qp: Handle) -> Result<(QpAttr, QpInit)>;
    /// As [`crate::device::Device::qp_num`].
    ///
    /// # Errors
    /// As there.
    fn number(&self, qp: Handle) -> Result<u32>;
    /// As [`crate::device::Device::qp_modify`]; chooses the path to the peer first, where the
    /// change names one.
    ///
    /// # Errors
    /// As there; what makes the peer unreachable.
    fn modify(&mut self, now: u64, qp: Handle, attr: &QpAttr, m: u32) -> Result<()>;
    /// Notes the cause of an event that reports a failed attempt.
    fn note_failed(&mut self, now: u64, e: &CmEvent);
}

/// Moves a QP along RESET, INIT, RTR, RTS to the last, with the attributes that the id knows.
fn raise(q: &mut impl ManagedQps, now: u64, id: Handle, qp: Handle) -> Result<()> {
    for state in [qp_state::INIT, qp_state::RTR, qp_state::RTS] {
        let at = q.query(qp)?.0.qp_state;
        if at >= state && at <= qp_state::RTS {
            continue;
        }
        let (attr, m) = q.with_cm(|cm| cm.qp_attr(id, state))?;
        q.modify(now, qp, &attr, m)?;
    }
    Ok(())
}

/// Moves a QP to ERR: its connection is over.
fn fail(q: &mut impl ManagedQps, now: u64, qp: Handle) {
    let attr = QpAttr { qp_state: qp_state::ERR, ..QpAttr::default() };
    // A QP that the program has destroyed needs nothing more.
    let _ = q.modify(now, qp, &attr, mask::STATE);
}

/// Completes a program's parameters by those that the QP determines. Refuses a QP that is connected
/// already.
fn complete_params<'p>(
    q: &impl ManagedQps,
    qp: Handle,
    p: &ConnParam<'p>,
) -> Result<ConnParam<'p>> {
    if qp == 0 {
        return Ok(*p);
    }
    let (attr, init) = q.query(qp)?;
    let datagram = init.qp_type == qp_type::UD;
    let up = attr.qp_state >= qp_state::INIT && attr.qp_state <= qp_state::RTS;
    if attr.qp_state > qp_state::INIT && !(datagram && up) {
        let state = qp_state::name(attr.qp_state);
        return Err(refuse!(
            Invalid,
            "qp: it is in {state}; connected QPs start in RESET or INIT, UD's end in RTS"
        ));
    }
    let qkey = match p.qkey {
        0 if datagram && up => attr.qkey,
        0 => UDP_QKEY,
        given => given,
    };
    Ok(ConnParam { qpn: q.number(qp)?, qp_type: init.qp_type, srq: init.srq != 0, qkey, ..*p })
}

/// Requests a connection ([`Cm::connect`]) for a QP in RESET or INIT, and moves the QP to INIT, so
/// that receives can be posted before the answer comes. CM events take it further. `qp` 0: the
/// program moves its QP by itself, and gives its number and type.
///
/// # Errors
/// As [`Cm::connect`]; [`crate::Error::StaleHandle`], [`crate::Error::Invalid`]: the QP, or its
/// state.
pub fn connect(
    q: &mut impl ManagedQps,
    now: u64,
    id: Handle,
    to: &AhAttr,
    port: u16,
    qp: Handle,
    p: &ConnParam<'_>,
) -> Result<()> {
    let p = complete_params(q, qp, p)?;
    let to = q.address(to)?;
    if qp != 0 && p.qp_type != qp_type::UD && q.query(qp)?.0.qp_state == qp_state::RESET {
        let (attr, m) = init_attr(p.qp_type, p.qkey);
        q.modify(now, qp, &attr, m)?;
    }
    q.with_cm(|cm| cm.connect(now, id, &to, port, qp, &p))?;
    if qp != 0 && p.qp_type == qp_type::UD {
        raise(q, now, id, qp)?;
    }
    Ok(())
}

/// Moves the QP to RTS, then accepts ([`Cm::accept`]). `qp` 0: the program moves its QP by itself.
///
/// # Errors
/// As [`Cm::accept`]; [`crate::Error::StaleHandle`], [`crate::Error::Invalid`]: the QP, or its
/// state; [`crate::Error::NoMemory`]: no room for the peer's address. The request waits on in all
/// these cases.
pub fn accept(
    q: &mut impl ManagedQps,
    now: u64,
    id: Handle,
    qp: Handle,
    p: &ConnParam<'_>,
) -> Result<()> {
    let p = complete_params(q, qp, p)?;
    if qp != 0 {
        q.with_cm(|cm| cm.prepare_accept(id, qp, &p))?;
        raise(q, now, id, qp)?;
    }
    q.with_cm(|cm| cm.accept(now, id, qp, &p))
}

/// Ends a connection: moves its QP to ERR, then tells the peer.
///
/// # Errors
/// As [`Cm::disconnect`].
pub fn disconnect(q: &mut impl ManagedQps, now: u64, id: Handle) -> Result<()> {
    let qp = q.with_cm(|cm| cm.disconnect(now, id).and_then(|()| cm.qp(id)))?;
    if qp != 0 {
        fail(q, now, qp);
    }
    Ok(())
}

/// The cause for an errno by which the kernel refuses to send.
pub(super) fn local_refusal(errno: i32) -> CauseCode {
    const EPERM: i32 = 1;
    const EACCES: i32 = 13;
    const EINVAL: i32 = 22;
    const ENETDOWN: i32 = 100;
    const ENETUNREACH: i32 = 101;
    const EHOSTUNREACH: i32 = 113;
    match errno {
        EPERM => CauseCode::Firewall,
        EACCES | EINVAL | ENETDOWN | ENETUNREACH | EHOSTUNREACH => CauseCode::NoRoute,
        _ => CauseCode::Socket,
    }
}

/// The cause of an event that reports a failed attempt, and its arguments.
pub fn cause_of(e: &CmEvent) -> (CauseCode, u64, u64) {
    if e.event == cm_event::REJECTED {
        let (reason, datagram) = (e.status.unsigned_abs().into(), e.qp_type == qp_type::UD);
        return (CauseCode::Rejected, reason, asked_port(e.remote_port, datagram));
    }
    let errno = e.status.unsigned_abs().into();
    match -e.status {
        silence if silence == Error::TimedOut.errno() => {
            (CauseCode::NoAnswer, e.remote_port.into(), 0)
        }
        refusal if e.local => (local_refusal(refusal), errno, 0),
        _ => (CauseCode::PeerUnreachable, errno, 0),
    }
}

/// Takes an event, and moves the id's QP: to RTS for an accepted connection, which becomes
/// ESTABLISHED (CONNECT_ERROR if that fails), and to ERR for a connection that has ended.
pub fn take_event(q: &mut impl ManagedQps, now: u64) -> Option<CmEvent> {
    let mut e = q.with_cm(Manager::take_event)?;
    let failed = matches!(e.event, cm_event::REJECTED | cm_event::UNREACHABLE);
    let moves = e.qp != 0 && e.qp_type != qp_type::UD;
    match e.event {
        cm_event::CONNECT_RESPONSE if moves => {
            let raised = raise(q, now, e.id, e.qp);
            match raised.and_then(|()| q.with_cm(|cm| cm.establish(e.id))) {
                Ok(()) => e.event = cm_event::ESTABLISHED,
                Err(why) => {
                    let _ = q.with_cm(|cm| cm.reject(now, e.id, &[]));
                    e.event = cm_event::CONNECT_ERROR;
                    e.status = -why.errno();
                }
            }
        }
        cm_event::DISCONNECTED if moves => fail(q, now, e.qp),
        _ if failed && moves => fail(q, now, e.qp),
        _ => {}
    }
    if failed {
        // After the QP's move: this cause replaces FLUSHED, which the QP's completions report
        // anyway.
        q.note_failed(now, &e);
    }
    Some(e)
}

//! Calls of programs to the connection manager: connect, listen, accept, reject, disconnect.

use super::conn::{owe, Id, State};
use super::input::is_port_space;
use super::types::{
    port_space, reject, sidr_status, ConnParam, ACCEPT_DATA_MAX, CONNECT_DATA_MAX, REJECT_DATA_MAX,
    UD_ACCEPT_DATA_MAX, UD_CONNECT_DATA_MAX,
};
use super::{
    timeout_ns, Cm, Refusal, LISTENER_GRACE_NS, MAX_RETRIES, REP_RETRIES, RESPONSE_TIMEOUT,
    SERVICE_TIMEOUT,
};
use crate::error::{Error, Result};
use crate::reason::refuse;
use crate::roce::peer::PeerAddr;
use crate::verbs::types::{qp_type, Handle, QpAttr};
use crate::verbs::NONE;

/// Ports for ids that ask for none.
const EPHEMERAL: core::ops::RangeInclusive<u16> = 0xb000..=0xefff;
/// How long a request that was answered for good gets the same answer when it is repeated.
pub(super) const LINGER_NS: u64 = 5_000_000_000;
pub(super) const BITS_24: u32 = 0xff_ffff;

/// Checks the parameters of a connection or datagram service. `data_max`: most bytes of private
/// data.
///
/// # Errors
/// [`Error::Invalid`]: one is out of range; [`Error::MessageSize`]: too much private data.
pub fn check_param(ps: u16, p: &ConnParam<'_>, data_max: usize) -> Result<()> {
    let kind = match ps {
        port_space::UDP => p.qp_type == qp_type::UD,
        port_space::TCP => p.qp_type == qp_type::RC,
        _ => p.qp_type == qp_type::RC || p.qp_type == qp_type::UC,
    };
    if !kind {
        let (given, ps) = (qp_type::name(p.qp_type), port_space::name(ps));
        return Err(refuse!(
            Invalid,
            "qp_type {given}: port space {ps} connects others (TCP: RC, UDP: UD, IB: RC and UC)"
        ));
    }
    if p.qpn < 2 || p.qpn > BITS_24 {
        return Err(refuse!(Invalid, "qpn {:#x}: 2 to 0xffffff", p.qpn));
    }
    if let Some(psn) = p.psn.filter(|&psn| psn > BITS_24) {
        return Err(refuse!(Invalid, "psn {psn:#x}: at most 0xffffff"));
    }
    let codes = [
        ("retry_count", p.retry_count, 7),
        ("rnr_retry", p.rnr_retry, 7),
        ("ack_timeout", p.ack_timeout, 31),
        ("response_timeout", p.response_timeout, SERVICE_TIMEOUT),
    ];
    if let Some((name, code, most)) = codes.iter().find(|(_, code, most)| code > most) {
        return Err(refuse!(Invalid, "{name} {code}: at most {most}"));
    }
    check_data(p.private_data, data_max)
}

/// Checks private data.
///
/// # Errors
/// [`Error::MessageSize`]: more than `most` bytes.
pub fn check_data(data: &[u8], most: usize) -> Result<()> {
    match data.len() {
        len if len <= most => Ok(()),
        len => Err(refuse!(MessageSize, "private_data_len {len}: at most {most} in this message")),
    }
}

impl Cm {
    #[cold]
    pub(super) fn wrong_state(&self, i: usize, why: &str) -> Error {
        refuse!(Invalid, "id in state {:?}: {why}", self.ids[i].state)
    }

    /// A new id in a port space. `context` comes back with its events.
    ///
    /// # Errors
    /// [`Error::Invalid`]: no such port space; [`Error::NoMemory`]: `max_cm_ids` are in use.
    pub fn create(&mut self, ps: u16, context: u64) -> Result<Handle> {
        if !is_port_space(ps) {
            return Err(refuse!(
                Invalid,
                "port_space {ps:#x}: TCP ({:#x}), UDP ({:#x}) or IB ({:#x})",
                port_space::TCP,
                port_space::UDP,
                port_space::IB
            ));
        }
        let i = self.alloc(Id::new(ps, context))?;
        Ok(self.pool.handle(i))
    }

    /// Changes the program's context of an id.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn set_context(&mut self, id: Handle, context: u64) -> Result<()> {
        let i = self.check(id)?;
        self.ids[i].context = context;
        Ok(())
    }

    /// Gives an id a port (0: some free one); returns it.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Invalid`]: it has one; [`Error::AddressInUse`].
    pub fn bind(&mut self, id: Handle, port: u16) -> Result<u16> {
        let i = self.check(id)?;
        if self.ids[i].state != State::Idle || self.ids[i].port != 0 {
            return Err(self.wrong_state(i, "to be bound it must be new, and have no port"));
        }
        let ps = self.ids[i].ps;
        let port = if port == 0 { self.free_port(ps)? } else { port };
        if self.is_bound(ps, port) {
            return Err(refuse!(
                AddressInUse,
                "port {port}: another id of this context has it in this port space"
            ));
        }
        self.ids[i].port = port;
        Ok(port)
    }

    /// Whether an id has this port, other than connections of a listener, which share its port.
    fn is_bound(&self, ps: u16, port: u16) -> bool {
        self.pool.iter_live().any(|i| {
            let id = &self.ids[i];
            id.ps == ps && id.port == port && !id.passive
        })
    }

    fn free_port(&mut self, ps: u16) -> Result<u16> {
        let (first, count) = (*EPHEMERAL.start(), EPHEMERAL.end() - EPHEMERAL.start() + 1);
        let start = self.random() as u16 % count;
        // One more try than ids exist: some port is free.
        let tries = (self.ids.len() as u16).saturating_add(1).min(count);
        (0..tries)
            .map(|k| first + (start + k) % count)
            .find(|&p| !self.is_bound(ps, p))
            .ok_or(Error::AddressInUse)
    }

    /// Port space and port of an id that may listen.
    ///
    /// # Errors
    /// As [`Cm::listen`].
    pub fn bound(&self, id: Handle) -> Result<(u16, u16)> {
        let i = self.check(id)?;
        let id = &self.ids[i];
        if id.state != State::Idle || id.port == 0 {
            return Err(self.wrong_state(i, "to listen it must be new, and bound to a port"));
        }
        Ok((id.ps, id.port))
    }

    /// Listens at the id's port; requests come as events. At most `backlog` wait for the program at
    /// once (0: a quarter of `max_cm_ids`), and never more than half of the half-open ids of a
    /// listener (`admit`, which also bounds unconfirmed connections). Further requests are dropped,
    /// and their senders repeat them. Requests that were kept for the port come at once (`early`).
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Invalid`]: no port, or not an idle id.
    pub fn listen(&mut self, now: u64, id: Handle, backlog: u32) -> Result<()> {
        let (ps, port) = self.bound(id)?;
        let (i, bounds) = (self.check(id)?, self.bounds);
        let id = &mut self.ids[i];
        id.backlog = if backlog == 0 { bounds.own / 4 } else { backlog }.min(bounds.backlog());
        id.state = State::Listen;
        self.listening.set(i);
        self.take_early(now, ps, port);
        Ok(())
    }

    /// Asks `to` for a connection to the listener at `port` there.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Invalid`]: not an idle id, or a parameter is out of range;
    /// [`Error::MessageSize`]: too much private data.
    pub fn connect(
        &mut self,
        now: u64,
        id: Handle,
        to: &PeerAddr,
        port: u16,
        qp: Handle,
        p: &ConnParam<'_>,
    ) -> Result<()> {
        let i = self.check(id)?;
        let ps = self.ids[i].ps;
        let datagram = ps == port_space::UDP;
        check_param(ps, p, if datagram { UD_CONNECT_DATA_MAX } else { CONNECT_DATA_MAX })?;
        if self.ids[i].state != State::Idle {
            return Err(self.wrong_state(i, "to connect it must be new"));
        }
        if port == 0 {
            return Err(refuse!(Invalid, "port 0: 1 to 65535"));
        }
        if p.path_mtu > self.local.path_mtu {
            let most = self.local.path_mtu;
            return Err(refuse!(Invalid, "path_mtu {}: the port carries code {most}", p.path_mtu));
        }
        if self.ids[i].port == 0 {
            self.bind(id, 0)?;
        }
        let (local_id, tid) = (self.fresh_comm_id(i), self.random() & u64::from(u32::MAX));
        let local = self.local;
        let id = &mut self.ids[i];
        id.peer = *to;
        id.remote_port = port;
        id.local_id = local_id;
        id.tid = tid;
        id.set_qp(qp, p);
        id.qp_type = p.qp_type;
        id.path_mtu = if p.path_mtu == 0 { local.path_mtu } else { p.path_mtu };
        id.responder_resources = p.responder_resources.min(local.max_rd_atomic);
        id.initiator_depth = p.initiator_depth.min(local.max_rd_atomic);
        id.retry_count = p.retry_count;
        id.ack_timeout = p.ack_timeout;
        id.response_timeout =
            if p.response_timeout == 0 { RESPONSE_TIMEOUT } else { p.response_timeout };
        id.retries_left = MAX_RETRIES;
        id.mras_left = MAX_RETRIES;
        id.network_errno = 0;
        id.data_out.set(p.private_data);
        id.state = if datagram { State::SidrSent } else { State::ReqSent };
        let wait = timeout_ns(id.response_timeout);
        self.owe(i, if datagram { owe::SIDR_REQ } else { owe::REQ });
        self.wheel.arm(i, now.saturating_add(wait));
        Ok(())
    }

    /// Chooses the QP for a request, so that [`Cm::qp_attr`] knows its attributes; sends nothing.
    /// [`Cm::accept`] with the same parameters follows.
    ///
    /// # Errors
    /// As [`Cm::accept`].
    pub fn prepare_accept(&mut self, id: Handle, qp: Handle, p: &ConnParam<'_>) -> Result<()> {
        let i = self.check(id)?;
        let datagram = self.ids[i].ps == port_space::UDP;
        check_param(
            self.ids[i].ps,
            p,
            if datagram { UD_ACCEPT_DATA_MAX } else { ACCEPT_DATA_MAX },
        )?;
        let local = self.local;
        if !matches!(self.ids[i].state, State::ReqRcvd | State::SidrRcvd) {
            return Err(
                self.wrong_state(i, "there is no request to accept (the peer may have given up)")
            );
        }
        let id = &mut self.ids[i];
        if p.qp_type != id.qp_type {
            let (given, asked) = (qp_type::name(p.qp_type), qp_type::name(id.qp_type));
            return Err(refuse!(Invalid, "qp_type {given}: the peer asks for {asked}"));
        }
        id.set_qp(qp, p);
        // Never more than the peer offered.
        id.responder_resources =
            p.responder_resources.min(id.responder_resources).min(local.max_rd_atomic);
        id.initiator_depth = p.initiator_depth.min(id.initiator_depth).min(local.max_rd_atomic);
        Ok(())
    }

    /// Accepts a request. The QP is at least in RTR: the peer may send as soon as it has the
    /// answer.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Invalid`]: not a request that waits (the peer may have
    /// given up), another type of QP than it asked for, or a parameter is out of range;
    /// [`Error::MessageSize`]: too much private data.
    pub fn accept(&mut self, now: u64, id: Handle, qp: Handle, p: &ConnParam<'_>) -> Result<()> {
        let i = self.check(id)?;
        self.prepare_accept(id, qp, p)?;
        let x = &mut self.ids[i];
        x.data_out.set(p.private_data);
        x.retries_left = x.retries_left.min(REP_RETRIES);
        x.since = now;
        if x.ps == port_space::UDP {
            x.reason = u16::from(sidr_status::SUCCESS);
            // No message will confirm it, so it is no guest any more.
            self.release_guest(i);
            self.enter(i, State::SidrDone);
            self.owe(i, owe::SIDR_REP);
            return Ok(());
        }
        let wait = timeout_ns(x.response_timeout);
        self.enter(i, State::RepSent);
        self.owe(i, owe::REP);
        self.wheel.arm(i, now.saturating_add(wait));
        Ok(())
    }

    /// The answer to CONNECT_RESPONSE: the QP is in RTS, and an RTU tells the peer.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Invalid`]: no accepted connection that waits for it.
    pub fn establish(&mut self, id: Handle) -> Result<()> {
        let i = self.check(id)?;
        if self.ids[i].state != State::RepRcvd {
            return Err(self.wrong_state(i, "there is no accepted connection that waits for it"));
        }
        self.drop_owed(i);
        self.enter(i, State::Established);
        self.owe(i, owe::RTU);
        Ok(())
    }

    /// Rejects a request, or the answer of a CONNECT_RESPONSE, with [`reject::CONSUMER`] and the
    /// data. The program must still destroy the id.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Invalid`]: nothing to reject; [`Error::MessageSize`]: too
    /// much private data.
    pub fn reject(&mut self, now: u64, id: Handle, private_data: &[u8]) -> Result<()> {
        let i = self.check(id)?;
        let max =
            if self.ids[i].ps == port_space::UDP { UD_ACCEPT_DATA_MAX } else { REJECT_DATA_MAX };
        check_data(private_data, max)?;
        self.refuse(now, i, reject::CONSUMER, private_data)
    }

    fn refuse(&mut self, now: u64, i: usize, reason: u16, private_data: &[u8]) -> Result<()> {
        let id = &mut self.ids[i];
        let (what, about) = match id.state {
            State::ReqRcvd => (owe::REJ, 0),
            State::RepRcvd => (owe::REJ, 1),
            State::SidrRcvd => (owe::SIDR_REP, 0),
            _ => return Err(self.wrong_state(i, "there is no request to reject")),
        };
        id.about = about;
        id.reason = if what == owe::SIDR_REP { u16::from(sidr_status::REJECTED) } else { reason };
        id.data_out.set(private_data);
        id.local_qpn = 0;
        id.qkey = 0;
        let refusal = Refusal {
            peer: id.peer.gid,
            port: id.port,
            reason: id.reason,
            datagram: what == owe::SIDR_REP,
        };
        self.drop_owed(i);
        self.note_refusal(refusal);
        self.enter(i, State::Rejecting);
        self.owe(i, what);
        self.wheel.arm(i, now.saturating_add(LINGER_NS));
        Ok(())
    }

    /// Ends a connection. DISCONNECTED follows once the peer has answered or the timeout is over.
    /// The QP should be in ERR.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Invalid`]: not connected (any more).
    pub fn disconnect(&mut self, now: u64, id: Handle) -> Result<()> {
        let i = self.check(id)?;
        let x = &mut self.ids[i];
        if x.state == State::DreqSent && !core::mem::replace(&mut x.end_asked, true) {
            // The manager has sent the DREQ already, because the peer was silent.
            return Ok(());
        }
        if x.qp_type == qp_type::UD || !matches!(x.state, State::Established | State::RepSent) {
            return Err(self.wrong_state(i, "it is not connected"));
        }
        x.end_asked = true;
        self.send_dreq(now, i);
        Ok(())
    }

    /// Ends a connection by a DREQ.
    pub(super) fn send_dreq(&mut self, now: u64, i: usize) {
        self.enter(i, State::DreqSent);
        let tid = self.random() & u64::from(u32::MAX);
        let id = &mut self.ids[i];
        id.tid = tid;
        // An RTU that is still owed leaves first: without it the peer has no connection to end.
        id.owes &= owe::RTU;
        id.retries_left = if id.guest { REP_RETRIES } else { MAX_RETRIES };
        let wait = timeout_ns(id.response_timeout);
        self.owe(i, owe::DREQ);
        self.wheel.arm(i, now.saturating_add(wait));
    }

    /// Destroys an id. By its state, an exchange in progress is refused, given up or disconnected:
    /// the peer is told, and the program gets no further events.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn destroy(&mut self, now: u64, id: Handle) -> Result<()> {
        let i = self.check(id)?;
        self.events.clear(i);
        let x = &mut self.ids[i];
        x.orphan = true;
        match x.state {
            State::Listen => {
                self.former_ports.write((x.port, now.saturating_add(LISTENER_GRACE_NS)));
                self.orphan_requests(now, i);
                self.free(i);
            }
            State::ReqRcvd | State::SidrRcvd | State::RepRcvd => {
                self.refuse(now, i, reject::CONSUMER, &[])?
            }
            State::ReqSent | State::RepSent => self.reject_by_timeout(i),
            State::Established if x.qp_type != qp_type::UD => self.send_dreq(now, i),
            State::SidrDone => self.wheel.arm(i, now.saturating_add(LINGER_NS)),
            State::DreqSent | State::Rejecting => {}
            State::SidrSent | State::Idle => self.free(i),
            State::TimeWait | State::Established | State::Dead => {
                if self.ids[i].owes == 0 {
                    self.free(i);
                } else {
                    self.enter(i, State::Dead);
                }
            }
        }
        Ok(())
    }

    /// The program ends: as [`Cm::destroy`] of all ids.
    pub fn leave(&mut self, now: u64) {
        for i in 0..self.ids.len() {
            if self.pool.is_live(i) && !self.ids[i].orphan {
                let _ = self.destroy(now, self.pool.handle(i));
            }
        }
    }

    /// Gives up: tells the peer, and not the program.
    pub(super) fn reject_by_timeout(&mut self, i: usize) {
        self.drop_owed(i);
        let id = &mut self.ids[i];
        id.about = 2;
        // Linux cm.c cm_destroy_id: A side that gives up an attempt says so by a REJ with reason
        // TIMEOUT.
        id.reason = reject::TIMEOUT;
        id.data_out.set(&[]);
        self.owe(i, owe::REJ);
        self.enter(i, State::Dead);
    }

    /// A listener ends: requests whose events were not taken are refused; the others continue.
    fn orphan_requests(&mut self, now: u64, listener: usize) {
        for i in 0..self.ids.len() {
            let id = &mut self.ids[i];
            if !self.pool.is_live(i) || id.listener != listener as u32 {
                continue;
            }
            if self.events.has_any(i) {
                id.orphan = true;
                self.events.clear(i);
                let _ = self.refuse(now, i, reject::INVALID_SERVICE_ID, &[]);
            }
            self.ids[i].listener = NONE;
        }
    }

    /// The attributes that bring the id's QP into INIT, RTR or RTS, and their mask.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Invalid`]: another state, or too little is known yet.
    pub fn qp_attr(&self, id: Handle, state: u32) -> Result<(QpAttr, u32)> {
        self.ids[self.check(id)?].qp_attr(state)
    }
}

//! The host's connection manager for a NIC: librdmacm, by the module's table.
//!
//! Its ids have no queue pair in librdmacm, and its events come to one channel, whose descriptor is
//! in the device's set. Each call takes the manager's lock, below which librdmacm is called: so an
//! event is acknowledged before another thread destroys its id, which waits for that. No call waits
//! for a peer. A request resolves address and route first: the events of that are taken here
//! ([`Manager::take_event`]), where the program takes its own.
//!
//! How queue pairs are moved is a soft device's rule, too ([`cm_qps`]).

use std::sync::MutexGuard;

use crate::abi::cm::{Address, Calls, Event, Opened, Param};
use crate::abi::Text;
use crate::cm_ids::{Data, Facts, Stage, State};
use crate::device::VerbsDevice;
use crate::objects::lock;
use crate::sys::now_ns;
use gdrcore_core::cm::{
    arrival, check_data, check_param, cm_event, init_attr, port_space, CmEvent, ConnParam,
    ACCEPT_DATA_MAX, CONNECT_DATA_MAX, MIN_RNR_TIMER, REJECT_DATA_MAX, UD_ACCEPT_DATA_MAX,
    UD_CONNECT_DATA_MAX,
};
use gdrcore_core::device::{CmDevice, Device};
use gdrcore_core::engine::cm_qps::{self, ManagedQps, Manager, UDP_QKEY};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::verbs::types::{
    qp_attr_mask as mask, qp_state, qp_type, AhAttr, Handle, QpAttr, QpInit,
};
use gdrcore_core::{reason, refuse};

/// Numbers of `rdma_cm_event_type` below those that programs see.
mod before {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ADDR_ERROR: u32 = 1;
    pub const ROUTE_RESOLVED: u32 = 2;
    pub const ROUTE_ERROR: u32 = 3;
}

impl VerbsDevice {
    /// Opens librdmacm, once.
    pub(crate) fn open_cm(&self) -> Result<&dyn CmDevice> {
        let mut state = lock(&self.cm.state);
        if matches!(*state, State::Unopened) {
            *state = self.first_open();
        }
        match &*state {
            State::Refused(why) => Err(refuse!(Unsupported, "{}", why.as_str())),
            _ => Ok(self),
        }
    }

    fn first_open(&self) -> State {
        let (at, mut opened, mut why) = (self.own_address(0), None, Text::new());
        let mut out = core::mem::MaybeUninit::<Opened>::uninit();
        let open = self.module.cm.open;
        // SAFETY: an open context, a readable address, writable results.
        if unsafe { open(self.opened.context, &at, out.as_mut_ptr(), &mut why) } == 0 {
            // SAFETY: written, as the call succeeded.
            opened = Some(unsafe { out.assume_init() });
        }
        let watched = opened.map(|opened| self.events.watch(opened.fd).map_err(|e| (opened, e)));
        match watched {
            Some(Ok(())) => opened.map_or(State::Unopened, State::Open),
            Some(Err((opened, e))) => {
                // SAFETY: opened above, without an id.
                unsafe { (self.module.cm.close)(&opened) };
                why.set(format_args!("no connection manager: its events: {e}"));
                State::Refused(Box::new(why))
            }
            None => State::Refused(Box::new(why)),
        }
    }

    /// Destroys what is left, and closes librdmacm.
    ///
    /// # Safety
    /// As for [`VerbsDevice::close`].
    pub(crate) unsafe fn close_cm(&self) {
        for (id, _) in self.cm.ids.iter() {
            let _ = self.end(&self.cm.ids, id, self.module.cm.destroy);
        }
        if let State::Open(opened) = core::mem::take(&mut *lock(&self.cm.state)) {
            // SAFETY: open, and its ids are gone.
            unsafe { (self.module.cm.close)(&opened) };
        }
    }

    /// The device's address, with a port.
    fn own_address(&self, port: u16) -> Address {
        Address { gid: self.gid, scope_id: self.scope_id, port: port.into() }
    }
}

/// The result of a function of librdmacm.
fn done(rc: core::ffi::c_int) -> Result<()> {
    match rc {
        0 => Ok(()),
        e => Err(reason::refused(
            Error::from_errno(e),
            format_args!("id: the host's connection manager refused it (errno {e})"),
        )),
    }
}

/// The manager, locked.
struct Locked<'d> {
    device: &'d VerbsDevice,
    state: MutexGuard<'d, State>,
}

impl Locked<'_> {
    fn calls(&self) -> &'static Calls {
        &self.device.module.cm
    }

    fn opened(&self) -> Result<&Opened> {
        match &*self.state {
            State::Open(opened) => Ok(opened),
            _ => Err(Error::NoDevice),
        }
    }

    fn facts(&self, id: Handle) -> Result<Facts> {
        Ok(*lock(&self.device.cm.ids.enter(id)?.more().0))
    }

    fn change<R>(&self, id: Handle, change: impl FnOnce(&mut Facts) -> R) -> Result<R> {
        Ok(change(&mut lock(&self.device.cm.ids.enter(id)?.more().0)))
    }

    fn set_stage(&self, id: Handle, stage: Stage) -> Result<()> {
        self.change(id, |f| f.stage = stage)
    }

    /// The facts of an id in one of these stages.
    fn in_stage(&self, id: Handle, of: &[Stage], why: &str) -> Result<Facts> {
        let facts = self.facts(id)?;
        match of.contains(&facts.stage) {
            true => Ok(facts),
            false => Err(refuse!(Invalid, "id in state {:?}: {why}", facts.stage)),
        }
    }

    /// Calls a function of librdmacm on an id.
    fn call(&self, id: Handle, call: impl FnOnce(crate::abi::Object) -> i32) -> Result<()> {
        done(call(self.device.cm.ids.enter(id)?.object()))
    }

    fn create(&self, space: u16, context: u64) -> Result<Handle> {
        let spaces = [port_space::TCP, port_space::UDP, port_space::IB];
        if !spaces.contains(&space) {
            return Err(refuse!(Invalid, "port_space {space:#x}: GDRC_PS_TCP, _UDP or _IB"));
        }
        let (channel, create) = (self.opened()?.channel, self.calls().create);
        self.device.add(&self.device.cm.ids, |cookie, more| {
            let mut id = core::ptr::null_mut();
            // SAFETY: a live channel, a writable result.
            done(unsafe { create(channel, space.into(), cookie, &mut id) })?;
            let kind = if space == port_space::UDP { qp_type::UD } else { qp_type::RC };
            *lock(&more.0) = Facts { space, context, qp_type: kind, ..Facts::default() };
            Ok(id)
        })
    }

    fn bind(&self, id: Handle, port: u16) -> Result<u16> {
        let facts = self.in_stage(id, &[Stage::Idle], "to be bound it must be new")?;
        if facts.port != 0 {
            return Err(refuse!(Invalid, "id: it has port {} already", facts.port));
        }
        let (at, bind, mut given) = (self.device.own_address(port), self.calls().bind, 0);
        // SAFETY: a live id, a readable address, a writable result.
        self.call(id, |id| unsafe { bind(id, &at, &mut given) })?;
        let given = given as u16;
        self.change(id, |f| f.port = given)?;
        Ok(given)
    }

    fn listen(&self, id: Handle, backlog: u32) -> Result<()> {
        let facts = self.in_stage(id, &[Stage::Idle], "to listen it must be new")?;
        if facts.port == 0 {
            return Err(refuse!(Invalid, "id: to listen it must be bound to a port"));
        }
        let listen = self.calls().listen;
        // SAFETY: a live id.
        self.call(id, |id| unsafe { listen(id, backlog) })?;
        self.set_stage(id, Stage::Listening)
    }

    /// READs and atomics, at most the NIC's.
    fn depth(&self, wanted: u8) -> u8 {
        let most = self.device.config.max_rd_atomic.min(self.device.opened.max_rd_atomic);
        wanted.min(u8::try_from(most).unwrap_or(u8::MAX))
    }

    /// Refuses parameters that the host's manager chooses itself.
    fn check(&self, space: u16, p: &ConnParam<'_>, data_max: usize) -> Result<()> {
        check_param(space, p, data_max)?;
        if p.qp_type == qp_type::UC {
            return Err(refuse!(Unsupported, "qp_type UC: librdmacm connects RC and UD"));
        }
        if p.psn.is_some() {
            return Err(refuse!(Unsupported, "psn: the host's connection manager draws it"));
        }
        if p.path_mtu != 0 {
            return Err(refuse!(Unsupported, "path_mtu: the host's connection manager chooses it"));
        }
        if p.qp_type == qp_type::UD && !matches!(p.qkey, 0 | UDP_QKEY) {
            let given = p.qkey;
            return Err(refuse!(
                Unsupported,
                "qkey {given:#x}: librdmacm knows {UDP_QKEY:#x} alone"
            ));
        }
        Ok(())
    }

    /// What an id says of its side.
    fn param(facts: &Facts, data: &[u8]) -> Param {
        Param {
            private_data: if data.is_empty() { core::ptr::null() } else { data.as_ptr().cast() },
            private_data_len: data.len() as u32,
            qpn: facts.qpn,
            srq: facts.srq.into(),
            responder_resources: facts.responder_resources,
            initiator_depth: facts.initiator_depth,
            retry_count: facts.retry_count,
            rnr_retry: facts.peer_rnr_retry,
        }
    }

    /// The kernel's attributes for a queue pair.
    fn kernel_attr(&self, id: Handle, state: u32) -> Result<(QpAttr, u32)> {
        let (mut attr, mut set, get) = (QpAttr::default(), 0, self.calls().qp_attr);
        // SAFETY: a live id, writable results.
        self.call(id, |id| unsafe { get(id, state, &mut attr, &mut set) })?;
        attr.port_num = 1;
        Ok((attr, set))
    }

    fn destroy(&self, id: Handle) -> Result<()> {
        self.device.end(&self.device.cm.ids, id, self.calls().destroy)
    }

    /// Takes an event of librdmacm; resolution goes on. `None`: it was not for the program.
    fn follow(&self, e: &Event) -> Option<CmEvent> {
        if e.kind == cm_event::CONNECT_REQUEST {
            return self.admit(e);
        }
        // Of an id that is destroyed meanwhile, or of the keeper.
        let facts = self.facts(e.cookie).ok()?;
        let id = e.cookie;
        let failed = |e: Error| (cm_event::UNREACHABLE, -e.errno(), true);
        let (mut kind, mut status, mut local) = (e.kind, e.status, false);
        match e.kind {
            before::ADDR_RESOLVED => {
                let resolve = self.calls().resolve_route;
                // SAFETY: a live id.
                match self.call(id, |id| unsafe { resolve(id) }) {
                    Ok(()) => return None,
                    Err(e) => (kind, status, local) = failed(e),
                }
            }
            before::ROUTE_RESOLVED => {
                let param = Self::param(&facts, facts.out.bytes());
                let connect = self.calls().connect;
                // SAFETY: a live id; parameters whose data lives through the call.
                let asked = self.call(id, |id| unsafe { connect(id, &param) });
                match asked.and_then(|()| self.set_stage(id, Stage::Asked)) {
                    Ok(()) => return None,
                    Err(e) => (kind, status, local) = failed(e),
                }
            }
            before::ADDR_ERROR | before::ROUTE_ERROR => kind = cm_event::UNREACHABLE,
            cm_event::DISCONNECTED if facts.stage != Stage::Over => {
                // The peer has asked for it. The kernel answers when this side disconnects, too.
                let disconnect = self.calls().disconnect;
                // SAFETY: a live id.
                let _ = self.call(id, |id| unsafe { disconnect(id) });
            }
            cm_event::CONNECT_RESPONSE..=cm_event::DEVICE_REMOVAL
            | cm_event::ADDR_CHANGE
            | cm_event::TIMEWAIT_EXIT => {}
            _ => return None,
        }
        let stage = match kind {
            cm_event::CONNECT_RESPONSE => Stage::Answered,
            cm_event::ESTABLISHED if facts.qp_type == qp_type::UD => Stage::Over,
            cm_event::ESTABLISHED => Stage::Established,
            cm_event::ADDR_CHANGE | cm_event::DEVICE_REMOVAL => facts.stage,
            _ => Stage::Over,
        };
        let of_peer = matches!(kind, cm_event::CONNECT_RESPONSE)
            || kind == cm_event::ESTABLISHED && facts.qp_type == qp_type::UD;
        let answered = of_peer.then(|| self.kernel_attr(id, qp_state::RTR).ok()).flatten();
        let known = self.change(id, |f| {
            f.stage = stage;
            if of_peer {
                (f.remote_qpn, f.remote_qkey, f.peer_srq) = (e.qpn, e.qkey, e.srq != 0);
            }
            if kind == cm_event::CONNECT_RESPONSE {
                (f.responder_resources, f.initiator_depth) =
                    (self.depth(e.responder_resources), self.depth(e.initiator_depth));
                f.rnr_retry = e.rnr_retry;
                f.path_mtu = answered.map_or(0, |(attr, _)| attr.path_mtu);
            }
            *f
        });
        let has_data = of_peer || kind == cm_event::REJECTED;
        let data = if has_data { &e.data[..e.data_len as usize] } else { &[] };
        let has_status = matches!(
            kind,
            cm_event::REJECTED
                | cm_event::UNREACHABLE
                | cm_event::CONNECT_ERROR
                | cm_event::DISCONNECTED
        );
        let status = if has_status { status } else { 0 };
        Some(CmEvent { local, ..event(kind, status, id, 0, &known.ok()?, data) })
    }

    /// Takes a request in. One without room for it is refused.
    fn admit(&self, e: &Event) -> Option<CmEvent> {
        let calls = self.calls();
        let listener = self.facts(e.cookie).ok();
        let made = listener.and_then(|l| {
            let facts = Facts {
                stage: Stage::Requested,
                space: l.space,
                port: e.local_port as u16,
                remote_port: e.peer.port as u16,
                qp_type: e.qp_type,
                remote_qpn: e.qpn,
                peer: AhAttr { dgid: e.peer.gid, scope_id: e.peer.scope_id, ..AhAttr::default() },
                responder_resources: self.depth(e.responder_resources),
                initiator_depth: self.depth(e.initiator_depth),
                retry_count: e.retry_count,
                rnr_retry: e.rnr_retry,
                peer_srq: e.srq != 0,
                ..Facts::default()
            };
            let add = self.device.add(&self.device.cm.ids, |cookie, more| {
                *lock(&more.0) = facts;
                // SAFETY: the id of the request, which is ours.
                unsafe { (calls.set_cookie)(e.request, cookie) };
                Ok(e.request)
            });
            add.ok().map(|id| (id, facts))
        });
        let Some((id, mut facts)) = made else {
            // SAFETY: as above, and nobody else knows it.
            unsafe { (calls.destroy)(e.request) };
            return None;
        };
        if facts.qp_type != qp_type::UD {
            // The request's path: its MTU, and the class of what answers it.
            if let Ok((attr, _)) = self.kernel_attr(id, qp_state::RTR) {
                facts.path_mtu = attr.path_mtu;
                facts.peer.traffic_class = attr.ah.traffic_class;
                let _ = self.change(id, |f| *f = facts);
            }
        }
        let data = &e.data[..e.data_len as usize];
        Some(event(cm_event::CONNECT_REQUEST, 0, id, e.cookie, &facts, data))
    }
}

/// An event for the program.
fn event(kind: u32, status: i32, id: Handle, listener: Handle, f: &Facts, data: &[u8]) -> CmEvent {
    let data = Data::from_bytes(data);
    CmEvent {
        event: kind,
        arrival: arrival(),
        status,
        local: false,
        id,
        listener,
        qp: f.qp,
        context: f.context,
        peer: f.peer,
        remote_qpn: f.remote_qpn,
        qkey: f.remote_qkey,
        local_port: f.port,
        remote_port: f.remote_port,
        qp_type: f.qp_type,
        path_mtu: f.path_mtu,
        responder_resources: f.responder_resources,
        initiator_depth: f.initiator_depth,
        retry_count: f.retry_count,
        rnr_retry: f.rnr_retry,
        srq: f.peer_srq,
        data_len: data.len,
        data: data.bytes,
    }
}

impl Manager for Locked<'_> {
    type Peer = AhAttr;

    fn connect(
        &mut self,
        _: u64,
        id: Handle,
        to: &AhAttr,
        port: u16,
        qp: Handle,
        p: &ConnParam<'_>,
    ) -> Result<()> {
        let facts = self.facts(id)?;
        let datagram = facts.space == port_space::UDP;
        let most = if datagram { UD_CONNECT_DATA_MAX } else { CONNECT_DATA_MAX };
        self.check(facts.space, p, most)?;
        self.in_stage(id, &[Stage::Idle], "to connect it must be new")?;
        if port == 0 {
            return Err(refuse!(Invalid, "port 0: 1 to 65535"));
        }
        if facts.port == 0 {
            self.bind(id, 0)?;
        }
        let scope_id = if to.scope_id == 0 { self.device.scope_id } else { to.scope_id };
        let at = Address { gid: to.dgid, scope_id, port: port.into() };
        let (resolve, timeout) = (self.calls().resolve_address, p.ack_timeout.into());
        // SAFETY: a live id, a readable address.
        self.call(id, |id| unsafe { resolve(id, &at, if datagram { -1 } else { timeout }) })?;
        self.change(id, |f| {
            (f.stage, f.remote_port, f.peer) = (Stage::Resolving, port, *to);
            f.set_qp(qp, p);
            f.responder_resources = self.depth(p.responder_resources);
            f.initiator_depth = self.depth(p.initiator_depth);
            f.retry_count = p.retry_count;
            f.out = Data::from_bytes(p.private_data);
        })
    }

    fn prepare_accept(&mut self, id: Handle, qp: Handle, p: &ConnParam<'_>) -> Result<()> {
        let facts = self.facts(id)?;
        let datagram = facts.space == port_space::UDP;
        let most = if datagram { UD_ACCEPT_DATA_MAX } else { ACCEPT_DATA_MAX };
        self.check(facts.space, p, most)?;
        self.in_stage(id, &[Stage::Requested], "there is no request to accept")?;
        if p.qp_type != facts.qp_type {
            let [given, asked] = [p.qp_type, facts.qp_type].map(qp_type::name);
            return Err(refuse!(Invalid, "qp_type {given}: the peer asks for {asked}"));
        }
        self.change(id, |f| {
            f.set_qp(qp, p);
            // Never more than the peer offered.
            f.responder_resources = f.responder_resources.min(p.responder_resources);
            f.initiator_depth = f.initiator_depth.min(p.initiator_depth);
        })
    }

    fn accept(&mut self, _: u64, id: Handle, qp: Handle, p: &ConnParam<'_>) -> Result<()> {
        self.prepare_accept(id, qp, p)?;
        let facts = self.facts(id)?;
        let (param, accept) = (Self::param(&facts, p.private_data), self.calls().accept);
        // SAFETY: a live id; parameters whose data lives through the call.
        self.call(id, |id| unsafe { accept(id, &param) })?;
        let datagram = facts.space == port_space::UDP;
        self.set_stage(id, if datagram { Stage::Over } else { Stage::Accepted })
    }

    fn establish(&mut self, id: Handle) -> Result<()> {
        self.in_stage(id, &[Stage::Answered], "no accepted connection waits for it")?;
        let establish = self.calls().establish;
        // SAFETY: a live id.
        self.call(id, |id| unsafe { establish(id) })?;
        self.set_stage(id, Stage::Established)
    }

    fn reject(&mut self, _: u64, id: Handle, private_data: &[u8]) -> Result<()> {
        let stages = [Stage::Requested, Stage::Answered];
        let facts = self.in_stage(id, &stages, "there is no request to reject")?;
        let datagram = facts.space == port_space::UDP;
        check_data(private_data, if datagram { UD_ACCEPT_DATA_MAX } else { REJECT_DATA_MAX })?;
        let (reject, len) = (self.calls().reject, private_data.len() as u32);
        let data = if len == 0 { core::ptr::null() } else { private_data.as_ptr().cast() };
        // SAFETY: a live id; data that lives through the call.
        self.call(id, |id| unsafe { reject(id, data, len) })?;
        self.set_stage(id, Stage::Over)
    }

    fn disconnect(&mut self, _: u64, id: Handle) -> Result<()> {
        let stages = [Stage::Accepted, Stage::Established];
        self.in_stage(id, &stages, "it is not connected")?;
        let disconnect = self.calls().disconnect;
        // SAFETY: a live id.
        self.call(id, |id| unsafe { disconnect(id) })?;
        self.set_stage(id, Stage::Over)
    }

    fn qp(&mut self, id: Handle) -> Result<Handle> {
        Ok(self.facts(id)?.qp)
    }

    fn qp_attr(&mut self, id: Handle, state: u32) -> Result<(QpAttr, u32)> {
        let facts = self.facts(id)?;
        let attr = QpAttr { qp_state: state, port_num: 1, ..QpAttr::default() };
        let knows = matches!(
            facts.stage,
            Stage::Requested | Stage::Answered | Stage::Accepted | Stage::Established
        );
        match state {
            // Access and Q_Key are this side's own.
            qp_state::INIT => Ok(init_attr(facts.qp_type, UDP_QKEY)),
            qp_state::RTR if facts.qp_type == qp_type::UD => Ok((attr, mask::STATE)),
            qp_state::RTS if facts.qp_type == qp_type::UD => Ok((attr, mask::STATE | mask::SQ_PSN)),
            qp_state::RTR | qp_state::RTS if knows => {
                let (mut attr, set) = self.kernel_attr(id, state)?;
                attr.qp_state = state;
                attr.min_rnr_timer = MIN_RNR_TIMER;
                // The kernel has what the peer has asked for.
                attr.max_dest_rd_atomic = facts.responder_resources;
                attr.max_rd_atomic = facts.initiator_depth;
                Ok((attr, set))
            }
            _ => {
                let (to, is) = (qp_state::name(state), facts.stage);
                Err(refuse!(
                    Invalid,
                    "state {to}: INIT, RTR or RTS, the latter once the peer is known (the id is in \
                     {is:?})"
                ))
            }
        }
    }

    fn take_event(&mut self) -> Option<CmEvent> {
        let (channel, take) = (self.opened().ok()?.channel, self.calls().event);
        loop {
            let mut e = core::mem::MaybeUninit::<Event>::uninit();
            // SAFETY: a live channel, a writable result.
            if unsafe { take(channel, e.as_mut_ptr()) } != 0 {
                return None;
            }
            // SAFETY: written, as the call succeeded.
            let e = unsafe { e.assume_init() };
            if let Some(e) = self.follow(&e) {
                return Some(e);
            }
        }
    }
}

/// The device's queue pairs, and its manager.
struct Qps<'d>(&'d VerbsDevice);

impl<'d> ManagedQps for Qps<'d> {
    type Cm = Locked<'d>;

    fn address(&mut self, to: &AhAttr) -> Result<AhAttr> {
        self.0.reachable(to).map(|()| *to)
    }

    fn with_cm<R>(&mut self, f: impl FnOnce(&mut Locked<'d>) -> R) -> R {
        f(&mut self.0.manager())
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

    fn note_failed(&mut self, _: u64, e: &CmEvent) {
        let cause = cm_qps::cause_of(e);
        match self.0.qps.enter(e.qp) {
            Ok(qp) => self.0.note(qp.more(), cause.0, 0, (cause.1, cause.2)),
            Err(_) => self.0.note_device(cause.0, cause.1),
        }
    }
}

impl VerbsDevice {
    fn manager(&self) -> Locked<'_> {
        Locked { device: self, state: lock(&self.cm.state) }
    }
}

impl CmDevice for VerbsDevice {
    fn create(&self, port_space: u16, context: u64) -> Result<Handle> {
        self.manager().create(port_space, context)
    }

    fn set_context(&self, id: Handle, context: u64) -> Result<()> {
        self.manager().change(id, |f| f.context = context)
    }

    fn bind(&self, id: Handle, port: u16) -> Result<u16> {
        self.manager().bind(id, port)
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
        cm_qps::connect(&mut Qps(self), now_ns(), id, to, port, qp, param)
    }

    fn accept(&self, id: Handle, qp: Handle, param: &ConnParam<'_>) -> Result<()> {
        cm_qps::accept(&mut Qps(self), now_ns(), id, qp, param)
    }

    fn establish(&self, id: Handle) -> Result<()> {
        self.manager().establish(id)
    }

    fn reject(&self, id: Handle, private_data: &[u8]) -> Result<()> {
        self.manager().reject(0, id, private_data)
    }

    fn disconnect(&self, id: Handle) -> Result<()> {
        cm_qps::disconnect(&mut Qps(self), now_ns(), id)
    }

    fn destroy(&self, id: Handle) -> Result<()> {
        self.manager().destroy(id)
    }

    fn qp_attr(&self, id: Handle, state: u32) -> Result<(QpAttr, u32)> {
        self.manager().qp_attr(id, state)
    }

    fn event(&self) -> Result<Option<CmEvent>> {
        Ok(cm_qps::take_event(&mut Qps(self), now_ns()))
    }
}

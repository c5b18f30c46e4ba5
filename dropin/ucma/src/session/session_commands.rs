//! Executes commands of programs, except those of events and multicast.

use gdrcore_core::cm::types::port_space;
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::{qp_attr_mask as mask, qp_state, qp_type, QpAttr};
use gdrcore_core::{Error, Result};

use super::session_events::number;
use super::{CmSession, Devices, ManagerId, ProgramId, Stage, RNR_ENDLESS, RNR_LONGEST};
use crate::proto::{
    addr_answer, created, events_reported, path_answer, qp_attr_answer, query, Addr, ConnParam,
    Route,
};

/// Levels and names of SET_OPTION.
mod option {
    pub const LEVEL_ID: u32 = 0;
    pub const TOS: u32 = 0;
    pub const REUSEADDR: u32 = 1;
    pub const AFONLY: u32 = 2;
    pub const ACK_TIMEOUT: u32 = 3;
    pub const LEVEL_IB: u32 = 1;
    pub const PATH: u32 = 1;
    /// An `ib_path_rec_data`.
    pub const PATH_LEN: u32 = 72;
}

/// Least backlog of a listen. The kernel's backlog limits the requests that the program has not
/// fetched, the connection manager's those that it has not accepted. A program may fetch several
/// before it accepts the first, so a smaller one is raised.
const BACKLOG_MIN: u32 = 128;
/// `IBV_EVENT_COMM_EST`.
const COMM_EST: u32 = 4;
/// Largest ACK timeout code.
const ACK_TIMEOUT_MAX: u8 = 31;

impl<D: Devices> CmSession<D> {
    pub(super) fn create_id(
        &mut self,
        channel: u32,
        uid: u64,
        ps: u16,
        kind: u32,
    ) -> Result<Vec<u8>> {
        let qp_type = match ps {
            port_space::TCP => qp_type::RC,
            port_space::UDP => qp_type::UD,
            port_space::IB if kind == qp_type::RC || kind == qp_type::UC => kind,
            _ => {
                return Err(refuse!(
                    Invalid,
                    "ps {ps:#x}, qp_type {kind}: RDMA_PS_TCP, _UDP, or _IB with RC (2) or UC (3)"
                ))
            }
        };
        if !self.channels.contains_key(&channel) {
            return Err(Error::Os(9));
        }
        let id = self.fresh();
        self.ids.insert(id, ProgramId::new(channel, ps, qp_type, uid));
        Ok(created(id))
    }

    pub(super) fn destroy_id(&mut self, channel: u32, id: u32) -> Result<Vec<u8>> {
        let id = self.owned(channel, id)?;
        Ok(events_reported(self.remove(id)))
    }

    /// BIND_IP, BIND: takes a port on the device of the address, or for the "any" address on every
    /// device. If that is IPv4, or the program has set AFONLY, only devices of its family count.
    pub(super) fn bind(&mut self, id: u32, addr: Addr) -> Result<()> {
        let i = self.id(id)?;
        if i.stage != Stage::Idle {
            return Err(wrong_stage(i.stage, "it has an address already"));
        }
        let (device, devices) = if addr.is_any() {
            let own_family = i.own_family.unwrap_or(addr.ip.is_ipv4());
            (
                None,
                if own_family {
                    self.devices_of_family(&addr)
                } else {
                    (0..self.devices.list().len()).collect()
                },
            )
        } else {
            let device = self.device_with(&addr).ok_or(Error::NoDevice)?;
            (Some(device), vec![device])
        };
        let port = self.take_port(id, devices, addr.port)?;
        let src = match device {
            Some(d) => self.own_address(d, port, &addr),
            None => Addr { port, ..addr },
        };
        let i = self.id_mut(id)?;
        i.device = device;
        i.src = Some(src);
        i.stage = Stage::Bound;
        Ok(())
    }

    /// Announces the port of an id that a program has bound, because it will most likely listen.
    /// From now on requests for the port wait, even if the peer learns the port before the listen
    /// (qperf). If the device cannot announce, it refuses requests until the program listens.
    pub(super) fn announce(&self, id: u32) {
        for end in self.ids.get(&id).map_or(&[][..], |i| &i.ends) {
            let _ = end.manager.announce(end.handle, true);
        }
    }

    /// Gives an id ends with the same port on each of the devices that can be opened. Without a
    /// device of its family the id gets no ends, as with the kernel.
    fn take_port(&mut self, id: u32, devices: Vec<usize>, mut port: u16) -> Result<u16> {
        if devices.is_empty() {
            return Ok(port);
        }
        let ps = self.id(id)?.ps;
        let mut ends: Vec<ManagerId> = Vec::new();
        let mut why = Error::NoDevice;
        for device in devices {
            let manager = match self.devices.manager(device) {
                Ok(m) => m,
                // Another program may own that address; for "any" the other addresses are enough.
                Err(e) => {
                    why = e;
                    continue;
                }
            };
            let made = manager.create(ps, u64::from(id)).and_then(|handle| {
                ends.push(ManagerId { device, handle, manager: manager.clone() });
                manager.bind(handle, port)
            });
            match made {
                Ok(p) => port = p,
                Err(e) => {
                    for end in &ends {
                        let _ = end.manager.destroy(end.handle);
                    }
                    return Err(e);
                }
            }
        }
        if ends.is_empty() {
            return Err(why);
        }
        for end in &ends {
            self.by_handle.insert((end.device, end.handle), id);
        }
        self.id_mut(id)?.ends = ends;
        Ok(port)
    }

    /// Selects the device of an id, and removes the ends on others.
    fn settle(&mut self, id: u32, device: usize) -> Result<()> {
        self.id_mut(id)?.device = Some(device);
        self.keep_ends(id, |d| d == device)
    }

    /// Removes the ends on devices for which `keep` is false.
    fn keep_ends(&mut self, id: u32, keep: impl Fn(usize) -> bool) -> Result<()> {
        let (stay, go): (Vec<_>, Vec<_>) =
            self.id_mut(id)?.ends.drain(..).partition(|e| keep(e.device));
        self.id_mut(id)?.ends = stay;
        for end in go {
            self.by_handle.remove(&(end.device, end.handle));
            let _ = end.manager.destroy(end.handle);
        }
        Ok(())
    }

    /// If the id is bound to the "any" address, removes its ends on devices of the other family.
    fn leave_other_family(&mut self, id: u32) -> Result<()> {
        let Some(any) = self.id(id)?.src.filter(Addr::is_any) else { return Ok(()) };
        let stay = self.devices_of_family(&any);
        self.keep_ends(id, |device| stay.contains(&device))
    }

    /// RESOLVE_IP, RESOLVE_ADDR. An unreachable destination causes an event, as with the kernel.
    pub(super) fn resolve(&mut self, id: u32, src: Option<Addr>, dst: Addr) -> Result<()> {
        let any = Addr {
            ip: if dst.ip.is_ipv4() { [0; 4].into() } else { [0; 16].into() },
            port: 0,
            scope_id: 0,
        };
        match self.id(id)?.stage {
            Stage::Idle => self.bind(id, src.unwrap_or(any))?,
            Stage::Bound => {
                // The id connects, so it will not listen.
                for end in &self.id(id)?.ends {
                    let _ = end.manager.announce(end.handle, false);
                }
            }
            stage => return Err(wrong_stage(stage, "addresses are resolved before anything else")),
        }
        let device = self.id(id)?.device.or_else(|| self.device_towards(&dst));
        let Some(device) = device else {
            self.raise_plain(id, number::ADDR_ERROR, -Error::NoDevice.errno());
            return Ok(());
        };
        if !self.id(id)?.ends.iter().any(|e| e.device == device) {
            self.raise_plain(id, number::ADDR_ERROR, -Error::NoDevice.errno());
            return Ok(());
        }
        self.settle(id, device)?;
        let port = self.id(id)?.src.map_or(0, |s| s.port);
        let own = self.own_address(device, port, &dst);
        if own.v4().is_some() != dst.v4().is_some() {
            self.raise_plain(id, number::ADDR_ERROR, -Error::NoDevice.errno());
            return Ok(());
        }
        let dst = self.destination(device, dst);
        let i = self.id_mut(id)?;
        i.src = Some(own);
        i.dst = Some(dst);
        i.stage = Stage::AddrResolved;
        self.raise_plain(id, number::ADDR_RESOLVED, 0);
        Ok(())
    }

    pub(super) fn resolve_route(&mut self, id: u32) -> Result<()> {
        let i = self.id_mut(id)?;
        if i.stage != Stage::AddrResolved {
            return Err(wrong_stage(i.stage, "a route is resolved after an address"));
        }
        i.stage = Stage::RouteResolved;
        self.raise_plain(id, number::ROUTE_RESOLVED, 0);
        Ok(())
    }

    /// The answer to a query of an id.
    pub(super) fn route(&self, id: u32) -> Result<Route> {
        let i = self.id(id)?;
        let mut route =
            Route { src: i.src, dst: i.dst, traffic_class: i.traffic_class, ..Route::default() };
        if let Some(d) = i.device.and_then(|d| self.devices.list().get(d)) {
            route.node_guid = d.node_guid;
            route.device_index = d.index;
            route.mtu = self.end(id).map_or(0, |e| e.manager.path_mtu(&i.peer()));
            route.resolved =
                matches!(i.stage, Stage::RouteResolved | Stage::Requested | Stage::Begun);
        }
        Ok(route)
    }

    pub(super) fn query(&self, id: u32, option: u32) -> Result<Vec<u8>> {
        let route = self.route(id)?;
        match option {
            query::ADDR => Ok(addr_answer(&route, false)),
            query::GID => Ok(addr_answer(&route, true)),
            query::PATH => Ok(path_answer(&route)),
            _ => Err(refuse!(Unsupported, "option {option}: an address, a GID or a path")),
        }
    }

    pub(super) fn listen(&mut self, id: u32, backlog: u32) -> Result<()> {
        if self.id(id)?.stage == Stage::Idle {
            self.bind(id, Addr { ip: [0; 4].into(), port: 0, scope_id: 0 })?;
        }
        let i = self.id(id)?;
        if i.stage != Stage::Bound {
            return Err(wrong_stage(i.stage, "one that listens is bound, and nothing else"));
        }
        for end in &i.ends {
            end.manager
                .listen(end.handle, if backlog == 0 { 0 } else { backlog.max(BACKLOG_MIN) })?;
        }
        self.id_mut(id)?.stage = Stage::Listening;
        Ok(())
    }

    pub(super) fn connect(&mut self, id: u32, param: &ConnParam<'_>) -> Result<()> {
        let i = self.id(id)?;
        if i.stage != Stage::RouteResolved {
            return Err(wrong_stage(i.stage, "one connects after its route is resolved"));
        }
        if !param.valid {
            return Err(refuse!(Invalid, "conn_param: none"));
        }
        let port = i.dst.map_or(0, |d| d.port);
        let end = self.end(id)?;
        end.manager
            .connect(end.handle, &i.peer(), port, 0, &i.offer(param))
            .map_err(too_long_is_invalid)?;
        let i = self.id_mut(id)?;
        i.stage = Stage::Begun;
        i.rnr_endless = param.rnr_retry_count >= RNR_ENDLESS;
        Ok(())
    }

    /// ACCEPT. Without parameters it answers a CONNECT_RESPONSE.
    pub(super) fn accept(&mut self, id: u32, uid: u64, param: &ConnParam<'_>) -> Result<()> {
        let i = self.id(id)?;
        let end = self.end(id)?;
        if !param.valid {
            return end.manager.establish(end.handle);
        }
        if i.stage != Stage::Requested {
            return Err(wrong_stage(i.stage, "there is no request to accept"));
        }
        let offer = i.offer(param);
        end.manager.accept(end.handle, 0, &offer).map_err(too_long_is_invalid)?;
        let i = self.id_mut(id)?;
        i.uid = uid;
        i.qkey = offer.qkey;
        i.stage = Stage::Begun;
        Ok(())
    }

    pub(super) fn reject(&mut self, id: u32, private_data: &[u8]) -> Result<()> {
        let end = self.end(id)?;
        end.manager.reject(end.handle, private_data).map_err(too_long_is_invalid)
    }

    /// DISCONNECT. After the peer's disconnect it does nothing and succeeds.
    pub(super) fn disconnect(&mut self, id: u32) -> Result<()> {
        let begun = self.id(id)?.stage == Stage::Begun;
        if let Some(i) = self.ids.get_mut(&id) {
            i.disconnects = true;
        }
        let end = self.end(id)?;
        match end.manager.disconnect(end.handle) {
            Err(Error::Invalid | Error::StaleHandle) if begun => Ok(()),
            other => other,
        }
    }

    /// INIT_QP_ATTR: the attributes with which the library moves its QP.
    pub(super) fn init_qp_attr(&self, id: u32, state: u32) -> Result<Vec<u8>> {
        if state > qp_state::ERR {
            return Err(refuse!(Invalid, "qp_state {state}: at most {}", qp_state::ERR));
        }
        let i = self.id(id)?;
        let device = i.device.and_then(|d| self.devices.list().get(d));
        let device = device.ok_or_else(|| wrong_stage(i.stage, "its device is not decided yet"))?;
        let (attr, m) = if i.is_datagram() {
            self.datagram_attr(i, state)
        } else {
            let end = self.end(id)?;
            let (mut attr, m) = end.manager.qp_attr(end.handle, state)?;
            if state == qp_state::INIT && i.qp_type == qp_type::UC {
                attr.qp_access_flags &= gdrcore_core::verbs::types::access::REMOTE_WRITE;
            }
            if m & mask::MIN_RNR_TIMER != 0 && !i.rnr_endless {
                // As the kernel: a peer that retries five times then gives this side three seconds
                // to post a receive, not three milliseconds. With endless retries the short wait is
                // faster.
                attr.min_rnr_timer = RNR_LONGEST;
            }
            attr.ah.traffic_class = i.traffic_class;
            if let Some(code) = i.ack_timeout {
                // The program's value for either side: the request's value is only the default.
                attr.timeout = code;
            }
            (attr, m)
        };
        Ok(qp_attr_answer(&attr, m, device.gid_index))
    }

    fn datagram_attr(&self, i: &ProgramId, state: u32) -> (QpAttr, u32) {
        let attr = QpAttr { qp_state: state, port_num: 1, qkey: i.qkey, ..QpAttr::default() };
        let m = match state {
            qp_state::INIT => mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::QKEY,
            qp_state::RTS => mask::STATE | mask::SQ_PSN,
            _ => mask::STATE,
        };
        (attr, m)
    }

    pub(super) fn set_option(
        &mut self,
        id: u32,
        level: u32,
        name: u32,
        len: u32,
        read: &dyn Fn(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let byte = || {
            let mut b = [0; 1];
            read(&mut b)?;
            Ok::<u8, Error>(b[0])
        };
        let i = self.ids.get_mut(&id).ok_or(crate::proto::NO_ENTRY)?;
        match (level, name, len) {
            (option::LEVEL_ID, option::TOS, 1) => i.traffic_class = byte()?,
            // A port is free once its id is destroyed, so this option has no effect.
            (option::LEVEL_ID, option::REUSEADDR, 4) if i.stage == Stage::Idle => {}
            (option::LEVEL_ID, option::AFONLY, 4)
                if matches!(i.stage, Stage::Idle | Stage::Bound) =>
            {
                let mut word = [0; 4];
                read(&mut word)?;
                let own = u32::from_ne_bytes(word) != 0;
                i.own_family = Some(own);
                if own {
                    self.leave_other_family(id)?;
                }
            }
            (option::LEVEL_ID, option::ACK_TIMEOUT, 1) => match byte()? {
                code @ 0..=ACK_TIMEOUT_MAX => i.ack_timeout = Some(code),
                code => {
                    return Err(refuse!(Invalid, "ack timeout {code}: at most {ACK_TIMEOUT_MAX}"))
                }
            },
            // A path that the program sets in place of resolution: there is only one path here.
            (option::LEVEL_IB, option::PATH, len) if len > 0 && len % option::PATH_LEN == 0 => {
                self.resolve_route(id)?;
            }
            (option::LEVEL_ID, option::TOS..=option::ACK_TIMEOUT, _)
            | (option::LEVEL_IB, option::PATH, _) => {
                return Err(refuse!(
                    Invalid,
                    "option {name} of level {level}: {len} bytes is not its length"
                ));
            }
            // ENOSYS, as from the kernel.
            _ => return Err(Error::Os(38)),
        }
        Ok(())
    }

    /// NOTIFY. Nothing to do: if data arrives before the handshake's last message, the peer repeats
    /// that message on request.
    pub(super) fn notify(&mut self, id: u32, event: u32) -> Result<()> {
        if self.id(id)?.stage == Stage::Begun && event == COMM_EST {
            Ok(())
        } else {
            Err(refuse!(Invalid, "event {event}: IBV_EVENT_COMM_EST, of an id that connects"))
        }
    }
}

#[cold]
fn wrong_stage(stage: Stage, why: &str) -> Error {
    refuse!(Invalid, "the id is in stage {stage:?}: {why}")
}

/// The kernel's error for too much private data is EINVAL.
fn too_long_is_invalid(e: Error) -> Error {
    match e {
        Error::MessageSize => {
            refuse!(Invalid, "private_data_len: longer than the message has room for")
        }
        e => e,
    }
}

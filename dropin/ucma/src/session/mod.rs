//! A process's session: the state that the kernel would have for it. This is its open files
//! (channels), the ids in them, and queued events.
//!
//! Sans-IO: commands and answers are bytes, and devices are reached through [`Devices`]. The owner
//! of a channel's descriptor makes it readable while [`CmSession::queued`] is not 0.
//!
//! An id is in one channel and may move to another. When it gets a port, it gets ids of the
//! connection manager (**ends**): one on its device, or one on each device while it is bound to no
//! address. The library moves queue pairs by the answers to INIT_QP_ATTR; the session moves none.

mod choose;
mod session_commands;
mod session_events;
mod session_groups;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;
use std::sync::Arc;

use gdrcore_core::cm::types::{port_space, ConnParam};
use gdrcore_core::device::CmDevice;
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::{AhAttr, Handle};
use gdrcore_core::{Error, Result};

use crate::proto::{Addr, Command, NO_ENTRY};
use session_events::Event;
use session_groups::Group;

/// A device's connection manager.
pub trait Manage: Deref<Target = dyn CmDevice> {
    /// Largest path MTU code of the route to a peer, as far as this host knows it.
    fn path_mtu(&self, to: &AhAttr) -> u8;
}

/// A connection manager. Its device stays open while an id needs it.
pub type Manager = Arc<dyn Manage + Send + Sync>;

/// Attributes of a device before it is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Node GUID in host order, as `ibv_get_device_guid` gives it in network order; not 0.
    pub node_guid: u64,
    /// `ibv_get_device_index`.
    pub index: u32,
    /// The device's GID.
    pub gid: [u8; 16],
    /// Its place in the GID table.
    pub gid_index: u8,
    /// IPv6 zone of the GID, else 0.
    pub scope_id: u32,
}

/// The devices that `ibv_get_device_list` shows, in its order, which never changes.
pub trait Devices {
    /// All of them.
    fn list(&self) -> &[DeviceInfo];
    /// The connection manager of a device; opens the device if need be. The same one while it is
    /// open.
    ///
    /// # Errors
    /// [`Error::NoDevice`], or the error of opening it.
    fn manager(&self, device: usize) -> Result<Manager>;
}

/// An end: an id of the connection manager behind one of the program's ids.
struct ManagerId {
    device: usize,
    handle: Handle,
    manager: Manager,
}

/// The stage of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Idle,
    Bound,
    AddrResolved,
    RouteResolved,
    Listening,
    /// A peer's request, for the program to accept or reject.
    Requested,
    /// The program has requested or accepted; from now on the connection manager has the state.
    Begun,
}

struct ProgramId {
    channel: u32,
    /// The library's number. 0: a request that is not accepted yet, whose events are dropped.
    uid: u64,
    ps: u16,
    qp_type: u32,
    stage: Stage,
    ends: Vec<ManagerId>,
    /// The device, once an address has selected it.
    device: Option<usize>,
    src: Option<Addr>,
    dst: Option<Addr>,
    qkey: u32,
    traffic_class: u8,
    /// The ACK timeout that the program has set.
    ack_timeout: Option<u8>,
    /// Whether the peer retries without end when this side has no receive posted.
    rnr_endless: bool,
    /// RDMA_OPTION_ID_AFONLY, if the program has set it: the "any" address covers only its family.
    own_family: Option<bool>,
    /// The program has requested the end of its connection.
    disconnects: bool,
    /// Events that the program has taken.
    reported: u32,
}

struct Channel {
    events: VecDeque<Event>,
}

/// The ids of a process.
pub struct CmSession<D> {
    devices: D,
    channels: BTreeMap<u32, Channel>,
    ids: BTreeMap<u32, ProgramId>,
    groups: BTreeMap<u32, Group>,
    /// The program's id of each id of the connection manager.
    by_handle: BTreeMap<(usize, Handle), u32>,
    last: u32,
}

/// Bytes for the program, and their destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Address in the program.
    pub at: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Default ACK timeout code: 0.5 s, as Linux's rdma_cm has it for RoCE (cma.c
/// `CMA_IBOE_PACKET_LIFETIME`). A peer whose process waits for a CPU may be silent for that long.
/// Probes find losses earlier.
const ACK_TIMEOUT: u8 = 17;
/// "Without end" in counts of RNR retries.
const RNR_ENDLESS: u8 = 7;
/// RNR NAK timer code 0: 655 ms.
const RNR_LONGEST: u8 = 0;
/// Q_Key of UD ids that name none (Linux `RDMA_UDP_QKEY`).
const UDP_QKEY: u32 = 0x0123_4567;
const BITS_24: u32 = 0xff_ffff;

impl<D: Devices> CmSession<D> {
    /// A session without channels.
    pub fn new(devices: D) -> Self {
        CmSession {
            devices,
            channels: BTreeMap::new(),
            ids: BTreeMap::new(),
            groups: BTreeMap::new(),
            by_handle: BTreeMap::new(),
            last: 0,
        }
    }

    /// The devices of the session.
    pub fn devices(&self) -> &D {
        &self.devices
    }

    /// Opens a channel; the session chooses its number.
    pub fn open(&mut self) -> u32 {
        let channel = self.fresh();
        self.channels.insert(channel, Channel { events: VecDeque::new() });
        channel
    }

    /// Closes a channel and destroys its contents. An unknown one is ignored.
    pub fn close(&mut self, channel: u32) {
        let of = |(&number, id): (&u32, &ProgramId)| (id.channel == channel).then_some(number);
        for id in self.ids.iter().filter_map(of).collect::<Vec<_>>() {
            self.remove(id);
        }
        self.channels.remove(&channel);
    }

    /// The number of events queued in a channel.
    pub fn queued(&self, channel: u32) -> usize {
        self.channels.get(&channel).map_or(0, |c| c.events.len())
    }

    /// The number of ids.
    #[cfg(test)]
    pub(crate) fn ids(&self) -> usize {
        self.ids.len()
    }

    /// Executes a command that was written to a channel. `option` reads the program's memory for
    /// SET_OPTION; `channel_of` returns the channel of a descriptor.
    ///
    /// # Errors
    /// [`Error::Invalid`]: not a command, or not one for this id in this state; `ENOENT`: no such
    /// id in this channel; [`Error::Again`]: GET_EVENT, and no event is queued;
    /// [`Error::NoDevice`], [`Error::AddressInUse`]: as for bind(2); [`Error::NoMemory`]: the
    /// device's ids are in use.
    pub fn execute(
        &mut self,
        channel: u32,
        bytes: &[u8],
        option: &dyn Fn(u64, &mut [u8]) -> Result<()>,
        channel_of: &dyn Fn(i32) -> Option<u32>,
    ) -> Result<Option<Answer>> {
        let (command, room) = Command::parse(bytes)?;
        let fit = |at: u64, mut bytes: Vec<u8>| {
            bytes.truncate(room);
            Some(Answer { at, bytes })
        };
        Ok(match command {
            Command::CreateId { response, uid, ps, qp_type } => {
                fit(response, self.create_id(channel, uid, ps, u32::from(qp_type))?)
            }
            Command::DestroyId { response, id } => fit(response, self.destroy_id(channel, id)?),
            Command::Bind { id, addr } => {
                let id = self.owned(channel, id)?;
                self.bind(id, addr)?;
                self.announce(id);
                None
            }
            Command::Resolve { id, src, dst } => {
                self.resolve(self.owned(channel, id)?, src, dst)?;
                None
            }
            Command::ResolveRoute { id } => {
                self.resolve_route(self.owned(channel, id)?)?;
                None
            }
            Command::QueryRoute { response, id } => {
                fit(response, crate::proto::route_answer(&self.route(self.owned(channel, id)?)?))
            }
            Command::Query { response, id, option } => {
                fit(response, self.query(self.owned(channel, id)?, option)?)
            }
            Command::Connect { id, param } => {
                self.connect(self.owned(channel, id)?, &param)?;
                None
            }
            Command::Listen { id, backlog } => {
                self.listen(self.owned(channel, id)?, backlog)?;
                None
            }
            Command::Accept { id, uid, param } => {
                self.accept(self.owned(channel, id)?, uid, &param)?;
                None
            }
            Command::Reject { id, private_data, .. } => {
                self.reject(self.owned(channel, id)?, private_data)?;
                None
            }
            Command::Disconnect { id } => {
                self.disconnect(self.owned(channel, id)?)?;
                None
            }
            Command::InitQpAttr { response, id, qp_state } => {
                fit(response, self.init_qp_attr(self.owned(channel, id)?, qp_state)?)
            }
            Command::GetEvent { response } => fit(response, self.get_event(channel)?),
            Command::SetOption { id, level, name, value, len } => {
                let id = self.owned(channel, id)?;
                self.set_option(id, level, name, len, &|to| option(value, to))?;
                None
            }
            Command::Notify { id, event } => {
                self.notify(self.owned(channel, id)?, event)?;
                None
            }
            Command::Join { response, uid, id, addr, send_only } => {
                fit(response, self.join(self.owned(channel, id)?, uid, addr, send_only)?)
            }
            Command::Leave { response, id } => fit(response, self.leave(channel, id)?),
            Command::Migrate { response, id, fd } => {
                let from = channel_of(fd).ok_or(Error::Os(9))?;
                fit(response, self.migrate(self.owned(from, id)?, channel)?)
            }
            Command::WriteEvent { id, event, status, argument } => {
                self.write_event(self.owned(channel, id)?, event, status, argument)?;
                None
            }
        })
    }

    /// An unused number.
    fn fresh(&mut self) -> u32 {
        loop {
            self.last = self.last.wrapping_add(1).max(1);
            let n = self.last;
            if !self.ids.contains_key(&n)
                && !self.groups.contains_key(&n)
                && !self.channels.contains_key(&n)
            {
                return n;
            }
        }
    }

    /// The id, if it is in this channel.
    fn owned(&self, channel: u32, id: u32) -> Result<u32> {
        match self.ids.get(&id) {
            Some(i) if i.channel == channel => Ok(id),
            Some(_) => Err(refuse!(Invalid, "id {id}: of another event channel")),
            None => Err(NO_ENTRY),
        }
    }

    fn id(&self, id: u32) -> Result<&ProgramId> {
        self.ids.get(&id).ok_or(NO_ENTRY)
    }

    fn id_mut(&mut self, id: u32) -> Result<&mut ProgramId> {
        self.ids.get_mut(&id).ok_or(NO_ENTRY)
    }

    /// The end of an id whose device is selected.
    fn end(&self, id: u32) -> Result<&ManagerId> {
        match self.id(id)?.ends.as_slice() {
            [end] => Ok(end),
            _ => Err(refuse!(Invalid, "id {id}: its device is not decided yet")),
        }
    }

    /// Removes an id with its ends, its groups and its events.
    fn remove(&mut self, id: u32) -> u32 {
        let groups =
            self.groups.iter().filter_map(|(&n, g)| (g.id == id).then_some(n)).collect::<Vec<_>>();
        for g in groups {
            self.groups.remove(&g);
        }
        let Some(gone) = self.ids.remove(&id) else { return 0 };
        for end in &gone.ends {
            self.by_handle.remove(&(end.device, end.handle));
            // The manager still sends the last messages to the peer. An id that the manager has
            // destroyed already is no error here.
            let _ = end.manager.destroy(end.handle);
        }
        self.drop_events(gone.channel, id);
        gone.reported
    }
}

impl ProgramId {
    /// A new id. `uid` 0: for a request that the program has not accepted.
    fn new(channel: u32, ps: u16, qp_type: u32, uid: u64) -> ProgramId {
        ProgramId {
            channel,
            uid,
            ps,
            qp_type,
            stage: Stage::Idle,
            ends: Vec::new(),
            device: None,
            src: None,
            dst: None,
            qkey: UDP_QKEY,
            traffic_class: 0,
            ack_timeout: None,
            rnr_endless: false,
            own_family: None,
            disconnects: false,
            reported: 0,
        }
    }

    fn is_datagram(&self) -> bool {
        self.ps == port_space::UDP
    }

    /// This side's parameters in the connection manager's form.
    fn offer<'a>(&self, p: &crate::proto::ConnParam<'a>) -> ConnParam<'a> {
        ConnParam {
            // A request of a datagram service names no QP.
            qpn: if self.is_datagram() && self.stage != Stage::Requested {
                p.qp_num.max(2)
            } else {
                p.qp_num
            },
            qp_type: self.qp_type,
            psn: None,
            responder_resources: p.responder_resources,
            initiator_depth: p.initiator_depth,
            retry_count: p.retry_count.min(7),
            rnr_retry: p.rnr_retry_count.min(7),
            ack_timeout: self.ack_timeout.unwrap_or(ACK_TIMEOUT),
            response_timeout: 0,
            path_mtu: 0,
            srq: p.srq,
            qkey: if p.qkey == 0 { self.qkey } else { p.qkey },
            private_data: p.private_data,
        }
    }

    /// The destination of its packets.
    fn peer(&self) -> AhAttr {
        let (dgid, scope_id) = self.dst.map_or(([0; 16], 0), |d| (d.gid(), d.scope_id));
        AhAttr { dgid, scope_id, traffic_class: self.traffic_class, ..AhAttr::default() }
    }
}

//! Multicast groups that ids have joined. A join returns the group's GID. The QP becomes a member
//! when the library attaches it.

use gdrcore_core::refuse;
use gdrcore_core::verbs::types::AhAttr;
use gdrcore_core::{Error, Result};

use super::{CmSession, Devices, Stage, UDP_QKEY};
use crate::proto::{created, events_reported, Addr, NO_ENTRY};

/// A group, for one id.
pub(super) struct Group {
    pub(super) id: u32,
    pub(super) uid: u64,
    pub(super) reported: u32,
    gid: [u8; 16],
}

impl<D: Devices> CmSession<D> {
    /// JOIN_IP_MCAST, JOIN_MCAST.
    pub(super) fn join(
        &mut self,
        id: u32,
        uid: u64,
        addr: Addr,
        send_only: bool,
    ) -> Result<Vec<u8>> {
        let i = self.id(id)?;
        let Some(device) = i.device else { return Err(Error::NoDevice) };
        let usable = matches!(i.stage, Stage::Bound | Stage::AddrResolved | Stage::RouteResolved);
        if !usable || !i.is_datagram() || !addr.is_multicast() {
            return Err(refuse!(
                Invalid,
                "id in stage {:?}: a group is joined by a \
                 bound id of RDMA_PS_UDP, at a group's address",
                i.stage
            ));
        }
        if send_only {
            // Only a switch could treat such a member differently.
            return Err(refuse!(
                Unsupported,
                "join_flags 1: members that only send are not told apart"
            ));
        }
        let (gid, traffic_class, qkey) = (addr.gid(), i.traffic_class, i.qkey);
        if self.groups.values().any(|g| g.id == id && g.gid == gid) {
            return Err(Error::AddressInUse);
        }
        let info = self.devices.list().get(device).copied().ok_or(Error::NoDevice)?;
        let group = self.fresh();
        self.groups.insert(group, Group { id, uid, reported: 0, gid });
        let qkey = if qkey == 0 { UDP_QKEY } else { qkey };
        // One hop, the default of IP multicast.
        let ah = AhAttr {
            dgid: gid,
            scope_id: addr.scope_id,
            hop_limit: 1,
            traffic_class,
            ..AhAttr::default()
        };
        self.raise_joined(id, group, ah, info.gid_index, qkey);
        Ok(created(group))
    }

    /// LEAVE_MCAST.
    pub(super) fn leave(&mut self, channel: u32, group: u32) -> Result<Vec<u8>> {
        let id = self.groups.get(&group).ok_or(NO_ENTRY)?.id;
        self.owned(channel, id)?;
        let gone = self.groups.remove(&group).ok_or(NO_ENTRY)?;
        self.drop_group_events(id, group);
        Ok(events_reported(gone.reported))
    }
}

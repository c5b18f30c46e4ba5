//! Regions that are granted to peers of this host: regions whose memory the program shares and, if
//! it enables that, all others, by address.

use crate::map::is_mapping_of;
use crate::shm::messages::GrantRequest;
use crate::shm::ShmPort;
use crate::soft::lock::EngineLock;
use crate::soft::peers::grant_checks::check_grants;
use crate::soft::{PortState, SoftEngine};
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::error::Result;
use gdrcore_core::refuse;
use gdrcore_core::roce::peer::Path;
use gdrcore_core::verbs::post;
use gdrcore_core::verbs::shared::QpShared;
use gdrcore_core::verbs::types::{wr_opcode, Handle, SendWr};

/// Control: regions that peers may write. Data, under the lock: WRITEs into regions of peers.
impl SoftEngine {
    /// See [`gdrcore_core::device::Device::mr_share`].
    pub(in crate::soft) fn share_region(&self, mr: Handle, fd: i32, offset: u64) -> Result<()> {
        let region = self.lock()?.mr_query(mr)?;
        if !is_mapping_of(region.addr, region.length, fd, offset)? {
            return Err(refuse!(
                Invalid,
                "fd {fd}: the region is no shared mapping \
                 of it from fd_offset {offset:#x} on"
            ));
        }
        let mut held = self.lock_control();
        // The region may have been destroyed meanwhile, or have another range.
        if held.mr_query(mr)? != region || region.provider != 0 {
            return Err(refuse!(Invalid, "mr: not host memory, or it has changed during the call"));
        }
        match &mut held.port().shm {
            Some(shm) if shm.is_shared(region.rkey) => {
                return Err(refuse!(Busy, "mr: it is shared already"))
            }
            Some(shm) => shm.share(region.rkey, fd, offset)?,
            None => return Ok(()),
        }
        // A grant by address ends, because the region can be mapped from now on.
        let (g, port) = held.parts();
        check_grants(g, port);
        Ok(())
    }

    /// Ends the sharing of a region that was destroyed or changed. No peer writes into it
    /// afterwards.
    pub(in crate::soft) fn unshare_region(held: &mut EngineLock<'_>, rkey: u32) {
        let (g, port) = held.parts();
        if let Some(shm) = &mut port.shm {
            shm.unshare(rkey);
        }
        check_grants(g, port);
    }

    /// Executes the WRITEs that were just posted to a QP as copies into memory of its peer. Returns
    /// false if any WRITE is left.
    #[cold]
    #[inline(never)]
    pub(in crate::soft) fn write_peer(
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        qi: usize,
    ) -> bool {
        let Some(shm) = &mut port.shm else { return false };
        let Some(Path::Link(link)) = g.path_of(qi) else { return false };
        match shm.peer_grants_any(link) {
            Some(memory) => g.write_peer(qi, memory),
            None => false,
        }
    }

    /// Executes a single WRITE that is not posted, as a copy into memory of the QP's peer. Returns
    /// false if the WRITE must be posted.
    ///
    /// # Safety
    /// As for [`post::send`].
    #[inline(never)]
    pub(in crate::soft) unsafe fn write_peer_single(
        &self,
        qi: usize,
        q: &QpShared,
        wr: *const SendWr,
    ) -> bool {
        // SAFETY: our contract.
        unsafe { post::expect_write(q, wr) };
        // SAFETY: our contract.
        let write = unsafe { post::single(q, wr) };
        let Some(write) = write.filter(|write| write.opcode == wr_opcode::RDMA_WRITE) else {
            return false;
        };
        self.try_unposted(qi, |held| {
            let (g, port) = held.parts();
            let Some(shm) = &mut port.shm else { return false };
            g.write_peer_single(qi, &write, |link| shm.peer_grants(link))
        })
    }
}

/// Grants the regions that peers have requested, if every WRITE to the whole region would be
/// allowed.
pub(in crate::soft) fn export_requested(g: &EngineGuard<'_>, shm: &mut ShmPort) {
    while let Some(asked) = shm.take_request() {
        let GrantRequest { from_qpn, qpn, rkey } = asked.request;
        if let Some(region) = g.mappable_region(qpn, from_qpn, &asked.from.ip, rkey) {
            shm.export(&asked, &region);
        }
    }
}

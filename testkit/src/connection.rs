//! The steps from RESET to RTS: the attributes and masks that each transition of a queue pair
//! needs, by its type.

use gdrcore_core::verbs::types::{
    access, mtu, qp_attr_mask as mask, qp_state, qp_type, AhAttr, QpAttr,
};

/// Attributes of a connection, from one end.
#[derive(Clone, Copy, Debug)]
pub struct Connection {
    /// One of `qp_type`.
    pub qp_type: u32,
    /// Rights of the peer (all but UD).
    pub access: u32,
    /// Q_Key (UD).
    pub qkey: u32,
    /// Path MTU code.
    pub mtu: u32,
    /// Address of the peer.
    pub ah: AhAttr,
    /// QPN of the peer.
    pub dest_qpn: u32,
    /// First PSN of this end, and of the peer.
    pub psn: (u32, u32),
    /// READs and atomics in flight, in either direction.
    pub rd_atomic: u8,
    /// RNR NAK timer code.
    pub min_rnr_timer: u8,
    /// ACK timeout code.
    pub timeout: u8,
    /// Retries after a timeout.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK.
    pub rnr_retry: u8,
    /// Whether the peer is known to be a soft device, as endpoints of the C API state.
    pub peer_is_soft: bool,
}

impl Default for Connection {
    fn default() -> Self {
        Connection {
            qp_type: qp_type::RC,
            access: access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC,
            qkey: 0x1122_3344,
            mtu: mtu::MTU_1024,
            ah: AhAttr::default(),
            dest_qpn: 0,
            psn: (0, 0),
            rd_atomic: 8,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            peer_is_soft: false,
        }
    }
}

impl Connection {
    /// The attributes of all steps.
    fn attr(&self, qp_state: u32) -> QpAttr {
        QpAttr {
            qp_state,
            port_num: 1,
            qkey: self.qkey,
            qp_access_flags: self.access,
            path_mtu: self.mtu,
            dest_qp_num: self.dest_qpn,
            sq_psn: self.psn.0,
            rq_psn: self.psn.1,
            ah: self.ah,
            max_rd_atomic: self.rd_atomic,
            max_dest_rd_atomic: self.rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            timeout: self.timeout,
            retry_cnt: self.retry_cnt,
            rnr_retry: self.rnr_retry,
            peer_is_soft: self.peer_is_soft.into(),
            ..QpAttr::default()
        }
    }

    /// Arguments of the modify call from RESET to INIT.
    pub fn to_init(&self) -> (QpAttr, u32) {
        let own = match self.qp_type {
            qp_type::UD => mask::QKEY,
            qp_type::DCI => 0,
            _ => mask::ACCESS_FLAGS,
        };
        (self.attr(qp_state::INIT), mask::STATE | mask::PKEY_INDEX | mask::PORT | own)
    }

    /// Arguments of the modify call from INIT to RTR.
    pub fn to_rtr(&self) -> (QpAttr, u32) {
        let connected = mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN;
        let set = match self.qp_type {
            qp_type::RC | qp_type::XRC_RECV => {
                connected | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER
            }
            qp_type::UC | qp_type::XRC_SEND => connected,
            // No address: that of a request's target comes with the request.
            qp_type::DCI => mask::AV | mask::PATH_MTU,
            qp_type::DCT => mask::AV | mask::PATH_MTU | mask::MIN_RNR_TIMER,
            _ => 0,
        };
        (self.attr(qp_state::RTR), mask::STATE | set)
    }

    /// Arguments of the modify call from RTR to RTS.
    pub fn to_rts(&self) -> (QpAttr, u32) {
        let reliable = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC;
        let set = match self.qp_type {
            qp_type::RC | qp_type::XRC_SEND | qp_type::DCI => reliable,
            qp_type::XRC_RECV => mask::TIMEOUT,
            _ => 0,
        };
        (self.attr(qp_state::RTS), mask::STATE | mask::SQ_PSN | set)
    }

    /// All that the type has, in order: a DCT is ready in RTR.
    pub fn steps(&self) -> impl Iterator<Item = (QpAttr, u32)> {
        let n = if self.qp_type == qp_type::DCT { 2 } else { 3 };
        [self.to_init(), self.to_rtr(), self.to_rts()].into_iter().take(n)
    }
}

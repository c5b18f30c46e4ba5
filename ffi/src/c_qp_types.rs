//! Structs of queue pairs and related ones: addresses, attributes, endpoints.

use crate::c_handles::*;
use gdrcore_core::verbs::types::{AhAttr, QpCap};

/// The destination of a QP or an address handle: 24 bytes. Frozen, as it lies inside gdrc_qp_attr.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_ah_attr {
    /// Destination GID: an IPv6 address, or an IPv4 address as ::ffff:a.b.c.d.
    pub dgid: [u8; 16],
    /// IPv6 zone (interface index) for link-local destinations, else 0.
    pub scope_id: u32,
    /// Destination UDP port in host byte order; 0: the device's own.
    pub udp_port: u16,
    /// IP hop limit; 0 and 1: the system's default.
    pub hop_limit: u8,
    /// Traffic class: DSCP. The two ECN bits are ignored, because they are the device's
    /// (GDRC_CONFIG_DCQCN).
    pub traffic_class: u8,
}

// The flow label is beside the frozen struct.
impl From<gdrc_ah_attr> for AhAttr {
    fn from(a: gdrc_ah_attr) -> AhAttr {
        let gdrc_ah_attr { dgid, scope_id, udp_port, hop_limit, traffic_class } = a;
        AhAttr { dgid, scope_id, udp_port, hop_limit, traffic_class, flow_label: 0 }
    }
}

impl From<AhAttr> for gdrc_ah_attr {
    fn from(a: AhAttr) -> gdrc_ah_attr {
        let AhAttr { dgid, scope_id, udp_port, hop_limit, traffic_class, .. } = a;
        gdrc_ah_attr { dgid, scope_id, udp_port, hop_limit, traffic_class }
    }
}

/// SRQ attributes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_srq_attr {
    /// sizeof(struct gdrc_srq_attr), set by the caller.
    pub struct_size: u32,
    /// Outstanding requests: the requested number; at return the granted one.
    pub max_wr: u32,
    /// Entries of a request: the requested number; at return the granted one.
    pub max_sge: u32,
    /// Raise GDRC_EVENT_SRQ_LIMIT_REACHED once when fewer requests are left; 0 = off.
    pub srq_limit: u32,
}

/// Initial attributes of a QP.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_qp_init {
    /// sizeof(struct gdrc_qp_init), set by the caller.
    pub struct_size: u32,
    /// GDRC_QPT_.
    pub qp_type: u32,
    /// Protection domain; of GDRC_QPT_XRC_RECV ignored, as are both CQs, the SRQ and the sizes.
    pub pd: gdrc_pd,
    /// CQ of the send queue. GDRC_QPT_DCT has none.
    pub send_cq: gdrc_cq,
    /// CQ of the receive queue; may be the same. GDRC_QPT_XRC_SEND and GDRC_QPT_DCI have none.
    pub recv_cq: gdrc_cq,
    /// Shared receive queue, or {0}. GDRC_QPT_DCT must have one, GDRC_QPT_DCI has none.
    pub srq: gdrc_srq,
    /// 1: every send request is signalled.
    pub sq_sig_all: u32,
    /// The requested sizes; at return the granted ones (at least as large).
    pub cap: QpCap,
    /// GDRC_QPT_XRC_RECV: its XRC domain; else ignored.
    pub xrcd: gdrc_xrcd,
    /// GDRC_QPT_DCT: its access key, which initiators must name; else ignored.
    pub dc_key: u64,
}

/// QP attributes of modify and query.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_qp_attr {
    /// sizeof(struct gdrc_qp_attr), set by the caller.
    pub struct_size: u32,
    /// GDRC_QPS_.
    pub qp_state: u32,
    /// The state that the program assumes (GDRC_QP_CUR_STATE).
    pub cur_qp_state: u32,
    /// GDRC_MTU_ code; bytes are 128 << code.
    pub path_mtu: u32,
    /// Q_Key (UD).
    pub qkey: u32,
    /// First PSN expected, 24 bits.
    pub rq_psn: u32,
    /// First PSN sent, 24 bits.
    pub sq_psn: u32,
    /// The peer's QPN, 24 bits.
    pub dest_qp_num: u32,
    /// GDRC_ACCESS_REMOTE_ and _FLUSH_ flags: what the peer may do.
    pub qp_access_flags: u32,
    /// Address vector.
    pub ah: gdrc_ah_attr,
    /// Queue sizes (query only).
    pub cap: QpCap,
    /// Index into the P_Key table: 0.
    pub pkey_index: u16,
    /// Port number: 1.
    pub port_num: u8,
    /// 1: raise GDRC_EVENT_SQ_DRAINED on entering SQD.
    pub en_sqd_async_notify: u8,
    /// 1 while SQD drains (query only).
    pub sq_draining: u8,
    /// READs and atomics outstanding as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics held as responder.
    pub max_dest_rd_atomic: u8,
    /// RNR NAK timer code sent to the peer, 0 to 31.
    pub min_rnr_timer: u8,
    /// ACK timeout of 4.096 us * 2^n, 0 to 31; 0 = off: then only `deadline_ms` ends the
    /// operation or, if that is 0 too, what this host knows of the end of the peer's process.
    pub timeout: u8,
    /// Retries after a timeout, 0 to 7.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK, 0 to 7; 7 = for ever.
    pub rnr_retry: u8,
    /// Zero.
    pub reserved: u8,
    /// Flow label of packets to the peer, 20 bits, which IPv6 alone has (GDRC_QP_AV); 0: the
    /// system's.
    pub flow_label: u32,
    /// Send rate in bytes per second; 0 = unlimited.
    pub rate_limit_bytes_per_s: u64,
}

/// Objects that a program had not destroyed when it closed a context.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_leaks {
    /// sizeof(struct gdrc_leaks), set by the caller.
    pub struct_size: u32,
    /// Protection domains.
    pub pd: u32,
    /// Memory regions.
    pub mr: u32,
    /// Memory windows.
    pub mw: u32,
    /// Completion queues.
    pub cq: u32,
    /// Queue pairs.
    pub qp: u32,
    /// Shared receive queues.
    pub srq: u32,
    /// Address handles.
    pub ah: u32,
}

/// The data that a peer needs to connect: fill it with gdrc_endpoint_local, send it as 128 bytes
/// (gdrc_endpoint_pack), pass the peer's to gdrc_qp_connect.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_endpoint {
    /// sizeof(struct gdrc_endpoint), set by the caller.
    pub struct_size: u32,
    /// GDRC_ENDPOINT_VERSION.
    pub version: u32,
    /// The device's GID.
    pub gid: [u8; 16],
    /// IPv6 zone on this machine, else 0. It has no meaning for the peer and is not sent.
    pub scope_id: u32,
    /// QPN.
    pub qpn: u32,
    /// First PSN that this side will send.
    pub psn: u32,
    /// Largest GDRC_MTU_ code that this side's link carries.
    pub mtu: u32,
    /// GDRC_QPT_.
    pub qp_type: u32,
    /// UDP port of the device.
    pub udp_port: u32,
    /// Address of a buffer offered to the peer, or 0.
    pub addr: u64,
    /// Its length in bytes.
    pub length: u64,
    /// Its remote key.
    pub rkey: u32,
    /// Q_Key (UD).
    pub qkey: u32,
    /// READs and atomics that this side holds as responder.
    pub max_rd_atomic: u32,
    /// GDRC_ENDPOINT_OWN_PORT, or 0. 0 also in a struct that a program fills for a peer of another
    /// kind.
    pub flags: u32,
}

/// Options of gdrc_qp_connect. 0 means the default, given in parentheses, unless
/// GDRC_QP_CONNECT_EXACT is set.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_qp_connect_opts {
    /// sizeof(struct gdrc_qp_connect_opts), set by the caller.
    pub struct_size: u32,
    /// GDRC_ACCESS_REMOTE_ and _FLUSH_ flags: what the peer may do (READ, WRITE and, on RC, ATOMIC;
    /// where the devices have it FLUSH).
    pub access: u32,
    /// ACK timeout code (17: 0.54 s). With the default of retries a request to a silent peer ends
    /// after 4.3 s; after the end of a process of this host that is reached through shared memory
    /// at once, whatever the timeout.
    pub timeout: u32,
    /// Retries after a timeout (7).
    pub retry_cnt: u32,
    /// Retries after an RNR NAK (7: for ever).
    pub rnr_retry: u32,
    /// RNR NAK timer code (12: 0.64 ms).
    pub min_rnr_timer: u32,
    /// READs and atomics outstanding as requester, in any case at most the peer's max_rd_atomic
    /// (the peer's max_rd_atomic).
    pub max_rd_atomic: u32,
    /// READs and atomics held as responder (that of `local`).
    pub max_dest_rd_atomic: u32,
    /// Q_Key of a UD QP (that of `local`).
    pub qkey: u32,
    /// P_Key index: 0.
    pub pkey_index: u32,
    /// Send rate in bytes per second; 0 = unlimited.
    pub rate_limit_bytes_per_s: u64,
    /// GDRC_QP_CONNECT_ flags.
    pub flags: u32,
    /// Traffic class of packets to the peer, as in gdrc_ah_attr; a UD QP's are its address
    /// handles'.
    pub traffic_class: u32,
}

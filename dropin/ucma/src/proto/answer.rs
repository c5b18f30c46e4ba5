//! Writes answers as bytes. Each has the kernel's length; a program with less room gets the front.

use gdrcore_core::verbs::types::{AhAttr, QpAttr};

use super::sockaddr::{SOCKADDR_IN6, SOCKADDR_STORAGE};
use super::{Addr, DATA_MAX};

/// Default hop limit.
const HOP_LIMIT: u8 = 64;
/// "Exactly this value" in the selectors of a path record.
const EXACTLY: u8 = 2;
/// Rate code "10 Gbit/s" and life time code "a quarter of a second", for fields that must not be
/// empty.
const RATE: u8 = 3;
const LIFE_TIME: u8 = 16;

struct Out(Vec<u8>);

impl Out {
    fn bytes(&mut self, b: &[u8]) -> &mut Self {
        self.0.extend_from_slice(b);
        self
    }

    fn u8(&mut self, v: u8) -> &mut Self {
        self.bytes(&[v])
    }

    fn u16(&mut self, v: u16) -> &mut Self {
        self.bytes(&v.to_ne_bytes())
    }

    fn u32(&mut self, v: u32) -> &mut Self {
        self.bytes(&v.to_ne_bytes())
    }

    fn u64(&mut self, v: u64) -> &mut Self {
        self.bytes(&v.to_ne_bytes())
    }

    fn zeros(&mut self, n: usize) -> &mut Self {
        self.0.resize(self.0.len() + n, 0);
        self
    }

    fn addr(&mut self, addr: Option<Addr>, room: usize) -> &mut Self {
        let mut whole = [0; SOCKADDR_STORAGE];
        if let Some(a) = addr {
            a.emit(&mut whole);
        }
        self.bytes(whole.get(..room).unwrap_or(&whole))
    }

    /// `ib_uverbs_ah_attr`, 32 bytes.
    fn ah(&mut self, ah: &AhAttr, gid_index: u8) -> &mut Self {
        let hop_limit = if ah.hop_limit == 0 { HOP_LIMIT } else { ah.hop_limit };
        let global = u8::from(ah.dgid != [0; 16]);
        // The route: GID, flow label, index of the own GID, hop limit, class; then LID, SL, path
        // bits, rate.
        self.bytes(&ah.dgid)
            .u32(ah.flow_label)
            .u8(gid_index)
            .u8(hop_limit)
            .u8(ah.traffic_class)
            .zeros(1 + 5);
        self.u8(global).u8(1).zeros(1)
    }

    /// `len`-prefixed private data of a conn_param or ud_param: 256 bytes, then the number of valid
    /// ones.
    fn data(&mut self, data: &[u8]) -> &mut Self {
        let n = data.len().min(DATA_MAX - 1);
        self.bytes(data.get(..n).unwrap_or(data)).zeros(DATA_MAX - n).u8(n as u8)
    }

    fn done(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.0)
    }
}

/// The id of a new object.
pub fn created(id: u32) -> Vec<u8> {
    Out(Vec::new()).u32(id).done()
}

/// The answer with the number of events of an object that the program has taken. The library waits
/// until all of them are acknowledged.
pub fn events_reported(n: u32) -> Vec<u8> {
    Out(Vec::new()).u32(n).done()
}

/// Addresses and path of an id, for the queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Route {
    /// GUID of the device in host order; 0: no device yet.
    pub node_guid: u64,
    /// The device's index, as `ibv_get_device_index` gives it.
    pub device_index: u32,
    /// Own address.
    pub src: Option<Addr>,
    /// The peer's.
    pub dst: Option<Addr>,
    /// Whether the route was resolved, so that the path below is valid.
    pub resolved: bool,
    /// Path MTU code.
    pub mtu: u8,
    /// Traffic class.
    pub traffic_class: u8,
}

impl Route {
    fn port_num(&self) -> u8 {
        u8::from(self.node_guid != 0)
    }

    fn gids(&self) -> ([u8; 16], [u8; 16]) {
        let gid = |a: Option<Addr>| a.map_or([0; 16], |a| a.gid());
        (gid(self.src), gid(self.dst))
    }
}

/// Answer of QUERY_ROUTE: `rdma_ucm_query_route_resp`, 208 bytes.
pub fn route_answer(r: &Route) -> Vec<u8> {
    let (sgid, dgid) = r.gids();
    let mut o = Out(Vec::with_capacity(208));
    o.u64(r.node_guid.to_be());
    // ib_user_path_rec: GIDs, LIDs, raw traffic, flow label, reversible, MTU, P_Key, then bytes.
    o.bytes(&dgid).bytes(&sgid).zeros(4 + 4 + 4);
    if r.resolved {
        o.u32(1)
            .u32(u32::from(r.mtu))
            .bytes(&[0xff, 0xff])
            .u8(HOP_LIMIT)
            .u8(r.traffic_class)
            .u8(1)
            .u8(0);
        o.u8(EXACTLY).u8(EXACTLY).u8(RATE).u8(EXACTLY).u8(LIFE_TIME).u8(0);
    } else {
        o.u32(0).u32(0).bytes(&[0xff, 0xff]).zeros(10);
    }
    o.zeros(64);
    o.addr(r.src, SOCKADDR_IN6).addr(r.dst, SOCKADDR_IN6);
    o.u32(u32::from(r.resolved)).u8(r.port_num()).zeros(3).u32(r.device_index).u32(0).done()
}

/// Answer of QUERY for addresses, or for GIDs as `sockaddr_ib`: `rdma_ucm_query_addr_resp`, 280
/// bytes.
pub fn addr_answer(r: &Route, gids: bool) -> Vec<u8> {
    let mut pair = [[0; SOCKADDR_STORAGE]; 2];
    let mut sizes = [0; 2];
    let known = [r.src, r.dst];
    for ((to, size), addr) in pair.iter_mut().zip(&mut sizes).zip(known) {
        *size = match addr {
            Some(a) if gids => sockaddr_ib(&a.gid(), to),
            Some(a) => a.emit(to),
            None => 0,
        };
    }
    let mut o = Out(Vec::with_capacity(280));
    o.u64(r.node_guid.to_be()).u8(r.port_num()).u8(0).u16(if r.node_guid == 0 {
        0
    } else {
        0xffff
    });
    o.u16(sizes[0]).u16(sizes[1]).bytes(&pair[0]).bytes(&pair[1]).u32(r.device_index).u32(0).done()
}

/// `sockaddr_ib` of 48 bytes: family, P_Key, flow info, GID, service id and mask, scope.
fn sockaddr_ib(gid: &[u8; 16], to: &mut [u8; SOCKADDR_STORAGE]) -> u16 {
    const AF_IB: u16 = 27;
    let front = Out(Vec::new()).u16(AF_IB).bytes(&[0xff, 0xff]).u32(0).bytes(gid).zeros(24).done();
    if let Some(to) = to.get_mut(..front.len()) {
        to.copy_from_slice(&front);
    }
    front.len() as u16
}

/// Answer of QUERY for paths: `rdma_ucm_query_path_resp` with at most one record of the wire's
/// format (IBTA 15.2.5.16).
pub fn path_answer(r: &Route) -> Vec<u8> {
    const PRIMARY: u32 = 1 | 2 | 32;
    let mut o = Out(Vec::with_capacity(80));
    o.u32(u32::from(r.resolved)).u32(0);
    if r.resolved {
        let (sgid, dgid) = r.gids();
        // Service id; GIDs; LIDs; hop limit in the low byte of the flow label's word; class, paths;
        // P_Key; SL; MTU, rate, life time.
        o.u32(PRIMARY)
            .u32(0)
            .zeros(8)
            .bytes(&dgid)
            .bytes(&sgid)
            .zeros(4)
            .zeros(3)
            .u8(HOP_LIMIT)
            .u8(r.traffic_class);
        o.u8(0x81).bytes(&[0xff, 0xff]).zeros(2).u8(EXACTLY << 6 | r.mtu).u8(EXACTLY << 6 | RATE);
        o.u8(EXACTLY << 6 | LIFE_TIME).zeros(7);
    }
    o.done()
}

/// Answer of INIT_QP_ATTR: `ib_uverbs_qp_attr`, 144 bytes.
pub fn qp_attr_answer(a: &QpAttr, mask: u32, gid_index: u8) -> Vec<u8> {
    let mut o = Out(Vec::with_capacity(144));
    o.u32(mask).u32(a.qp_state).u32(a.cur_qp_state).u32(a.path_mtu).u32(0).u32(a.qkey);
    o.u32(a.rq_psn).u32(a.sq_psn).u32(a.dest_qp_num).u32(a.qp_access_flags);
    o.ah(&a.ah, gid_index).zeros(32);
    o.zeros(20).u16(a.pkey_index).zeros(2).zeros(2).u8(a.max_rd_atomic).u8(a.max_dest_rd_atomic);
    o.u8(a.min_rnr_timer)
        .u8(a.port_num)
        .u8(a.timeout)
        .u8(a.retry_cnt)
        .u8(a.rnr_retry)
        .zeros(2 + 5)
        .done()
}

/// The part of an event that depends on the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum EventParam<'a> {
    None,
    /// The argument of a program's own event.
    Argument(u64),
    Conn {
        qp_num: u32,
        private_data: &'a [u8],
        srq: bool,
        responder_resources: u8,
        initiator_depth: u8,
        retry_count: u8,
        rnr_retry_count: u8,
    },
    Ud {
        qp_num: u32,
        qkey: u32,
        ah: AhAttr,
        gid_index: u8,
        private_data: &'a [u8],
    },
}

/// Answer of GET_EVENT: `rdma_ucm_event_resp`, 336 bytes.
pub fn event_answer(uid: u64, id: u32, event: u32, status: i32, param: &EventParam<'_>) -> Vec<u8> {
    let mut o = Out(Vec::with_capacity(super::size::EVENT));
    o.u64(uid).u32(id).u32(event).u32(status as u32);
    match *param {
        EventParam::None => o.zeros(304),
        EventParam::Argument(argument) => o.u64(argument).zeros(304 - 8),
        EventParam::Conn {
            qp_num,
            private_data,
            srq,
            responder_resources,
            initiator_depth,
            retry_count,
            rnr_retry_count,
        } => {
            o.u32(qp_num)
                .u32(0)
                .data(private_data)
                .u8(u8::from(srq))
                .u8(responder_resources)
                .u8(initiator_depth);
            o.u8(0).u8(retry_count).u8(rnr_retry_count).u8(1).zeros(304 - 272)
        }
        EventParam::Ud { qp_num, qkey, ref ah, gid_index, private_data } => {
            o.u32(qp_num).u32(qkey).ah(ah, gid_index).data(private_data).zeros(7)
        }
    };
    // A reserved word, then ECE: none is offered.
    o.zeros(4 + 8).done()
}

//! The layout of an engine in its memory: one walk, which is the size query and the carving.

use core::cell::UnsafeCell;

use super::{qpn::Qpns, Engine, Inner};
use crate::arena::{Heap, RawBytes, RawSlice, Table, Walk};
use crate::bitmap::Bitmap;
use crate::cm::Cm;
use crate::config::Config;
use crate::counters::Counters;
use crate::error::Result;
use crate::mem::{Providers, Regions, RegisteredMemory};
use crate::pool::{tag, Pool};
use crate::roce::dc::contexts::Contexts;
use crate::roce::multicast::Members;
use crate::roce::peer::{Path, Peer, PeerAddr};
use crate::roce::rules::ack::AckQueue;
use crate::roce::siblings::Siblings;
use crate::roce::txbuf::Handed;
use crate::roce::{Common, Transport};
use crate::turns::TurnLock;
use crate::verbs::cause::Cause;
use crate::verbs::objects::{Ah, Cq, Pd, Qp, Srq, Xrcd};
use crate::verbs::shared::{EngineKey, Shared};
use crate::verbs::NONE;
use crate::wheel::Wheel;
use crate::wire::IcrcFlow;

/// The most runs that one QP hands to others of its engine at a time. Their bytes, at most
/// [`Config::burst_bytes`], stay in the cache.
const HANDED: usize = 32;

/// Everything that the walk lays out.
pub(super) struct Parts {
    shared: Shared,
    qps: Table<Qp>,
    cqs: Table<Cq>,
    srqs: Table<Srq>,
    ahs: Table<Ah>,
    ah_pool: Pool,
    pds: Table<Pd>,
    pd_pool: Pool,
    xrcds: Table<Xrcd>,
    xrcd_pool: Pool,
    peers: Table<Peer>,
    regions: Regions,
    by_qpn: RawSlice<u32>,
    by_srqn: RawSlice<u32>,
    qpns: Qpns,
    cm: Cm,
    bitmaps: [Bitmap; 9],
    full_cqs: Bitmap,
    wheel: Wheel,
    scratch: RawSlice<u8>,
    handed: RawSlice<Handed>,
    heap: RawBytes,
}

/// The walk.
pub(super) fn walk(w: &mut Walk, c: &Config) -> Result<Parts> {
    let qp_limit = c.table(c.max_qp);
    let n = |x: u32| x as usize;
    let pool = |w: &mut Walk, tag: u8, initial: u32, most: Option<u64>| {
        Pool::carve(w, (tag, c.context), n(initial), c.table(initial), most)
    };
    Ok(Parts {
        shared: Shared::carve(w, c)?,
        qps: Table::carve(w, n(c.max_qp), qp_limit, |_| Qp::default())?,
        cqs: Table::carve(w, n(c.max_cq), c.table(c.max_cq), |_| Cq::default())?,
        srqs: Table::carve(w, n(c.max_srq), c.table(c.max_srq), |_| Srq::default())?,
        ahs: Table::carve(w, n(c.max_ah), c.table(c.max_ah), |_| Ah::default())?,
        ah_pool: pool(w, tag::AH, c.max_ah, c.limits.max_ah)?,
        pds: Table::carve(w, n(c.max_pd), c.table(c.max_pd), |_| Pd::default())?,
        pd_pool: pool(w, tag::PD, c.max_pd, c.limits.max_pd)?,
        xrcds: Table::carve(w, n(c.max_pd), c.table(c.max_pd), |_| Xrcd::default())?,
        xrcd_pool: pool(w, tag::XRCD, c.max_pd, None)?,
        peers: Table::carve(w, n(c.max_peer), c.table(c.max_peer), |_| Peer::empty())?,
        regions: Regions::carve(w, n(c.max_mr), c.regions(), c)?,
        by_qpn: w.slice(n(c.qpn_count), 0u32)?,
        by_srqn: w.slice(n(c.qpn_count), 0u32)?,
        qpns: Qpns::carve(w, c)?,
        cm: Cm::carve(w, c)?,
        bitmaps: [
            Bitmap::carve(w, qp_limit)?,
            Bitmap::carve(w, qp_limit)?,
            Bitmap::carve(w, qp_limit)?,
            Bitmap::carve(w, qp_limit)?,
            Bitmap::carve(w, qp_limit)?,
            Bitmap::carve(w, qp_limit)?,
            Bitmap::carve(w, qp_limit)?,
            Bitmap::carve(w, qp_limit)?,
            Bitmap::carve(w, qp_limit)?,
        ],
        full_cqs: Bitmap::carve(w, c.table(c.max_cq))?,
        wheel: Wheel::carve(w, n(c.max_qp), qp_limit)?,
        scratch: w.slice(n(c.burst_bytes), 0u8)?,
        handed: w.slice(HANDED, Handed::EMPTY)?,
        heap: w.bytes(Heap::bytes_for(c.ring_bytes as usize), 4096)?,
    })
}

/// Puts the parts together at a place.
///
/// # Safety
/// The parts come from a carving walk over memory that lives as long as the engine. The place is
/// aligned for an engine and may be written.
#[inline(never)]
pub(super) unsafe fn finish(
    place: *mut Engine,
    p: Parts,
    config: &Config,
    local: PeerAddr,
) -> Result<()> {
    let mut heap = Heap::new();
    // SAFETY: the walk gave this region to the heap alone.
    unsafe { heap.add(p.heap.as_ptr(), p.heap.len())? };
    let [ready, ack_pending, mem_wait, cq_wait, win_wait, event_qps, cnp_owed, suspects, silent] =
        p.bitmaps;
    let mut cm = p.cm;
    cm.set_local(super::cm::local(config, &local));
    let inner = Inner {
        transport: Transport {
            qps: p.qps,
            peers: p.peers,
            nobody: Peer { path: Path::Lost, ..Peer::empty() },
            dc: Contexts::new(config.seed),
            common: Common {
                // SAFETY: one transport per engine, inside its lock.
                key: unsafe { EngineKey::new() },
                config: *config,
                local,
                cqs: p.cqs,
                srqs: p.srqs,
                ahs: p.ahs,
                ah_pool: p.ah_pool,
                ahs_ended: 0,
                pds: p.pds,
                pd_pool: p.pd_pool,
                xrcds: p.xrcds,
                xrcd_pool: p.xrcd_pool,
                memory: RegisteredMemory {
                    regions: p.regions,
                    providers: Providers::new(),
                    others: None,
                },
                by_qpn: p.by_qpn,
                by_srqn: p.by_srqn,
                qpn_base: config.qpn_base,
                siblings: Siblings::none(),
                mixed_paths: false,
                port_excused: 0,
                ready,
                bursts: 0,
                acks: AckQueue::new(ack_pending),
                mem_wait,
                cq_wait,
                full_cqs: p.full_cqs,
                cq_errors: 0,
                win_wait,
                cnp_owed,
                wheel: p.wheel,
                siege_until: 0,
                check_ports: false,
                divides_writes: false,
                has_witness: false,
                suspects,
                silent,
                refused_port: None,
                loss_signs: 0,
                counters: Counters::default(),
                cause: Cause::default(),
                members: Members::default(),
                timer_deferred: NONE,
                handoff: Default::default(),
                event_qps,
                port_events: Default::default(),
                changes: 0,
                connections_begun: 0,
                reclaim: false,
            },
        },
        cm,
        heap,
        qpns: p.qpns,
        local,
        scratch: p.scratch,
        handed: p.handed,
        rx_flow: (PeerAddr::default(), IcrcFlow::v4([0; 4], [0; 4], 0, 0)),
        rx_ident: 0,
        rx_expected: false,
        cursor: 0,
        link_of_new_peers: None,
        own_address_is_remote: false,
        address_is_shared: false,
        idents_are_zero: false,
    };
    // The parts are written one by one, because a whole engine on the stack is too much for the
    // threads of some programs. SAFETY: the caller's promise.
    unsafe {
        (&raw mut (*place).shared).write(p.shared);
        (&raw mut (*place).lock).write(TurnLock::default());
        (&raw mut (*place).inner).write(UnsafeCell::new(inner));
    }
    Ok(())
}

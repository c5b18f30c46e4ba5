//! From RESET to RTS in one call.

use crate::consts::*;
use crate::context::device;
use crate::endpoint;
use crate::ptr::{ret, sized_in, sized_in_optional};
use crate::types::*;
use core::ffi::c_int;
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{AhAttr, QpAttr};
use gdrcore_core::wire::grh::is_link_local;
use gdrcore_core::{Error, Result};

/// Takes a QP from RESET, or from INIT, to RTS, connected to `remote`. `local` is what gdrc_endpoint_local said and the
/// peer was sent: its PSN and, for UD, Q_Key count. For UD `remote` may be NULL, as every send names its peer.
/// `opts` may be NULL: all defaults. The path MTU is the smaller of both endpoints'.
///
/// On failure a QP that was in RESET is in RESET again.
/// Errors: -EINVAL: the QP is in another state, the endpoints' types differ from the QP's or their fields are out
/// of range, local is another QP's, an option is out of range, a struct_size is 0; -ENOMEM: max_peer are in use; -EBUSY: another
/// thread uses the QP. Threads: one per QP. Cost: none. Source: IBTA verb Modify Queue Pair; ibv_modify_qp(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_qp_connect(
    ctx: *mut gdrc_context,
    qp: gdrc_qp,
    local: *const gdrc_endpoint,
    remote: *const gdrc_endpoint,
    opts: *const gdrc_connect_opts,
) -> c_int {
    ret(qp_connect(ctx, qp, local, remote, opts))
}

fn qp_connect(
    ctx: *mut gdrc_context,
    qp: gdrc_qp,
    local: *const gdrc_endpoint,
    remote: *const gdrc_endpoint,
    opts: *const gdrc_connect_opts,
) -> Result<c_int> {
    let dev = device(ctx)?;
    let l = sized_in!(local);
    let r = if remote.is_null() { None } else { Some(sized_in!(remote)) };
    let given = !opts.is_null();
    let o = sized_in_optional!(opts);
    let (now, init) = dev.qp_query(qp.handle)?;
    let plan = Plan::new(init.qp_type, &l, r.as_ref(), &o, given)?;
    if l.qpn != dev.qp_num(qp.handle)? {
        return Err(Error::Invalid);
    }
    match now.qp_state {
        GDRC_QPS_RESET => plan.run(dev, qp, true).inspect_err(|_| {
            // Not half-way: the program may try again, or with another peer.
            let reset = QpAttr { qp_state: GDRC_QPS_RESET, ..QpAttr::default() };
            let _ = dev.qp_modify(qp.handle, &reset, GDRC_QP_STATE);
        })?,
        GDRC_QPS_INIT => plan.run(dev, qp, false)?,
        _ => return Err(Error::Invalid),
    }
    Ok(0)
}

/// The three transitions: attributes and which of them count.
struct Plan {
    attr: QpAttr,
    init: u32,
    rtr: u32,
    rts: u32,
}

/// `value` as a byte, if it is at most `max`.
fn byte(value: u32, max: u8) -> Result<u8> {
    u8::try_from(value).ok().filter(|&v| v <= max).ok_or(Error::Invalid)
}

impl Plan {
    fn new(
        qp_type: u32,
        l: &gdrc_endpoint,
        r: Option<&gdrc_endpoint>,
        o: &gdrc_connect_opts,
        opts_given: bool,
    ) -> Result<Plan> {
        endpoint::check(l)?;
        if let Some(r) = r {
            endpoint::check(r)?;
        }
        if o.flags & !GDRC_CONNECT_EXACT != 0 || o.reserved != 0 {
            return Err(Error::Invalid);
        }
        if l.qp_type != qp_type || r.is_some_and(|r| r.qp_type != qp_type) {
            return Err(Error::Invalid);
        }
        let exact = o.flags & GDRC_CONNECT_EXACT != 0;
        let or = |v: u32, default: u32| if v == 0 && !exact { default } else { v };

        let mut attr = QpAttr {
            qkey: if o.qkey == 0 { l.qkey } else { o.qkey },
            sq_psn: l.psn,
            pkey_index: u16::try_from(o.pkey_index).map_err(|_| Error::Invalid)?,
            port_num: 1,
            timeout: byte(or(o.timeout, 14), 31)?,
            retry_cnt: byte(or(o.retry_cnt, 7), 7)?,
            rnr_retry: byte(or(o.rnr_retry, 7), 7)?,
            min_rnr_timer: byte(or(o.min_rnr_timer, 12), 31)?,
            rate_limit_bps: o.rate_limit_bps,
            ..QpAttr::default()
        };
        let rate = if o.rate_limit_bps != 0 { GDRC_QP_RATE_LIMIT } else { 0 };
        let basic = GDRC_QP_STATE | GDRC_QP_PKEY_INDEX | GDRC_QP_PORT;
        if qp_type == GDRC_QPT_UD {
            return Ok(Plan {
                attr,
                init: basic | GDRC_QP_QKEY,
                rtr: GDRC_QP_STATE,
                rts: GDRC_QP_STATE | GDRC_QP_SQ_PSN | rate,
            });
        }

        let r = r.ok_or(Error::Invalid)?;
        attr.path_mtu = l.mtu.min(r.mtu);
        attr.rq_psn = r.psn;
        attr.dest_qp_num = r.qpn;
        attr.ah = AhAttr {
            dgid: r.gid,
            scope_id: match (is_link_local(&r.gid), r.scope_id) {
                (false, _) => 0,
                // The peer cannot know our zone; it is the one of the device's own address.
                (true, 0) => l.scope_id,
                (true, zone) => zone,
            },
            udp_port: u16::try_from(r.udp_port).map_err(|_| Error::Invalid)?,
            ..AhAttr::default()
        };
        let reliable = qp_type == GDRC_QPT_RC;
        let all = if reliable {
            GDRC_ACCESS_REMOTE_WRITE | GDRC_ACCESS_REMOTE_READ | GDRC_ACCESS_REMOTE_ATOMIC
        } else {
            GDRC_ACCESS_REMOTE_WRITE
        };
        attr.qp_access_flags = or(o.access, all);
        let mut rtr = GDRC_QP_STATE | GDRC_QP_AV | GDRC_QP_PATH_MTU | GDRC_QP_DEST_QPN | GDRC_QP_RQ_PSN;
        let mut rts = GDRC_QP_STATE | GDRC_QP_SQ_PSN | rate;
        // A program that went to INIT by itself has chosen its access; options override it.
        if opts_given && (o.access != 0 || exact) {
            rtr |= GDRC_QP_ACCESS_FLAGS;
        }
        if reliable {
            attr.max_rd_atomic =
                u8::try_from(or(o.max_rd_atomic, r.max_rd_atomic).min(r.max_rd_atomic).min(l.max_rd_atomic))
                    .unwrap_or(u8::MAX);
            attr.max_dest_rd_atomic = byte(or(o.max_dest_rd_atomic, l.max_rd_atomic.min(255)), 255)?;
            rtr |= GDRC_QP_MAX_DEST_RD_ATOMIC | GDRC_QP_MIN_RNR_TIMER;
            rts |= GDRC_QP_TIMEOUT | GDRC_QP_RETRY_CNT | GDRC_QP_RNR_RETRY | GDRC_QP_MAX_QP_RD_ATOMIC;
        }
        Ok(Plan { attr, init: basic | GDRC_QP_ACCESS_FLAGS, rtr, rts })
    }

    fn run<D: Device + ?Sized>(&self, dev: &D, qp: gdrc_qp, from_reset: bool) -> Result<()> {
        let step = |state, mask| dev.qp_modify(qp.handle, &QpAttr { qp_state: state, ..self.attr }, mask);
        if from_reset {
            step(GDRC_QPS_INIT, self.init)?;
        }
        step(GDRC_QPS_RTR, self.rtr)?;
        step(GDRC_QPS_RTS, self.rts)
    }
}

//! C calls that connect a QP: gdrc_qp_connect takes it from RESET to RTS in one call.

use crate::c_consts::*;
use crate::c_result::{call, refuse};
use crate::c_types::*;
use crate::context_device::undoing;
use crate::context_slots::device;
use crate::endpoint_calls;
use crate::ptr::{plain_in, sized_in, sized_in_optional};
use core::ffi::c_int;
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{
    qp_state, qp_type as kind, AhAttr, QpAttr, ACCESS_RC, ACCESS_REMOTE,
};
use gdrcore_core::wire::grh::is_link_local;
use gdrcore_core::Result;

/// Takes a QP from RESET, or from INIT, to RTS, connected to `remote`. `local` is the endpoint that
/// gdrc_endpoint_local filled and that was sent to the peer: its PSN and, for UD, Q_Key are used.
/// For UD `remote` may be NULL, as every send names its peer; for GDRC_QPT_DCI and GDRC_QPT_DCT it
/// is not looked at, for the same reason, and a GDRC_QPT_DCT goes to RTR, which is where it serves.
/// `opts` may be NULL: all defaults. The path MTU is the smaller of both endpoints'; of DC that of
/// `local`, and a DC association has the smaller of both sides'.
///
/// On failure a QP that was in RESET is in RESET again. Errors: -EINVAL: the QP is in another
/// state, the endpoints' types do not fit the QP's or their fields are out of range, local is
/// another QP's, an option is out of range, a struct_size is 0; -ENOMEM: max_peer are in use;
/// -EBUSY: another thread uses the QP. Threads: one per QP. Cost: none. Source: IBTA verb Modify
/// Queue Pair; ibv_modify_qp(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_qp_connect(
    ctx: *mut gdrc_context,
    qp: gdrc_qp,
    local: *const gdrc_endpoint,
    remote: *const gdrc_endpoint,
    opts: *const gdrc_qp_connect_opts,
) -> c_int {
    call(|| {
        let dev = device(ctx)?;
        let l = sized_in!(local);
        let (now, init) = dev.qp_query(qp.handle)?;
        let dc = matches!(init.qp_type, qp_type::DCI | qp_type::DCT);
        let r = if remote.is_null() || dc { None } else { Some(sized_in!(remote)) };
        let given = !opts.is_null();
        let o = sized_in_optional!(opts);
        endpoint_calls::check_local(&l)?;
        if let Some(r) = &r {
            endpoint_calls::check(r, "remote")?;
        }
        let plan = Plan::new(init.qp_type, &l, r.as_ref(), &Options::new(&o, given)?)?;
        let own = dev.qp_num(qp.handle)?;
        if l.qpn != own {
            return Err(refuse!(
                Invalid,
                "local->qpn {:#x}: the QP's number is {own:#x}; fill local by gdrc_endpoint_local",
                l.qpn
            ));
        }
        match now.qp_state {
            qp_state::RESET => plan.run(dev, qp, true).inspect_err(|_| {
                // The program may try again, or with another peer.
                let reset = QpAttr { qp_state: qp_state::RESET, ..QpAttr::default() };
                let _ = undoing(dev).qp_modify(qp.handle, &reset, qp_attr_mask::STATE);
            })?,
            qp_state::INIT => plan.run(dev, qp, false)?,
            state => {
                let state = qp_state::name(state);
                return Err(refuse!(
                    Invalid,
                    "qp: it is in {state}, and only one in RESET \
                     or INIT can be connected; gdrc_qp_reset"
                ));
            }
        }
        Ok(())
    })
}

/// The largest path MTU (GDRC_MTU_) of the path to a peer, as far as this host knows it: the
/// link's, and the routing table's (`ip route ... mtu`). gdrc_cm_connect uses it already.
/// gdrc_endpoint_local knows no peer and takes the link's: a program that knows the peer's address
/// by then lowers `mtu` of the endpoint to this before it sends the endpoint.
///
/// MTUs that the kernel has learned from ICMP are ignored, since anybody can send ICMP. Returns the
/// code. Errors: -EINVAL: not an open context, to is NULL. Threads: any. Cost: some ten system
/// calls.
#[no_mangle]
pub unsafe extern "C" fn gdrc_path_mtu(ctx: *mut gdrc_context, to: *const gdrc_ah_attr) -> c_int {
    call(|| {
        let to = plain_in!(to);
        Ok(device(ctx)?.path_mtu(&to.into())? as c_int)
    })
}

/// The ACK timeout of a program that names none: 0.54 s, so that eight tries take 4.3 s. Losses are
/// found by probes, and the end of a process of this host by its link, so this is for how long a
/// peer may wait for a CPU.
pub(crate) const DEFAULT_TIMEOUT: u8 = 17;

/// The attributes of the three transitions, and the masks that select them.
struct Plan {
    attr: QpAttr,
    init: u32,
    rtr: u32,
    /// 0: RTR is its last state.
    rts: u32,
}

/// The option `name` as a byte, if it is at most `max`.
fn byte(name: &str, value: u32, max: u8) -> Result<u8> {
    let small = u8::try_from(value).ok().filter(|&v| v <= max);
    small.ok_or_else(|| refuse!(Invalid, "opts->{name} {value}: at most {max}"))
}

/// Options with their defaults: a field of 0 means the default, unless GDRC_QP_CONNECT_EXACT is
/// set.
struct Options<'a> {
    opts: &'a gdrc_qp_connect_opts,
    exact: bool,
    /// The program passed the struct.
    given: bool,
}

impl<'a> Options<'a> {
    fn new(opts: &'a gdrc_qp_connect_opts, given: bool) -> Result<Self> {
        if opts.flags & !qp_connect_flags::EXACT != 0 {
            let flags = opts.flags;
            return Err(refuse!(
                Invalid,
                "opts->flags {flags:#x}: only GDRC_QP_CONNECT_EXACT is known"
            ));
        }
        Ok(Options { opts, exact: opts.flags & qp_connect_flags::EXACT != 0, given })
    }

    fn or(&self, value: u32, default: u32) -> u32 {
        if value == 0 && !self.exact {
            default
        } else {
            value
        }
    }
}

/// The type of the queue pair to which one of a type is connected.
fn peer_type(qp_type: u32) -> u32 {
    match qp_type {
        qp_type::XRC_SEND => qp_type::XRC_RECV,
        qp_type::XRC_RECV => qp_type::XRC_SEND,
        same => same,
    }
}

impl Plan {
    /// The steps to RTS for a QP of this type.
    ///
    /// # Errors
    /// `Invalid`: an endpoint or an option that does not fit.
    fn new(
        qp_type: u32,
        l: &gdrc_endpoint,
        r: Option<&gdrc_endpoint>,
        o: &Options<'_>,
    ) -> Result<Plan> {
        let ends = [("local", Some(l), qp_type), ("remote", r, peer_type(qp_type))];
        for (name, e, fits) in ends {
            if let Some(e) = e.filter(|e| e.qp_type != fits) {
                let (its, own) = (kind::name(e.qp_type), kind::name(qp_type));
                return Err(refuse!(Invalid, "{name}->qp_type {its}: the QP is {own}"));
            }
        }
        let opts = o.opts;
        let traffic_class = byte("traffic_class", opts.traffic_class, u8::MAX)?;
        let attr = QpAttr {
            ah: AhAttr { traffic_class, ..AhAttr::default() },
            qkey: if opts.qkey == 0 { l.qkey } else { opts.qkey },
            sq_psn: l.psn,
            pkey_index: u16::try_from(opts.pkey_index).map_err(|_| {
                refuse!(Invalid, "opts->pkey_index {}: the table has one entry, 0", opts.pkey_index)
            })?,
            port_num: 1,
            timeout: byte("timeout", o.or(opts.timeout, DEFAULT_TIMEOUT.into()), 31)?,
            retry_cnt: byte("retry_cnt", o.or(opts.retry_cnt, 7), 7)?,
            rnr_retry: byte("rnr_retry", o.or(opts.rnr_retry, 7), 7)?,
            min_rnr_timer: byte("min_rnr_timer", o.or(opts.min_rnr_timer, 12), 31)?,
            rate_limit_bytes_per_s: opts.rate_limit_bytes_per_s,
            ..QpAttr::default()
        };
        let rate = if opts.rate_limit_bytes_per_s != 0 { qp_attr_mask::RATE_LIMIT } else { 0 };
        let basic = qp_attr_mask::STATE | qp_attr_mask::PKEY_INDEX | qp_attr_mask::PORT;
        let rts = qp_attr_mask::STATE | qp_attr_mask::SQ_PSN | rate;
        if qp_type == qp_type::UD {
            return Ok(Plan {
                attr,
                init: basic | qp_attr_mask::QKEY,
                rtr: qp_attr_mask::STATE,
                rts,
            });
        }
        if matches!(qp_type, qp_type::DCI | qp_type::DCT) {
            return Plan::of_dc(attr, qp_type == qp_type::DCT, l, o, rate);
        }
        let r = r.ok_or_else(|| refuse!(Invalid, "remote: NULL, which only UD and DC allow"))?;
        let rtr = qp_attr_mask::STATE
            | qp_attr_mask::AV
            | qp_attr_mask::PATH_MTU
            | qp_attr_mask::DEST_QPN
            | qp_attr_mask::RQ_PSN;
        let mut plan = Plan { attr, init: basic | qp_attr_mask::ACCESS_FLAGS, rtr, rts };
        plan.connect(l, r)?;
        let reliable = qp_type != qp_type::UC;
        let all = if reliable { ACCESS_RC } else { access::REMOTE_WRITE };
        plan.attr.qp_access_flags = o.or(opts.access, all);
        // A program that went to INIT itself has chosen its access; options override it.
        if o.given && (opts.access != 0 || o.exact) {
            plan.rtr |= qp_attr_mask::ACCESS_FLAGS;
        }
        if reliable {
            plan.make_reliable(l, r, o)?;
        }
        Ok(plan)
    }

    /// The steps of a DC target to RTR, of an initiator to RTS.
    fn of_dc(
        mut attr: QpAttr,
        target: bool,
        l: &gdrc_endpoint,
        o: &Options<'_>,
        rate: u32,
    ) -> Result<Plan> {
        let init = qp_attr_mask::STATE | qp_attr_mask::PKEY_INDEX | qp_attr_mask::PORT;
        let rtr = qp_attr_mask::STATE | qp_attr_mask::PATH_MTU;
        attr.path_mtu = l.mtu;
        if target {
            attr.qp_access_flags = o.or(o.opts.access, ACCESS_REMOTE);
            let init = init | qp_attr_mask::ACCESS_FLAGS;
            return Ok(Plan { attr, init, rtr: rtr | qp_attr_mask::MIN_RNR_TIMER, rts: 0 });
        }
        let depth = o.or(o.opts.max_rd_atomic, l.max_rd_atomic).min(l.max_rd_atomic);
        attr.max_rd_atomic = u8::try_from(depth).unwrap_or(u8::MAX);
        let rts = qp_attr_mask::STATE
            | qp_attr_mask::SQ_PSN
            | qp_attr_mask::TIMEOUT
            | qp_attr_mask::RETRY_CNT
            | rate;
        let rts = rts | qp_attr_mask::RNR_RETRY | qp_attr_mask::MAX_QP_RD_ATOMIC;
        Ok(Plan { attr, init, rtr, rts })
    }

    /// The attributes that name the peer.
    fn connect(&mut self, l: &gdrc_endpoint, r: &gdrc_endpoint) -> Result<()> {
        let attr = &mut self.attr;
        attr.path_mtu = l.mtu.min(r.mtu);
        attr.rq_psn = r.psn;
        attr.dest_qp_num = r.qpn;
        attr.ah = AhAttr {
            dgid: r.gid,
            scope_id: match (is_link_local(&r.gid), r.scope_id) {
                (false, _) => 0,
                // The peer cannot know our zone; it is that of the device's own address.
                (true, 0) => l.scope_id,
                (true, zone) => zone,
            },
            udp_port: u16::try_from(r.udp_port)
                .map_err(|_| refuse!(Invalid, "remote->udp_port {}: at most 65535", r.udp_port))?,
            ..attr.ah
        };
        attr.peer_is_soft = u8::from(r.flags & GDRC_ENDPOINT_OWN_PORT != 0);
        Ok(())
    }

    /// The attributes that RC has alone.
    fn make_reliable(
        &mut self,
        l: &gdrc_endpoint,
        r: &gdrc_endpoint,
        o: &Options<'_>,
    ) -> Result<()> {
        let most = r.max_rd_atomic.min(l.max_rd_atomic);
        let as_requester = o.or(o.opts.max_rd_atomic, r.max_rd_atomic).min(most);
        self.attr.max_rd_atomic = u8::try_from(as_requester).unwrap_or(u8::MAX);
        let as_responder = o.or(o.opts.max_dest_rd_atomic, l.max_rd_atomic.min(255));
        self.attr.max_dest_rd_atomic = byte("max_dest_rd_atomic", as_responder, 255)?;
        self.rtr |= qp_attr_mask::MAX_DEST_RD_ATOMIC | qp_attr_mask::MIN_RNR_TIMER;
        self.rts |= qp_attr_mask::TIMEOUT
            | qp_attr_mask::RETRY_CNT
            | qp_attr_mask::RNR_RETRY
            | qp_attr_mask::MAX_QP_RD_ATOMIC;
        Ok(())
    }

    fn run<D: Device + ?Sized>(&self, dev: &D, qp: gdrc_qp, from_reset: bool) -> Result<()> {
        let step =
            |state, mask| dev.qp_modify(qp.handle, &QpAttr { qp_state: state, ..self.attr }, mask);
        if from_reset {
            step(qp_state::INIT, self.init)?;
        }
        step(qp_state::RTR, self.rtr)?;
        match self.rts {
            0 => Ok(()),
            rts => step(qp_state::RTS, rts),
        }
    }
}

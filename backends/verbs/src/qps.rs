//! Queue pairs of every type: the objects that each uses, and the NIC's requirements at
//! transitions.

use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::Relaxed;

use crate::abi::{Object, QpMade, QpMake, Text};
use crate::data::plain_opcodes;
use crate::device::VerbsDevice;
use crate::errno;
use crate::failure_facts::FailureFacts;
use crate::objects::{lock, Cq, Qp, Srq};
use crate::slots::Use;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::pool::{stale, tag};
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{
    qp_attr_mask as mask, qp_state, qp_type, AhAttr, Handle, QpAttr, QpCap, QpInit,
};
use gdrcore_core::{reason, refuse};

/// The objects of a new queue pair, held until it is made.
#[derive(Default)]
struct Parts<'d> {
    pd: Option<Use<'d, ()>>,
    send_cq: Option<Use<'d, Cq>>,
    recv_cq: Option<Use<'d, Cq>>,
    srq: Option<Use<'d, Srq>>,
    xrcd: Option<Use<'d, ()>>,
}

/// libibverbs' object of a part, or null.
fn object<T>(part: &Option<Use<'_, T>>) -> Object {
    part.as_ref().map_or(null_mut(), |p| p.object())
}

impl Parts<'_> {
    /// Counts a new queue pair as a user of each object.
    fn adopt(&self) {
        for part in [&self.pd, &self.xrcd].into_iter().flatten() {
            part.adopt();
        }
        for cq in [&self.send_cq, &self.recv_cq].into_iter().flatten() {
            cq.adopt();
        }
        if let Some(srq) = &self.srq {
            srq.adopt();
        }
    }
}

/// The requested attributes, without the objects that the type does not have.
fn without_unused(init: &QpInit) -> QpInit {
    let none = QpInit { qp_type: init.qp_type, sq_sig_all: init.sq_sig_all, ..QpInit::default() };
    let sends = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..init.cap };
    match init.qp_type {
        qp_type::XRC_SEND | qp_type::DCI => {
            QpInit { pd: init.pd, send_cq: init.send_cq, cap: sends, ..none }
        }
        qp_type::XRC_RECV => QpInit { xrcd: init.xrcd, ..none },
        qp_type::DCT => QpInit {
            pd: init.pd,
            recv_cq: init.recv_cq,
            srq: init.srq,
            dc_key: init.dc_key,
            ..none
        },
        _ => QpInit { xrcd: 0, dc_key: 0, ..*init },
    }
}

impl VerbsDevice {
    /// The parts of a new queue pair: those that `init` names.
    fn parts(&self, init: &QpInit) -> Result<Parts<'_>> {
        let mut parts = Parts::default();
        if init.qp_type == qp_type::XRC_RECV {
            parts.xrcd = Some(self.xrcds.enter(init.xrcd)?);
            return Ok(parts);
        }
        parts.pd = Some(self.pds.enter(init.pd)?);
        if init.qp_type != qp_type::DCT {
            parts.send_cq = Some(self.cqs.enter(init.send_cq)?);
        }
        if !matches!(init.qp_type, qp_type::XRC_SEND | qp_type::DCI) {
            parts.recv_cq = Some(self.cqs.enter(init.recv_cq)?);
        }
        if init.srq != 0 {
            let srq = self.srqs.enter(init.srq)?;
            if srq.more().xrcd.load(Relaxed) != 0 {
                return Err(refuse!(Invalid, "srq: of an XRC domain, which serves XRC_RECV"));
            }
            parts.srq = Some(srq);
        } else if init.qp_type == qp_type::DCT {
            return Err(refuse!(Invalid, "srq: a DCT receives into an SRQ, and there is none"));
        }
        Ok(parts)
    }

    /// See [`gdrcore_core::device::Device::qp_create`].
    pub(crate) fn do_qp_create(&self, init: &QpInit) -> Result<(Handle, u32, QpCap)> {
        match init.qp_type {
            qp_type::RC | qp_type::UC | qp_type::UD | qp_type::DCI | qp_type::DCT => {}
            qp_type::XRC_SEND => self.needs_xrc("qp_type XRC_SEND")?,
            qp_type::XRC_RECV => self.needs_xrc("qp_type XRC_RECV")?,
            other => {
                return Err(refuse!(
                    Invalid,
                    "qp_type {other}: RC (2), UC (3), UD (4), XRC_SEND (9), XRC_RECV (10), \
                     DCI (257) or DCT (258)"
                ));
            }
        }
        if init.sq_sig_all > 1 {
            return Err(refuse!(Invalid, "sq_sig_all {}: 0 or 1", init.sq_sig_all));
        }
        let init = &without_unused(init);
        let parts = self.parts(init)?;
        let mut result = (0, init.cap);
        let handle = self.add(&self.qps, |handle, more| {
            let made = self.make_qp(handle, init, &parts)?;
            record(more, init, &made);
            parts.adopt();
            result = (made.qpn, made.cap);
            Ok(made.qp)
        })?;
        Ok((handle, result.0, result.1))
    }

    /// Makes libibverbs' queue pair.
    fn make_qp(&self, handle: Handle, init: &QpInit, parts: &Parts<'_>) -> Result<QpMade> {
        let make = QpMake {
            pd: object(&parts.pd),
            send_cq: object(&parts.send_cq),
            recv_cq: object(&parts.recv_cq),
            srq: object(&parts.srq),
            xrcd: object(&parts.xrcd),
            dc_key: init.dc_key,
            cookie: handle,
            qp_type: init.qp_type,
            extended: self.extended_wanted(init.qp_type),
            sq_sig_all: init.sq_sig_all,
            cap: init.cap,
        };
        let (mut made, mut why) = (MaybeUninit::<QpMade>::uninit(), Text::new());
        let create = self.module.qp_create;
        // SAFETY: live objects, writable results.
        let rc = unsafe { create(self.opened.context, &make, made.as_mut_ptr(), &mut why) };
        if rc != 0 && !why.as_str().is_empty() {
            let kind = qp_type::name(init.qp_type);
            return Err(reason::refused(
                Error::from_errno(rc),
                format_args!("qp_type {kind}: {}", why.as_str()),
            ));
        }
        errno(rc)?;
        // SAFETY: written, as the call succeeded.
        Ok(unsafe { made.assume_init() })
    }

    /// See [`gdrcore_core::device::Device::qp_modify`].
    pub(crate) fn do_qp_modify(&self, qp: Handle, attr: &QpAttr, set: u32) -> Result<()> {
        let held = self.qps.enter(qp)?;
        if set & mask::RATE_LIMIT != 0 && attr.rate_limit_bytes_per_s != 0 {
            return Err(refuse!(Unsupported, "rate_limit_bytes_per_s: the soft device only"));
        }
        if set & mask::AV != 0 {
            self.reachable(&attr.ah)?;
        }
        if set & mask::PATH_MTU != 0 && attr.path_mtu > self.port.active_mtu && attr.path_mtu <= 5 {
            let bytes = |code: u32| 128u64 << code.min(5);
            let (path, link) = (bytes(attr.path_mtu), bytes(self.port.active_mtu));
            self.note(held.more(), CauseCode::MtuExceeded, 0, (path, link));
            let code = attr.path_mtu;
            return Err(refuse!(
                Invalid,
                "path_mtu {code} ({path} bytes): the port's is {link} bytes"
            ));
        }
        let mut set = set & !mask::RATE_LIMIT;
        // As in many drivers, a QP may have access flags that no peer can use.
        let rights = attr.qp_access_flags & !self.unknown_rights();
        let mut attr = QpAttr { qp_access_flags: rights, ..*attr };
        let kind = held.more().kind();
        let to = (set & mask::STATE != 0).then_some(attr.qp_state);
        if kind == qp_type::DCI {
            // It serves no peer, and mlx5 refuses any access flag.
            set &= !mask::ACCESS_FLAGS;
        }
        if matches!(kind, qp_type::DCI | qp_type::DCT)
            && to == Some(qp_state::RTR)
            && set & mask::AV == 0
        {
            // mlx5 takes the own GID of these types from the address vector, whose destination is
            // empty, and requires it for a DCT.
            set |= mask::AV;
            attr.ah = AhAttr::default();
        }
        let attr = &attr;
        // SAFETY: a live QP, readable attributes.
        errno(unsafe { (self.module.qp_modify)(held.object(), attr, set, &self.source) })?;
        lock(&held.more().facts).modified(attr, set);
        if to == Some(qp_state::RESET) {
            held.more().drain.clear();
        }
        self.renew_number(&held);
        Ok(())
    }

    /// Notes the number of a DCT, which it has only in RTR.
    pub(crate) fn renew_number(&self, qp: &Use<'_, Qp>) {
        if qp.more().kind() == qp_type::DCT {
            // SAFETY: a live QP.
            let number = unsafe { (self.module.qp_number)(qp.object()) };
            qp.more().qpn.store(number, Relaxed);
        }
    }

    /// See [`gdrcore_core::device::Device::qp_query`].
    pub(crate) fn do_qp_query(&self, qp: Handle) -> Result<(QpAttr, QpInit)> {
        let held = self.qps.enter(qp)?;
        let (mut attr, kind) = (QpAttr::default(), held.more().kind());
        // SAFETY: a live QP, a writable result.
        errno(unsafe { (self.module.qp_query)(held.object(), kind, &mut attr) })?;
        let m = held.more();
        // The device has chosen the port; programs know only port 1.
        attr.port_num = 1;
        if attr.qp_state == qp_state::RESET {
            // Some drivers do not keep the PSN of the former connection.
            attr.sq_psn = 0;
        }
        let init = QpInit {
            xrcd: m.xrcd.load(Relaxed),
            // Not returned: it is the program's secret, and nothing here needs it.
            dc_key: 0,
            pd: m.pd.load(Relaxed),
            send_cq: m.send_cq.load(Relaxed),
            recv_cq: m.recv_cq.load(Relaxed),
            srq: m.srq.load(Relaxed),
            qp_type: m.kind(),
            sq_sig_all: m.sig_all.load(Relaxed),
            cap: attr.cap,
        };
        Ok((attr, init))
    }

    /// See [`gdrcore_core::device::Device::qp_destroy`].
    pub(crate) fn do_qp_destroy(&self, qp: Handle) -> Result<()> {
        let slot = self.qps.slot(qp)?;
        if !slot.is(qp) {
            return Err(stale(tag::QP, qp));
        }
        let m = &slot.more;
        m.send.enter()?;
        let parts = [&m.pd, &m.send_cq, &m.recv_cq, &m.srq, &m.xrcd].map(|p| p.load(Relaxed));
        let outcome = m.recv.enter().and_then(|()| {
            let outcome = self.end(&self.qps, qp, self.module.qp_destroy);
            m.recv.leave();
            outcome
        });
        m.send.leave();
        outcome?;
        let [pd, send_cq, recv_cq, srq, xrcd] = parts;
        self.pds.disown(pd);
        self.cqs.disown(send_cq);
        self.cqs.disown(recv_cq);
        self.srqs.disown(srq);
        self.xrcds.disown(xrcd);
        Ok(())
    }
}

/// Records the attributes of a new queue pair.
fn record(more: &Qp, init: &QpInit, made: &QpMade) {
    let (cap, kind) = (made.cap, init.qp_type);
    more.kind.store(kind, Relaxed);
    more.srq.store(init.srq, Relaxed);
    more.plain.store(plain_opcodes(kind), Relaxed);
    more.extended.store(made.extended, Relaxed);
    more.send_sge.store(cap.max_send_sge, Relaxed);
    more.send_depth.store(cap.max_send_wr, Relaxed);
    more.usual.prepare(plain_opcodes(kind), cap.max_send_sge);
    more.inline.store(cap.max_inline_data, Relaxed);
    more.recv_sge.store(cap.max_recv_sge, Relaxed);
    more.recv_depth.store(if more.has_receives() { cap.max_recv_wr } else { 0 }, Relaxed);
    more.qpn.store(made.qpn, Relaxed);
    more.sig_all.store(init.sq_sig_all, Relaxed);
    more.pd.store(init.pd, Relaxed);
    more.send_cq.store(init.send_cq, Relaxed);
    more.recv_cq.store(init.recv_cq, Relaxed);
    more.xrcd.store(init.xrcd, Relaxed);
    *lock(&more.facts) = FailureFacts::default();
    more.drain.clear();
}

//! The QP state machine as a declared table: which transitions exist for which type of QP, which
//! attributes each of them needs and which it may carry besides.
//!
//! Read first: IBTA volume 1, 10.3.1 "Queue pair and EE context states" and 11.2.5.2 "Modify queue
//! pair" (the tables of required and optional attributes); `ibv_modify_qp(3)` has the same for
//! RoCE. What alternate paths and path migration would add is left out: the device has neither.
//!
//! ```text
//!             modify            modify           modify
//!   RESET ------------> INIT ------------> RTR ------------> RTS <----> SQD
//!     ^                                                     |   ^
//!     |                                   (UC, UD: a send   v   | modify
//!   any state                              request failed)  SQE
//!
//!   any state ------------> ERR            (modify, or an error of the connection)
//! ```
//! `docs/internals/qp-states.dot` is this table as a graph; a test writes and compares it.

use crate::error::Result;
use crate::reason::refuse;
use crate::verbs::kind::QpKind;
use crate::verbs::types::{
    access, mtu, qp_attr_mask as m, qp_state as s, Flags, QpAttr, ACCESS_ALL,
};
use crate::wire::Class;

/// Required and optional attributes of one transition, for one type of QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// [`crate::verbs::types::qp_attr_mask`] bits that must be set (STATE is understood).
    pub required: u32,
    /// Bits that may be set besides.
    pub optional: u32,
}

/// One line of [`TABLE`].
#[derive(Clone, Copy, Debug)]
pub struct Transition {
    /// State before.
    pub from: u32,
    /// State after; equal to `from` where attributes may change within a state.
    pub to: u32,
    /// Required and optional attributes of RC; `None`: RC does not have the transition.
    pub rc: Option<Need>,
    /// Those of UC.
    pub uc: Option<Need>,
    /// Those of UD.
    pub ud: Option<Need>,
    /// Those of an XRC initiator.
    pub ini: Option<Need>,
    /// Those of an XRC target.
    pub tgt: Option<Need>,
    /// Those of a DC initiator.
    pub dci: Option<Need>,
    /// Those of a DC target.
    pub dct: Option<Need>,
}

const fn need(required: u32, optional: u32) -> Option<Need> {
    Some(Need { required, optional })
}

/// A transition without required attributes; its optional ones of reliable types, of UC and of UD.
/// A DC target does not have it.
const fn optional(from: u32, to: u32, [reliable, uc, ud]: [u32; 3]) -> Transition {
    let reliable = need(0, reliable);
    Transition {
        from,
        to,
        rc: reliable,
        uc: need(0, uc),
        ud: need(0, ud),
        ini: reliable,
        tgt: reliable,
        dci: reliable,
        dct: None,
    }
}

/// A transition that carries no attribute, for every type.
const fn bare(from: u32, to: u32) -> Transition {
    Transition { dct: need(0, 0), ..optional(from, to, [0; 3]) }
}

/// Optional attributes of every transition to RTS.
const INTO_RTS: [u32; 3] = [
    m::CUR_STATE | m::ACCESS_FLAGS | m::MIN_RNR_TIMER | m::RATE_LIMIT,
    m::CUR_STATE | m::ACCESS_FLAGS | m::RATE_LIMIT,
    m::CUR_STATE | m::QKEY | m::RATE_LIMIT,
];

/// Attributes that every connected queue pair needs for RTR.
const RTR: u32 = m::AV | m::PATH_MTU | m::DEST_QPN | m::RQ_PSN;
/// Attributes that a queue pair with a responder needs for RTR.
const RC_RTR: u32 = RTR | OF_ANSWERS;
/// Attributes of RTR that only matter to a queue pair with a responder. An XRC initiator takes them
/// without effect: perftest sets them.
const OF_ANSWERS: u32 = m::MAX_DEST_RD_ATOMIC | m::MIN_RNR_TIMER;
/// The same of RTS, for a queue pair with a requester of RC, and for an XRC target.
const OF_REQUESTS: u32 = m::RETRY_CNT | m::RNR_RETRY | m::MAX_QP_RD_ATOMIC;
/// Attributes that a queue pair with a requester of RC needs for RTS.
const RC_RTS: u32 = m::TIMEOUT | m::SQ_PSN | OF_REQUESTS;
/// What may change in SQD of a queue pair that waits for answers, or gives some.
const RC_SQD: u32 =
    m::PORT | m::AV | m::TIMEOUT | m::ACCESS_FLAGS | m::PKEY_INDEX | OF_REQUESTS | OF_ANSWERS;

/// Every legal transition by modify. The two ways that lead out of any state come first.
/// RTS to SQE is not here: only the engine makes it.
// IBTA 10.3.1: A queue pair moves between its states by a table.
pub const TABLE: &[Transition] = &[
    bare(s::RESET, s::RESET),
    bare(s::INIT, s::RESET),
    bare(s::RTR, s::RESET),
    Transition { dct: None, ..bare(s::RTS, s::RESET) },
    Transition { dct: None, ..bare(s::SQD, s::RESET) },
    Transition { rc: None, ini: None, tgt: None, dci: None, dct: None, ..bare(s::SQE, s::RESET) },
    bare(s::ERR, s::RESET),
    bare(s::RESET, s::ERR),
    bare(s::INIT, s::ERR),
    bare(s::RTR, s::ERR),
    Transition { dct: None, ..bare(s::RTS, s::ERR) },
    Transition { dct: None, ..bare(s::SQD, s::ERR) },
    Transition { rc: None, ini: None, tgt: None, dci: None, dct: None, ..bare(s::SQE, s::ERR) },
    bare(s::ERR, s::ERR),
    Transition {
        from: s::RESET,
        to: s::INIT,
        rc: need(m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS, 0),
        uc: need(m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS, 0),
        ud: need(m::PKEY_INDEX | m::PORT | m::QKEY, 0),
        ini: need(m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS, 0),
        tgt: need(m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS, 0),
        dci: need(m::PKEY_INDEX | m::PORT, m::ACCESS_FLAGS),
        dct: need(m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS, 0),
    },
    Transition {
        from: s::INIT,
        to: s::INIT,
        rc: need(0, m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS),
        uc: need(0, m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS),
        ud: need(0, m::PKEY_INDEX | m::PORT | m::QKEY),
        ini: need(0, m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS),
        tgt: need(0, m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS),
        dci: need(0, m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS),
        dct: need(0, m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS),
    },
    Transition {
        from: s::INIT,
        to: s::RTR,
        rc: need(RC_RTR, m::PKEY_INDEX | m::ACCESS_FLAGS),
        uc: need(RTR, m::PKEY_INDEX | m::ACCESS_FLAGS),
        ud: need(0, m::PKEY_INDEX | m::QKEY),
        ini: need(RTR, m::PKEY_INDEX | m::ACCESS_FLAGS | OF_ANSWERS),
        tgt: need(RC_RTR, m::PKEY_INDEX | m::ACCESS_FLAGS),
        dci: need(m::PATH_MTU, m::AV | m::PKEY_INDEX | m::ACCESS_FLAGS),
        dct: need(m::PATH_MTU | m::MIN_RNR_TIMER, m::AV | m::PKEY_INDEX | m::ACCESS_FLAGS),
    },
    Transition {
        from: s::RTR,
        to: s::RTS,
        rc: need(RC_RTS, INTO_RTS[0]),
        uc: need(m::SQ_PSN, INTO_RTS[1]),
        ud: need(m::SQ_PSN, INTO_RTS[2]),
        ini: need(RC_RTS, INTO_RTS[0]),
        tgt: need(m::TIMEOUT | m::SQ_PSN, INTO_RTS[0] | OF_REQUESTS),
        dci: need(RC_RTS, INTO_RTS[0]),
        dct: None,
    },
    optional(s::RTS, s::RTS, INTO_RTS),
    optional(s::RTS, s::SQD, [m::EN_SQD_ASYNC_NOTIFY; 3]),
    // The one state in which the path and the retry numbers of a connected QP may change. The
    // peer's address may not (a path never changes after RTR), so AV is taken only where it names
    // the same peer.
    Transition {
        from: s::SQD,
        to: s::SQD,
        rc: need(0, RC_SQD),
        uc: need(0, m::AV | m::ACCESS_FLAGS | m::PKEY_INDEX),
        ud: need(0, m::PKEY_INDEX | m::QKEY),
        ini: need(0, RC_SQD),
        tgt: need(0, RC_SQD),
        dci: need(0, RC_SQD & !m::AV),
        dct: None,
    },
    optional(s::SQD, s::RTS, INTO_RTS),
    Transition { rc: None, ini: None, tgt: None, dci: None, ..optional(s::SQE, s::RTS, INTO_RTS) },
];

/// Attributes of a transition; `None`: this type of QP does not have it.
pub fn lookup(kind: QpKind, from: u32, to: u32) -> Option<Need> {
    let line = TABLE.iter().find(|t| t.from == from && t.to == to)?;
    match kind {
        QpKind::Rc => line.rc,
        QpKind::Uc => line.uc,
        QpKind::Ud => line.ud,
        QpKind::XrcIni => line.ini,
        QpKind::XrcTgt => line.tgt,
        QpKind::Dci => line.dci,
        QpKind::Dct => line.dct,
        // The engine moves its contexts by itself.
        QpKind::DcContext => None,
    }
}

/// Whether a modify from `from` to `to` may carry exactly the attributes of `mask`.
///
/// # Errors
/// [`crate::Error::Invalid`]: no such transition, an attribute is missing, or one is not allowed
/// here.
pub fn check(kind: QpKind, from: u32, to: u32, mask: u32) -> Result<()> {
    let need = match lookup(kind, from, to) {
        Some(need) => need,
        None if from == to => {
            let state = s::name(from);
            return Err(refuse!(
                Invalid,
                "attr_mask: no attribute of {kind} can be changed within {state}"
            ));
        }
        None => {
            return Err(refuse!(
                Invalid,
                "qp_state {}: {kind} has no transition to it from {}",
                s::name(to),
                s::name(from)
            ))
        }
    };
    let given = mask & !m::STATE;
    // rxe rxe_qp.c rxe_qp_chk_attr: Each transition has attributes that it requires and that it
    // allows, and their values have bounds.
    let missing = need.required & !given;
    if missing != 0 {
        return Err(refuse!(
            Invalid,
            "attr_mask lacks {}, which {kind} needs here",
            Flags(missing, m::name)
        ));
    }
    let unwanted = given & !(need.required | need.optional);
    if unwanted != 0 {
        return Err(refuse!(
            Invalid,
            "attr_mask has {}, which {kind} does not take here",
            Flags(unwanted, m::name)
        ));
    }
    Ok(())
}

/// Bounds of the device; values above are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest path MTU code of the port ([`crate::verbs::types::mtu`]).
    pub max_mtu: u32,
    /// Largest number of READs and atomics outstanding per QP, as requester and as responder.
    pub max_rd_atomic: u32,
}

/// Largest number that fits the 24 bits of a PSN or QPN.
const MAX_24: u32 = 0x00ff_ffff;

/// Checks the values of the attributes that `mask` names; the others are not looked at.
///
/// # Errors
/// [`crate::Error::Invalid`]: a value is out of its range, or above what the port or device
/// carries.
pub fn validate(kind: QpKind, attr: &QpAttr, mask: u32, limits: Limits) -> Result<()> {
    let has = |bit: u32| mask & bit != 0;
    // The last QPN stands for multicast, which no connection can have as its peer.
    let last_qpn = if !kind.is_connected() { MAX_24 } else { MAX_24 - 1 };
    let numbers = [
        (m::STATE, "qp_state", attr.qp_state, s::ERR),
        (m::CUR_STATE, "cur_qp_state", attr.cur_qp_state, s::ERR),
        (m::PKEY_INDEX, "pkey_index", attr.pkey_index.into(), 0),
        (m::RQ_PSN, "rq_psn", attr.rq_psn, MAX_24),
        (m::SQ_PSN, "sq_psn", attr.sq_psn, MAX_24),
        (m::DEST_QPN, "dest_qp_num", attr.dest_qp_num, last_qpn),
        (m::TIMEOUT, "timeout", attr.timeout.into(), 31),
        (m::RETRY_CNT, "retry_cnt", attr.retry_cnt.into(), 7),
        (m::RNR_RETRY, "rnr_retry", attr.rnr_retry.into(), 7),
        (m::MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer.into(), 31),
        (m::MAX_QP_RD_ATOMIC, "max_rd_atomic", attr.max_rd_atomic.into(), limits.max_rd_atomic),
        (
            m::MAX_DEST_RD_ATOMIC,
            "max_dest_rd_atomic",
            attr.max_dest_rd_atomic.into(),
            limits.max_rd_atomic,
        ),
    ];
    if let Some((_, name, value, most)) =
        numbers.iter().find(|(bit, _, value, most)| has(*bit) && value > most)
    {
        return Err(refuse!(Invalid, "{name} {value}: at most {most}"));
    }
    if has(m::PORT) && attr.port_num != 1 {
        return Err(refuse!(Invalid, "port_num {}: the device has one port, 1", attr.port_num));
    }
    // Flags without a meaning for a QP are ignored, as NICs do.
    if has(m::ACCESS_FLAGS) && attr.qp_access_flags & !ACCESS_ALL != 0 {
        let unknown = Flags(attr.qp_access_flags & !ACCESS_ALL, access::name);
        return Err(refuse!(
            Invalid,
            "qp_access_flags {:#x}: a QP takes no {unknown}",
            attr.qp_access_flags
        ));
    }
    let largest = limits.max_mtu.min(mtu::MTU_4096);
    if has(m::PATH_MTU) && !(mtu::MTU_256..=largest).contains(&attr.path_mtu) {
        let (code, bytes) = (attr.path_mtu, 128u32 << largest);
        return Err(refuse!(
            Invalid,
            "path_mtu {code}: a code from 1 (256 bytes) to \
             {largest} ({bytes} bytes, what the port carries)"
        ));
    }
    // For DC the address vector tells how to send, not where to: programs leave its GID empty.
    if has(m::AV) && kind.class() != Class::Dc && !is_unicast(&attr.ah.dgid) {
        let to = core::net::Ipv6Addr::from(attr.ah.dgid);
        return Err(refuse!(Invalid, "dgid {to}: no address of one host"));
    }
    Ok(())
}

/// Checks a whole modify call against the QP's present state and returns the state it leads to.
///
/// Without STATE in the mask the state stays (INIT, RTS and SQD allow that). With CUR_STATE the
/// program says what it believes; where it is wrong, the call fails and changes nothing.
///
/// # Errors
/// [`crate::Error::Invalid`], for the reasons of [`check`] and [`validate`].
pub fn modify(kind: QpKind, from: u32, attr: &QpAttr, mask: u32, limits: Limits) -> Result<u32> {
    if mask & m::CUR_STATE != 0 && attr.cur_qp_state != from {
        let (said, is) = (s::name(attr.cur_qp_state), s::name(from));
        return Err(refuse!(Invalid, "cur_qp_state {said}: the QP is in {is}"));
    }
    let to = if mask & m::STATE != 0 { attr.qp_state } else { from };
    check(kind, from, to, mask)?;
    validate(kind, attr, mask, limits)?;
    Ok(to)
}

/// Whether a GID names one interface: neither empty, nor multicast, nor IPv4 broadcast.
pub fn is_unicast(gid: &[u8; 16]) -> bool {
    let ip = core::net::Ipv6Addr::from(*gid);
    match ip.to_ipv4_mapped() {
        Some(v4) => !v4.is_unspecified() && !v4.is_multicast() && !v4.is_broadcast(),
        None => !ip.is_unspecified() && !ip.is_multicast(),
    }
}

/// Whether a GID names a group.
pub fn is_multicast(gid: &[u8; 16]) -> bool {
    let ip = core::net::Ipv6Addr::from(*gid);
    ip.to_ipv4_mapped().map_or(ip.is_multicast(), |v4| v4.is_multicast())
}

#[cfg(test)]
mod tests;

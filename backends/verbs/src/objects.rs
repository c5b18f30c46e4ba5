//! The state of each kind of object, and the tables of objects.

use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::cm_ids::CmId;
use crate::drain::Drain;
use crate::failure_facts::FailureFacts;
use crate::slots::{Busy, Slots};
use crate::unchanged::Unchanged;
use gdrcore_core::arena::Walk;
use gdrcore_core::config::Config;
use gdrcore_core::error::Result;
use gdrcore_core::pool::tag;
use gdrcore_core::verbs::kind::QpKind;
use gdrcore_core::verbs::types::{qp_type, Handle};

/// A region.
#[derive(Default)]
pub(crate) struct Mr {
    pub(crate) pd: AtomicU64,
    pub(crate) addr: AtomicU64,
    pub(crate) length: AtomicU64,
    pub(crate) iova: AtomicU64,
    pub(crate) lkey: AtomicU32,
    pub(crate) rkey: AtomicU32,
    pub(crate) access: AtomicU32,
    pub(crate) provider: AtomicU32,
}

/// A window.
#[derive(Default)]
pub(crate) struct Mw {
    pub(crate) pd: AtomicU64,
}

/// An address handle.
#[derive(Default)]
pub(crate) struct Ah {
    pub(crate) pd: AtomicU64,
}

/// A completion queue.
#[derive(Default)]
pub(crate) struct Cq {
    /// A thread polls it.
    pub(crate) poll: Busy,
    /// Polls that found nothing.
    pub(crate) empty: AtomicU32,
    /// The channel of its events, if not the device's own.
    pub(crate) channel: AtomicU64,
}

/// A completion channel.
pub(crate) struct Channel {
    pub(crate) fd: AtomicI32,
}

/// A shared receive queue.
#[derive(Default)]
pub(crate) struct Srq {
    /// A thread posts to it.
    pub(crate) post: Busy,
    pub(crate) sge: AtomicU32,
    pub(crate) depth: AtomicU32,
    pub(crate) pd: AtomicU64,
    /// For an SRQ of an XRC domain: the domain, and the CQ of its receives; else 0.
    pub(crate) xrcd: AtomicU64,
    pub(crate) cq: AtomicU64,
}

/// A queue pair.
#[derive(Default)]
pub(crate) struct Qp {
    /// A thread posts sends.
    pub(crate) send: Busy,
    /// A thread posts receives.
    pub(crate) recv: Busy,
    /// The filter by which the short path recognises plain requests.
    pub(crate) usual: Unchanged,
    /// Opcodes whose requests go to the provider unchanged.
    pub(crate) plain: AtomicU32,
    /// Opcodes whose requests are posted by the extended calls.
    pub(crate) extended: AtomicU32,
    pub(crate) send_sge: AtomicU32,
    pub(crate) send_depth: AtomicU32,
    pub(crate) inline: AtomicU32,
    pub(crate) recv_sge: AtomicU32,
    pub(crate) recv_depth: AtomicU32,
    /// One of `qp_type`.
    pub(crate) kind: AtomicU32,
    pub(crate) qpn: AtomicU32,
    pub(crate) sig_all: AtomicU32,
    pub(crate) pd: AtomicU64,
    pub(crate) send_cq: AtomicU64,
    pub(crate) recv_cq: AtomicU64,
    pub(crate) srq: AtomicU64,
    pub(crate) xrcd: AtomicU64,
    /// A reset in progress.
    pub(crate) drain: Drain,
    /// Attributes that a cause reports.
    pub(crate) facts: Mutex<FailureFacts>,
}

impl Qp {
    /// Its protection domain.
    pub(crate) fn pd(&self) -> Handle {
        self.pd.load(Relaxed)
    }

    /// Its type.
    pub(crate) fn kind(&self) -> u32 {
        self.kind.load(Relaxed)
    }

    /// Whether its requests name their peers by address handles.
    pub(crate) fn names_peers(&self) -> bool {
        matches!(self.kind(), qp_type::UD | qp_type::DCI)
    }

    /// Whether it has a send queue.
    pub(crate) fn has_sends(&self) -> bool {
        QpKind::from_number(self.kind()).is_some_and(QpKind::has_requester)
    }

    /// Whether it has a receive queue of its own.
    pub(crate) fn has_receives(&self) -> bool {
        QpKind::from_number(self.kind()).is_some_and(QpKind::has_receives)
            && self.srq.load(Relaxed) == 0
    }
}

/// Locks a mutex. A holder that panicked cannot have left its data half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Every table of a device.
pub(crate) struct Tables {
    pub(crate) pds: Slots<()>,
    pub(crate) xrcds: Slots<()>,
    pub(crate) mrs: Slots<Mr>,
    pub(crate) mws: Slots<Mw>,
    pub(crate) ahs: Slots<Ah>,
    pub(crate) cqs: Slots<Cq>,
    pub(crate) srqs: Slots<Srq>,
    pub(crate) qps: Slots<Qp>,
    pub(crate) channels: Slots<Channel>,
    pub(crate) cm_ids: Slots<CmId>,
}

/// Completion channels of a device.
const CHANNELS: u32 = 64;

impl Tables {
    /// Lays out the device's memory, for the size query and for the opening.
    pub(crate) fn carve(walk: &mut Walk, c: &Config) -> Result<Tables> {
        Ok(Tables {
            pds: Slots::carve(walk, (tag::PD, c.context), c.max_pd, || ())?,
            xrcds: Slots::carve(walk, (tag::XRCD, c.context), c.max_pd, || ())?,
            mrs: Slots::carve(walk, (tag::MR, c.context), c.max_mr, Mr::default)?,
            mws: Slots::carve(walk, (tag::MW, c.context), c.max_mr, Mw::default)?,
            ahs: Slots::carve(walk, (tag::AH, c.context), c.max_ah, Ah::default)?,
            cqs: Slots::carve(walk, (tag::CQ, c.context), c.max_cq, Cq::default)?,
            srqs: Slots::carve(walk, (tag::SRQ, c.context), c.max_srq, Srq::default)?,
            qps: Slots::carve(walk, (tag::QP, c.context), c.max_qp, Qp::default)?,
            channels: Slots::carve(walk, (tag::CHANNEL, c.context), CHANNELS, || Channel {
                fd: AtomicI32::new(-1),
            })?,
            cm_ids: Slots::carve(walk, (tag::CM_ID, c.context), c.max_cm_ids, CmId::default)?,
        })
    }
}

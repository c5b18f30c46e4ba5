//! The status of an engine, as `gdrcore top` shows it ([`crate::status`] has the format). It is
//! written when a process of the user asks for it.

use super::router::status_place::StatusPlace;
use super::PortState;
use crate::addr::Endpoint;
use crate::addr_group::Member;
use crate::local::StatusText;
use core::fmt::{self, Write};
use gdrcore_core::counters::Counters;
use gdrcore_core::engine::{EngineGuard, QpReport};
use gdrcore_core::roce::peer::Path;
use gdrcore_core::verbs::kind::QpKind;
use gdrcore_core::verbs::types::{qp_state, qp_type};

/// Most queue pairs, and most CQs, of which a status tells. The engine stands still while its
/// status is written, some microseconds for each: milliseconds for all of them.
const ROWS: usize = 1024;

impl PortState {
    /// The counters of the engine and its ports.
    pub(super) fn counters(&self, g: &EngineGuard<'_>) -> Counters {
        let mut c = g.counters();
        if let Some(net) = &self.net {
            let p = net.counters();
            c.port_tx_calls = p.tx_calls;
            c.port_rx_calls = p.rx_calls;
            c.port_tx_full = p.tx_full;
            c.port_icmp_err = p.icmp_err;
            c.port_gso_refused = p.gso_refused;
            c.send_err += p.send_err;
        }
        if let Some(tee) = self.tap.as_ref().and_then(|tap| tap.pcap.as_ref()) {
            (c.capture_frames, c.capture_lost) = tee.counts();
        }
        if let Some(member) = &self.member {
            let s = member.counters();
            c.share_passed = s.forwarded;
            c.share_dropped = s.dropped;
            c.share_by_detour = s.by_detour;
            c.share_refused = s.refused;
        }
        c
    }

    /// Writes the status, if a process has asked for it.
    #[inline]
    pub(super) fn answer_status_request(&mut self, g: &EngineGuard<'_>) {
        let PortState { member, router, .. } = self;
        if member.as_mut().is_some_and(Member::take_status_request)
            || router.status.as_ref().is_some_and(StatusPlace::take_request)
        {
            self.write_status(g);
        }
    }

    #[cold]
    #[inline(never)]
    fn write_status(&self, g: &EngineGuard<'_>) {
        let of_member = || {
            let lock = self.member.as_ref()?.locks().next()?;
            Some((lock, self.net.as_ref().map(|net| *net.local()).unwrap_or_default()))
        };
        let of_router = self.router.status.as_ref().map(StatusPlace::named);
        let port = if of_router.is_some() { "router" } else { "udp" };
        let Some((lock, local)) = of_router.or_else(of_member) else { return };
        // A disk that is full leaves the old status, whose age the reader sees.
        let _ = lock.replace_status(|text| {
            // The text keeps the first error for itself.
            let _ = write_rows(text, g, (&local, port), &self.counters(g));
        });
    }
}

/// Writes all lines but the first ([`crate::status::write_process`]). `port`: the path of what
/// leaves by the port.
fn write_rows(
    text: &mut StatusText,
    g: &EngineGuard<'_>,
    (local, port): (&Endpoint, &str),
    counters: &Counters,
) -> fmt::Result {
    crate::status::write_process(text)?;
    let all = g.leaks();
    write!(text, "device address={local}")?;
    for (name, count) in
        [("qp", all.qp), ("cq", all.cq), ("srq", all.srq), ("mr", all.mr), ("mw", all.mw)]
    {
        write!(text, " {name}={count}")?;
    }
    write_counters(text, counters)?;
    writeln!(text)?;
    g.qp_reports().take(ROWS).try_for_each(|qp| write_qp(text, &qp, port))?;
    for (entries, size) in g.cq_reports().take(ROWS) {
        writeln!(text, "cq entries={entries}/{size}")?;
    }
    writeln!(text, "end")
}

/// Writes the counters that are not 0.
fn write_counters(text: &mut StatusText, counters: &Counters) -> fmt::Result {
    let all = Counters::NAMES.iter().zip(counters.values());
    all.filter(|(_, value)| *value != 0)
        .try_for_each(|(name, value)| write!(text, " {name}={value}"))
}

fn write_qp(text: &mut StatusText, qp: &QpReport, port: &str) -> fmt::Result {
    let kind = match qp.kind {
        QpKind::DcContext => "DCT_CONTEXT",
        kind => qp_type::name(kind.number()),
    };
    write!(text, "qp qpn={} type={kind} state={}", qp.qpn, qp_state::name(qp.state))?;
    if let Some((gid, qpn, path)) = qp.peer {
        let path = match path {
            Path::Port => port,
            Path::Loopback => "loopback",
            Path::Link(_) => "memory",
            Path::Lost => "lost",
        };
        let peer = core::net::Ipv6Addr::from(gid).to_canonical();
        write!(text, " peer={peer} peer_qpn={qpn} path={path}")?;
    }
    write!(text, " sq={}/{} rq={}/{}", qp.sends.0, qp.sends.1, qp.recvs.0, qp.recvs.1)?;
    write_counters(text, &qp.counters)?;
    if qp.cause.code != 0 {
        write!(text, " cause={}", qp.cause)?;
    }
    writeln!(text)
}

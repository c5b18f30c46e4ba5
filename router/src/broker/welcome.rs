//! HELLO and WELCOME: the tenant of a session, and its numbers and address.

use super::blocks::Claimant;
use super::resume::Kept;
use super::{
    errno, no_session, refusal, Action, Broker, Refusal, SessionId, SessionState, UpSession,
};
use crate::identity::tenant_of;
use crate::policy::{Tenant, BLOCKS};
use crate::rate::Rate;
use gdrcore_core::config::QPN_UNIT;
use gdrcore_net::shm::relay::RINGS;
use gdrcore_net::via::proto::{
    common_version, feature, mode, Envelope, Hello, Message, Text, Welcome, GIDS, VERSIONS,
};
use std::collections::BTreeMap;
use std::ops::Range;

/// Least rate, in bytes a second, of a tenant whose rings may move to larger memory. At this rate
/// it empties a full ring of a MiB in 65 ms, no longer than queue pairs wait for an ACK by default.
const SLOW_RATE: u64 = 16_000_000;
/// The same in packets a second, for the 8192 small packets that such a ring holds.
const SLOW_PPS: u32 = 125_000;
/// Limit of the blocks of one session.
const BLOCKS_MAX: u32 = 16;

impl Broker {
    pub(super) fn hello(&mut self, now: u64, id: SessionId, seq: u32, hello: &Hello) {
        match self.welcome(now, id, hello) {
            Ok((up, welcome)) => {
                if let Some(session) = self.sessions.get_mut(&id) {
                    session.state = SessionState::Up(Box::new(up));
                }
                let joins = welcome.features & (feature::RELAY | feature::REMOTE) != 0;
                let e = Envelope::answer(seq, 0, Message::Welcome(welcome));
                self.out.push(if joins { Action::Join(id, e) } else { Action::Send(id, e) });
            }
            Err(refusal) => self.refuse(id, seq, refusal),
        }
    }

    /// Answers a HELLO with a refusal, which ends the session.
    pub(super) fn refuse(&mut self, id: SessionId, seq: u32, (errno, cause): Refusal) {
        let tenant = self.sessions.remove(&id).map(|s| s.tenant).unwrap_or_default();
        let refused = Welcome { tenant: Text::new(&tenant), ..Welcome::refused(Text::new(&cause)) };
        let refused = Message::Welcome(refused);
        self.out.push(Action::Send(id, Envelope::answer(seq, -errno, refused)));
        self.out.push(Action::End(id, cause));
    }

    /// The tenant of a HELLO, if its quotas allow a further session with so many blocks.
    fn identify(&mut self, id: SessionId, h: &Hello) -> Result<Tenant, Refusal> {
        let session = self.sessions.get_mut(&id).ok_or_else(no_session)?;
        let tenant = tenant_of(&self.policy, &session.seen, h.ffr_id, self.netns)
            .ok_or_else(|| refusal!(errno::ACCESS, "no tenant of the policy is {}", session.seen));
        // Whatever refuses it, the answer names its tenant.
        session.tenant = tenant.as_ref().map(|t| t.name.clone()).unwrap_or_default();
        self.check_not_draining()?;
        if common_version(h.versions, VERSIONS).is_none() {
            let (own, its) = (VERSIONS, h.versions);
            return Err(refusal!(
                errno::VERSION,
                "this router speaks versions {} to {} of its protocol, the program {} to {}",
                own.0,
                own.1,
                its.0,
                its.1
            ));
        }
        let tenant = tenant?;
        check_mode(&tenant, h)?;
        self.not_denied(&tenant)?;
        let name = &tenant.name;
        let quotas = tenant.quotas;
        if self.of_tenant(name).count() >= quotas.sessions as usize {
            return Err(refusal!(
                errno::QUOTA,
                "tenant {name} has {} sessions, its most",
                quotas.sessions
            ));
        }
        let blocks = h.qpns.div_ceil(QPN_UNIT);
        let has: usize = self.of_tenant(name).map(|up| up.blocks.len()).sum();
        if blocks > BLOCKS_MAX || has + blocks as usize > quotas.blocks as usize {
            let n = h.qpns;
            return Err(refusal!(
                errno::QUOTA,
                "{n} queue pair numbers: more than tenant {name} or a session may have"
            ));
        }
        Ok(tenant)
    }

    /// The sessions of a tenant.
    pub(super) fn of_tenant<'b>(&'b self, name: &'b str) -> impl Iterator<Item = &'b UpSession> {
        self.all_up().map(|(_, up)| up).filter(move |up| up.tenant.name == name)
    }

    /// Blocks for a session: the tenant's fixed ones if other hosts know it by them, otherwise
    /// blocks that are no tenant's.
    fn take_blocks(
        &mut self,
        now: u64,
        count: u32,
        id: SessionId,
        tenant: &Tenant,
    ) -> Result<Range<u32>, Refusal> {
        let has: usize = self.of_tenant(&tenant.name).map(|up| up.blocks.len()).sum();
        let may_have = tenant.quotas.blocks.saturating_sub(has as u32);
        let within = tenant.place.clone().unwrap_or(BLOCKS);
        let claimant = Claimant { session: id, tenant: &tenant.name, may_have, within };
        let reserved: Vec<_> = match &tenant.place {
            Some(_) => Vec::new(),
            None => self.policy.tenants.iter().filter_map(|t| t.place.clone()).collect(),
        };
        self.blocks.take(now, count, &claimant, &reserved).ok_or_else(|| {
            let whose = match &tenant.place {
                Some(own) => format!("of tenant {}, which has {} blocks", tenant.name, own.len()),
                None => "on this host".into(),
            };
            refusal!(
                errno::NO_SPACE,
                "no queue pair numbers are left {whose}; those of other tenants' sessions that end \
                 rest for a minute"
            )
        })
    }

    fn welcome(
        &mut self,
        now: u64,
        id: SessionId,
        h: &Hello,
    ) -> Result<(UpSession, Welcome), Refusal> {
        let tenant = self.identify(id, h)?;
        let quotas = tenant.quotas;
        let kept = self.claimed(now, id, h, &tenant)?;
        let resumed = kept.is_some();
        let kept = match kept {
            Some(kept) => kept,
            None => self.assign_new(now, id, h, &tenant)?,
        };
        let token = self.token_of(&kept, &tenant);
        let Kept { number, gid, blocks } = kept;
        let remote = tenant.device.is_some();
        let relays = h.features & feature::RELAY != 0 && !blocks.is_empty();
        let grows = relays && h.features & feature::GROW != 0 && !self.is_slow(&tenant);
        let headers = relays && h.features & feature::HEADERS != 0;
        let mut gids = [[0; 16]; GIDS];
        gids[0] = gid;
        if let Some(outside) = self.policy.outside_of(&tenant) {
            gids[1] = outside.own;
        }
        let welcome = Welcome {
            version: common_version(h.versions, VERSIONS).unwrap_or(VERSIONS.0),
            features: if remote { feature::REMOTE } else { feature::DIRECT }
                | if relays { feature::RELAY } else { 0 }
                | if grows { feature::GROW } else { 0 }
                | if headers { feature::HEADERS } else { 0 },
            mode: if remote { mode::REMOTE } else { mode::SWITCH },
            session: number,
            epoch: self.epoch,
            tenant: Text::new(&tenant.name),
            network: Text::new(&tenant.network),
            gids,
            qpns: (blocks.start * QPN_UNIT, blocks.len() as u32 * QPN_UNIT),
            mtu: self.mtu,
            line_rate: 0,
            rings: if relays { RINGS } else { (0, 0) },
            max_routes: quotas.routes,
            token,
            cause: Text::EMPTY,
        };
        let up = UpSession {
            number,
            resumed,
            gid,
            blocks,
            program: self.program_of(id, h),
            ffr_id: h.ffr_id,
            routes: BTreeMap::new(),
            relays,
            grows,
            headers,
            linked_by: Default::default(),
            listens: Default::default(),
            unanswered: Default::default(),
            rate: Rate::new(now, quotas.route_rate),
            rates: Default::default(),
            last_seq: 0,
            last_route: 0,
            tenant,
        };
        Ok((up, welcome))
    }

    fn program_of(&self, id: SessionId, h: &Hello) -> String {
        let seen = self.sessions.get(&id).map(|s| s.seen.program.clone()).unwrap_or_default();
        if seen.is_empty() {
            h.program.as_str().into()
        } else {
            seen
        }
    }

    /// Whether a tenant's rate is too low to empty a larger ring in time.
    fn is_slow(&self, tenant: &Tenant) -> bool {
        let rate = |rate: Option<u64>| rate.is_some_and(|rate| rate < SLOW_RATE);
        let limits = &tenant.limits;
        rate(limits.tx_rate)
            || rate(self.policy.line_rate)
            || limits.tx_pps.is_some_and(|pps| pps < SLOW_PPS)
    }

    /// Number, address and blocks of a new session.
    fn assign_new(
        &mut self,
        now: u64,
        id: SessionId,
        h: &Hello,
        tenant: &Tenant,
    ) -> Result<Kept, Refusal> {
        if let Some(device) = &tenant.device {
            let gid = self.devices.get(device).copied().unwrap_or_default();
            return Ok(Kept { number: id, gid, blocks: 0..0 });
        }
        let lives = |other: &str| {
            self.sessions
                .values()
                .any(|s| matches!(&s.state, SessionState::Up(up) if up.tenant.name == other))
        };
        let far = |vip: &[u8; 16]| self.far.find(&tenant.network, vip).is_some();
        let Some(gid) = self.vips.assign(&self.policy, tenant, far, lives) else {
            return Err(refusal!(
                errno::NO_SPACE,
                "no address is left for tenant {} in network {}",
                tenant.name,
                tenant.network
            ));
        };
        let blocks = match h.qpns.div_ceil(QPN_UNIT) {
            0 => 0..0,
            n => self.take_blocks(now, n, id, tenant)?,
        };
        Ok(Kept { number: id, gid, blocks })
    }
}

/// Whether a session may have the mode that it asks for.
fn check_mode(tenant: &Tenant, h: &Hello) -> Result<(), Refusal> {
    let name = &tenant.name;
    match (&tenant.device, h.mode) {
        (Some(_), mode::REMOTE) if h.features & feature::REMOTE != 0 => Ok(()),
        (Some(device), _) => Err(refusal!(
            errno::REMOTE,
            "the verbs of tenant {name} are executed by the router, on {device}: this program \
             opens a device of its own"
        )),
        (None, mode::ANY | mode::SWITCH) if h.features & feature::DIRECT != 0 => Ok(()),
        (None, mode::REMOTE) => {
            Err(refusal!(errno::UNSUPPORTED, "the policy has no `device` for tenant {name}"))
        }
        (None, _) => Err(refusal!(
            errno::UNSUPPORTED,
            "the program's HELLO lacks the feature DIRECT, without which no session is opened"
        )),
    }
}

//! Resumption: sessions of a former life of the router come back with their tokens. A life is one
//! run of its process.
//!
//! A router that restarts knows no session. For [`LEARN_NS`] it gives no new numbers, so that
//! sessions get theirs back; a HELLO without a token waits until then. A session that comes later
//! is resumed if no other has its numbers.
//!
//! The floor is the last life that gave new numbers. A token from the floor or a later life is
//! valid until its session ends. No life after the floor has given numbers, so two valid tokens
//! that name the same numbers are of the same session.

use super::token::{tenant_hash, Claim, Token, KEY, NONE};
use super::{errno, refusal, Broker, BrokerSession, Refusal, SessionId, SessionState};
use crate::identity::tenant_of;
use crate::policy::Tenant;
use gdrcore_core::config::QPN_UNIT;
use gdrcore_net::via::proto::{mode, Hello};
use std::ops::Range;

/// The time for which a new life waits for sessions of the former one before it gives new numbers.
pub const LEARN_NS: u64 = 2_000_000_000;

/// The key of a router's tokens, and the lives whose tokens are valid.
#[derive(Clone, Copy, Debug)]
pub struct Keys {
    /// The key.
    pub key: [u8; KEY],
    /// The oldest life whose tokens are valid.
    pub floor: u64,
    /// The time until which no new numbers are given; `None`: they are given.
    pub learn_until: Option<u64>,
}

/// A HELLO that waits.
#[derive(Debug)]
pub struct WaitingHello {
    seq: u32,
    hello: Hello,
}

/// The number, address and blocks that a resumed session keeps.
pub(super) struct Kept {
    pub number: u32,
    pub gid: [u8; 16],
    pub blocks: Range<u32>,
}

impl Broker {
    /// Gives sessions tokens from here on, and resumes sessions of former lives by their tokens.
    pub fn resume_by(&mut self, keys: Keys) {
        // So that new numbers differ from those of sessions of former lives.
        self.last = (self.epoch as u32) << 16;
        self.keys = Some(keys);
    }

    /// Whether the time without new numbers is over; true once. The caller then stores that for the
    /// next life, before it calls [`Broker::serve_waiting`].
    pub fn take_end_of_learning(&mut self, now: u64) -> bool {
        let Some(keys) = &mut self.keys else { return false };
        let over = keys.learn_until.is_some_and(|until| now >= until);
        if over {
            keys.learn_until = None;
        }
        over
    }

    /// Whether new numbers are kept back.
    pub fn is_recovering(&self) -> bool {
        self.learns_until().is_some()
    }

    /// The time until which new numbers are kept back.
    pub(super) fn learns_until(&self) -> Option<u64> {
        self.keys.and_then(|keys| keys.learn_until)
    }

    /// Answers the HELLOs that have waited for new numbers.
    pub fn serve_waiting(&mut self, now: u64) {
        for id in self.ids(|state| matches!(state, SessionState::Waits(_))) {
            let Some(session) = self.sessions.get_mut(&id) else { continue };
            let state = std::mem::replace(&mut session.state, SessionState::New(now));
            if let SessionState::Waits(waiting) = state {
                self.hello(now, id, waiting.seq, &waiting.hello);
            }
        }
    }

    /// Lets a HELLO without a token wait while new numbers are kept back. False: it need not wait.
    ///
    /// # Errors
    /// Too many sessions of its tenant wait.
    pub(super) fn hold_back(
        &mut self,
        id: SessionId,
        seq: u32,
        hello: &Hello,
    ) -> Result<bool, Refusal> {
        if self.check_not_draining().is_err()
            || hello.token != NONE
            // Its numbers are the device's.
            || hello.mode == mode::REMOTE
            || self.learns_until().is_none()
        {
            return Ok(false);
        }
        let Some(session) = self.sessions.get_mut(&id) else { return Ok(false) };
        let Some(tenant) = tenant_of(&self.policy, &session.seen, hello.ffr_id, self.netns) else {
            // The usual path refuses it.
            return Ok(false);
        };
        if tenant.device.is_some() {
            // It needs no numbers: a HELLO of another mode is refused at once.
            return Ok(false);
        }
        session.tenant.clone_from(&tenant.name);
        let waits = |s: &&BrokerSession| {
            matches!(s.state, SessionState::Waits(_)) && s.tenant == tenant.name
        };
        let waiting = self.sessions.values().filter(waits).count();
        if waiting >= tenant.quotas.sessions as usize {
            return Err(refusal!(
                errno::QUOTA,
                "tenant {} has {waiting} sessions that wait for the router's start, its most",
                tenant.name
            ));
        }
        let waiting = WaitingHello { seq, hello: *hello };
        if let Some(session) = self.sessions.get_mut(&id) {
            session.state = SessionState::Waits(Box::new(waiting));
        }
        Ok(true)
    }

    /// Reserves the numbers of a token's session, and returns them.
    pub(super) fn claimed(
        &mut self,
        now: u64,
        id: SessionId,
        hello: &Hello,
        tenant: &Tenant,
    ) -> Result<Option<Kept>, Refusal> {
        if hello.token == NONE {
            return Ok(None);
        }
        let stale = |why: &str| refusal!(errno::STALE, "the session cannot be resumed: {why}");
        let Some(keys) = self.keys else { return Err(stale("this router has no key")) };
        let Some(claim) = Claim::open(&keys.key, &hello.token) else {
            return Err(stale("its token is not of this router's key"));
        };
        if claim.epoch >= self.epoch {
            return Err(stale("it has ended in this life of the router"));
        }
        if claim.epoch < keys.floor {
            return Err(stale("its numbers may have been given to others since"));
        }
        if claim.tenant != tenant_hash(&keys.key, &tenant.name, &tenant.network) {
            return Err(stale("this process is another tenant now"));
        }
        let number = claim.session;
        if self.sessions.contains_key(&number) || self.all_up().any(|(_, up)| up.number == number) {
            return Err(stale("it was resumed already"));
        }
        if hello.qpns.div_ceil(QPN_UNIT) != claim.blocks.len() as u32 {
            return Err(stale("it asks for other numbers than it had"));
        }
        if !self.may_have(tenant, &claim.blocks) {
            return Err(stale("the policy has given its numbers to another tenant"));
        }
        let far = |vip: &[u8; 16]| self.far.find(&tenant.network, vip).is_some();
        if !self.vips.keep(&self.policy, tenant, claim.gid, far) {
            return Err(stale("the policy has another address for this tenant"));
        }
        if !self.blocks.claim(now, &claim.blocks, id) {
            return Err(stale("its numbers are in use, or were in this life of the router"));
        }
        Ok(Some(Kept { number, gid: claim.gid, blocks: claim.blocks }))
    }

    /// The token of a session; zeroes: there is no key, or the session has no numbers.
    pub(super) fn token_of(&self, kept: &Kept, tenant: &Tenant) -> Token {
        let Some(keys) = self.keys.filter(|_| !kept.blocks.is_empty()) else { return NONE };
        let claim = Claim {
            session: kept.number,
            epoch: self.epoch,
            blocks: kept.blocks.clone(),
            gid: kept.gid,
            tenant: tenant_hash(&keys.key, &tenant.name, &tenant.network),
        };
        claim.seal(&keys.key)
    }
}

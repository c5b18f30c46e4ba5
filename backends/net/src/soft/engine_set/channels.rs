//! Completion channels of CQs that have rings in several engines.
//!
//! A ring's events are of its engine. So the channel of such a CQ has a branch in each of these
//! engines, which raises the channel's own eventfd. Who takes an event looks into all parts, and
//! lowers the eventfd only when none has one. Who sleeps on the channel runs all engines meanwhile,
//! as [`EngineSet::wait`] does.

use super::{outer, EngineSet, MAX_ENGINES};
use crate::clock::now_ns;
use crate::soft::channels::{end_of, wait_for_either};
use crate::soft::SoftDevice;
use gdrcore_core::device::Device;
use gdrcore_core::error::Result;
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::Handle;

/// A part of a channel: the number of its engine, the engine, and the handle there.
type Part = (usize, &'static SoftDevice, Handle);

impl EngineSet {
    /// The parts of a channel, its own one first.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`]: also of a branch, whose handle no program is given.
    fn channel_parts(&self, channel: Handle) -> Result<impl Iterator<Item = Part> + '_> {
        let own @ (_, engine, h) = self.of(channel)?;
        if engine.channel_branches(h)?.home() != 0 {
            return Err(refuse!(StaleHandle, "channel {channel:#x}: no channel of this device"));
        }
        let behind = |(_, engine, h): &Part| {
            let next = engine.channel_branches(*h).map_or(0, |branches| branches.next());
            (next != 0).then(|| self.of(next).ok()).flatten()
        };
        Ok(core::iter::successors(Some(own), behind).take(MAX_ENGINES))
    }

    /// Whether a channel has branches.
    fn is_branched(&self, channel: Handle) -> Result<bool> {
        let (_, engine, own) = self.of(channel)?;
        Ok(engine.channel_branches(own)?.next() != 0)
    }

    /// The part of a channel in an engine; makes the branch if there is none. The caller holds
    /// [`EngineSet::control`].
    pub(super) fn channel_in(&self, k: usize, channel: Handle) -> Result<Handle> {
        if let Some((_, _, h)) = self.channel_parts(channel)?.find(|(of, _, _)| *of == k) {
            return Ok(h);
        }
        let (_, engine, own) = self.of(channel)?;
        let of = self.made(k)?;
        let branch = of.channel_branch(channel, engine.channel_descriptor(own)?)?;
        let links = engine.channel_branches(own)?;
        of.channel_branches(branch)?.set_next(links.next());
        links.set_next(outer(k, branch));
        // Who sleeps on it runs one engine, and has to run two.
        engine.raise_channel(own)?;
        Ok(branch)
    }

    /// [`Device::channel_event`].
    ///
    /// # Errors
    /// As there.
    pub(super) fn take_event(&self, channel: Handle) -> Result<Option<Handle>> {
        if !self.is_branched(channel)? {
            let (k, engine, own) = self.of(channel)?;
            return Ok(engine.channel_event(own)?.map(|cq| self.home_of(k, cq)));
        }
        let mut taken = None;
        for (k, engine, part) in self.channel_parts(channel)? {
            taken = engine.channel_event(part)?.map(|cq| self.home_of(k, cq));
            if taken.is_some() {
                break;
            }
        }
        let (_, engine, own) = self.of(channel)?;
        engine.lower_channel(own)?;
        // An engine notes its event before it raises the descriptor: one that was lowered by
        // mistake is seen here.
        for (_, of, part) in self.channel_parts(channel)? {
            if of.channel_has_event(part)? {
                engine.raise_channel(own)?;
                break;
            }
        }
        Ok(taken)
    }

    /// [`Device::channel_wait`].
    ///
    /// # Errors
    /// As there.
    pub(super) fn wait_for_event(
        &self,
        channel: Handle,
        timeout_ms: i32,
    ) -> Result<Option<Handle>> {
        let end = end_of(timeout_ms);
        let (k, engine, own) = self.of(channel)?;
        if !self.is_branched(channel)? {
            let event = engine.channel_wait(own, timeout_ms)?.map(|cq| self.home_of(k, cq));
            if event.is_some() || !self.is_branched(channel)? {
                return Ok(event);
            }
        }
        let _held = engine.hold_channel(own)?;
        let fds = [engine.channel_descriptor(own)?, self.waiter.user_fd()];
        loop {
            let event = self.take_event(channel)?;
            if event.is_some() || now_ns() >= end {
                return Ok(event);
            }
            if !self.arm()? {
                wait_for_either(fds, end)?;
            }
        }
    }

    /// [`Device::channel_destroy`]: all parts, or none.
    ///
    /// # Errors
    /// As there.
    pub(super) fn end_channel(&self, channel: Handle) -> Result<()> {
        let _control = self.control()?;
        let parts: heapless::Vec<Part, MAX_ENGINES> = self.channel_parts(channel)?.collect();
        for (_, engine, part) in &parts {
            engine.channel_may_end(*part)?;
        }
        for at in (1..parts.len()).rev() {
            let ((_, before, behind), (_, engine, part)) = (parts[at - 1], parts[at]);
            engine.channel_destroy(part)?;
            before.channel_branches(behind)?.set_next(0);
        }
        let (_, engine, own) = parts[0];
        engine.channel_destroy(own)
    }
}

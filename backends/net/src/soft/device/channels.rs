//! Completion channels of CQs that have rings in several engines.
//!
//! Events of a ring belong to its engine. So the channel of such a CQ has a branch in each of these
//! engines, which raises the channel's own eventfd. A thread that takes an event looks into all
//! parts, and lowers the eventfd only when no part has an event. A thread that sleeps on the
//! channel runs all engines meanwhile, like [`SoftDevice::wait`].

use super::parts::PartKind;
use super::SoftDevice;
use crate::clock::{end_of, now_ns};
use crate::soft::threads::driver_role::wait_for_either;
use gdrcore_core::device::Device;
use gdrcore_core::error::Result;
use gdrcore_core::verbs::types::Handle;

/// The parts of a channel.
static CHANNELS: PartKind = PartKind {
    argument: "channel",
    name: "channel",
    links: |engine, channel| engine.channel_branches(channel),
};

impl SoftDevice {
    fn is_branched(&self, channel: Handle) -> Result<bool> {
        let (_, engine, own) = self.resolve(channel)?;
        Ok(engine.channel_branches(own)?.next() != 0)
    }

    /// The part of a channel in an engine; makes the branch if there is none. The caller holds
    /// [`SoftDevice::control`].
    pub(super) fn channel_in(&self, k: usize, channel: Handle) -> Result<Handle> {
        let mut is_new = false;
        let part = self.part_in(&CHANNELS, k, channel, |(_, engine, own), of| {
            is_new = true;
            of.channel_branch(channel, engine.channel_fd(own)?)
        })?;
        if is_new {
            // Wakes a sleeper, which runs one engine and now must run two.
            let (_, engine, own) = self.resolve(channel)?;
            engine.raise_channel(own)?;
        }
        Ok(part)
    }

    /// [`Device::channel_event`].
    ///
    /// # Errors
    /// As there.
    pub(super) fn take_event(&self, channel: Handle) -> Result<Option<Handle>> {
        let (k, first, own) = self.resolve(channel)?;
        if !self.is_branched(channel)? {
            return Ok(first.channel_event(own)?.map(|cq| self.home_of(k, cq)));
        }
        let mut taken = None;
        for (k, engine, part) in self.parts(&CHANNELS, channel)? {
            taken = engine.channel_event(part)?.map(|cq| self.home_of(k, cq));
            if taken.is_some() {
                break;
            }
        }
        first.lower_channel(own)?;
        // An engine notes its event before it raises the descriptor: so an event whose descriptor
        // was lowered by mistake is found here.
        for (_, engine, part) in self.parts(&CHANNELS, channel)? {
            if engine.channel_has_event(part)? {
                first.raise_channel(own)?;
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
        let (k, engine, own) = self.resolve(channel)?;
        if !self.is_branched(channel)? {
            let event = engine.channel_wait(own, timeout_ms)?.map(|cq| self.home_of(k, cq));
            if event.is_some() || !self.is_branched(channel)? {
                return Ok(event);
            }
        }
        let _held = engine.hold_channel(own)?;
        let fds = [engine.channel_fd(own)?, self.fd()?];
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
        self.end_parts(
            &CHANNELS,
            channel,
            |engine, part| engine.channel_may_end(part),
            |engine, part| engine.channel_destroy(part),
        )
    }
}

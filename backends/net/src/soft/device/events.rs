//! Events of all engines, under the program's handles.

use super::{program_handle, SoftDevice, MAX_ENGINES};
use crate::soft::EventSink;
use gdrcore_core::device::AsyncEvent;
use gdrcore_core::verbs::types::Handle;
use std::sync::OnceLock;

/// The receiver of a device's events, and the receiver of each engine's, which passes them on.
pub(super) type Sinks = OnceLock<(&'static dyn EventSink, heapless::Vec<OuterSink, MAX_ENGINES>)>;

/// Passes the events of one engine on.
pub(super) struct OuterSink {
    device: &'static SoftDevice,
    k: usize,
}

impl OuterSink {
    fn target(&self) -> Option<&'static dyn EventSink> {
        self.device.sinks.get().map(|(to, _)| *to)
    }
}

impl EventSink for OuterSink {
    fn cq_event(&self, cq: Handle) {
        if let Some(to) = self.target() {
            to.cq_event(self.device.home_of(self.k, cq));
        }
    }

    fn async_event(&self, event: AsyncEvent) {
        if let Some(to) = self.target() {
            to.async_event(self.device.outer_event(self.k, event));
        }
    }

    fn cm_event(&self) {
        if let Some(to) = self.target() {
            to.cm_event();
        }
    }

    fn other_mad_event(&self) {
        if let Some(to) = self.target() {
            to.other_mad_event();
        }
    }
}

impl SoftDevice {
    /// As [`crate::soft::SoftEngine::deliver_to`], of all engines: `sink` may be called by several
    /// threads at the same time, each with the lock of an engine.
    pub fn deliver_to(&'static self, sink: &'static dyn EventSink) {
        // An engine that is made later gets the sink from its maker.
        let Ok(_control) = self.control() else { return };
        let (_, sinks) = self.sinks.get_or_init(|| {
            let of = |k| OuterSink { device: self, k };
            (sink, (0..self.engines.most()).map(of).collect())
        });
        for (k, engine) in self.engines.numbered() {
            engine.deliver_to(&sinks[k]);
        }
    }

    /// An event of an engine, as the program knows its object.
    pub(super) fn outer_event(&self, k: usize, event: AsyncEvent) -> AsyncEvent {
        let handle = match event.handle {
            // The event is the device's own.
            0 => 0,
            h => program_handle(k, h),
        };
        AsyncEvent { handle, ..event }
    }
}

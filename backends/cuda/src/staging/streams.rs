//! The streams and events of one GPU, and its pinned memory.

use core::ffi::c_void;

use super::{ATOMICS, CHUNKS};
use crate::api::{self, check, Object};
use crate::device::{Current, Device};
use crate::failure::Failure;

/// The state of an event.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Asked {
    NotYet,
    Done,
    Lost,
}

/// The copies of one stream, which end in their order.
#[derive(Clone, Copy, Default)]
struct Copies {
    /// Number and event of the latest copy.
    last: u64,
    event: usize,
    /// Number of the latest copy that is known to have ended.
    ended: u64,
}

pub(super) struct Streams {
    pub(super) device: &'static Device,
    /// The context is lost: no further copy will succeed.
    pub(super) lost: bool,
    inward: Object,
    outward: Object,
    /// Placements, numbered as in their chunks, and copies out, which are counted here.
    placements: Copies,
    loads: Copies,
    /// The events of chunks in, chunks out, and atomics.
    events: Vec<Object>,
}

const IN: usize = 0;
const OUT: usize = CHUNKS;
const ATOMIC: usize = 2 * CHUNKS;
const EVENTS: usize = 2 * CHUNKS + ATOMICS;

/// Pinned host memory, for every GPU.
pub(super) fn pin(device: &'static Device, bytes: usize) -> Result<*mut u8, Failure> {
    let _current = device.enter()?;
    let mut at: *mut c_void = core::ptr::null_mut();
    // SAFETY: a writable place.
    check(api::host_alloc::NAME, unsafe {
        (device.api.host_alloc)(&mut at, bytes, api::HOSTALLOC_PORTABLE)
    })?;
    Ok(at.cast())
}

pub(super) fn unpin(device: &'static Device, at: *mut u8) {
    // If the context is lost, the memory stays pinned.
    if let Ok(_current) = device.enter() {
        // SAFETY: pinned by us, and nobody uses it any more.
        unsafe { (device.api.host_free)(at.cast()) };
    }
}

impl Streams {
    pub(super) fn new(device: &'static Device) -> Result<Streams, Failure> {
        let _current = device.enter()?;
        let null = core::ptr::null_mut();
        let mut gpu = Streams {
            device,
            lost: false,
            inward: null,
            outward: null,
            placements: Copies::default(),
            loads: Copies::default(),
            events: Vec::with_capacity(EVENTS),
        };
        for stream in [&mut gpu.inward, &mut gpu.outward] {
            // SAFETY: a writable place.
            check(api::stream_create::NAME, unsafe {
                (device.api.stream_create)(stream, api::STREAM_NON_BLOCKING)
            })?;
        }
        for _ in 0..EVENTS {
            let mut event = null;
            // SAFETY: a writable place.
            check(api::event_create::NAME, unsafe {
                (device.api.event_create)(&mut event, api::EVENT_DISABLE_TIMING)
            })?;
            gpu.events.push(event);
        }
        Ok(gpu)
    }

    /// Runs calls with the context current. After a sticky error, or if it cannot be made current,
    /// the context counts as lost.
    fn run(
        &mut self,
        calls: impl FnOnce(&Streams, &Current<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let device = self.device;
        let done = device.enter().and_then(|current| calls(self, &current));
        if let Err(e) = done {
            // A freed address or a lack of memory is no reason to give up the GPU.
            self.lost |=
                !matches!(e.code, api::INVALID_VALUE | api::OUT_OF_MEMORY | api::NOT_SUPPORTED);
        }
        done
    }

    fn record(&self, event: usize, stream: Object) -> Result<(), Failure> {
        // SAFETY: an event and a stream of this GPU.
        check(api::event_record::NAME, unsafe {
            (self.device.api.event_record)(self.events[event], stream)
        })
    }

    /// Copies chunk `i` in, as placement `seq`.
    pub(super) fn copy_in(
        &mut self,
        i: usize,
        seq: u64,
        to: u64,
        from: *const u8,
        len: usize,
    ) -> Result<(), Failure> {
        self.run(|gpu, _| {
            // SAFETY: `len` bytes of a pinned chunk, which is left alone until its event has come.
            let rc = unsafe { (gpu.device.api.copy_in_async)(to, from.cast(), len, gpu.inward) };
            check(api::copy_in_async::NAME, rc)?;
            gpu.record(IN + i, gpu.inward)
        })?;
        (self.placements.last, self.placements.event) = (seq, IN + i);
        Ok(())
    }

    /// Copies out, behind the placements in progress; `head` is the number of the oldest one.
    /// Returns the number of this copy.
    fn copy_out(
        &mut self,
        event: usize,
        to: *mut u8,
        from: u64,
        len: usize,
        head: u64,
    ) -> Result<u64, Failure> {
        self.run(|gpu, _| {
            if gpu.placements.last >= head {
                let last = gpu.events[gpu.placements.event];
                // SAFETY: a stream and an event of this GPU.
                check(api::stream_wait::NAME, unsafe {
                    (gpu.device.api.stream_wait)(gpu.outward, last, 0)
                })?;
            }
            // SAFETY: `len` bytes of a pinned chunk, which is left alone until its event has come.
            let rc = unsafe { (gpu.device.api.copy_out_async)(to.cast(), from, len, gpu.outward) };
            check(api::copy_out_async::NAME, rc)?;
            gpu.record(event, gpu.outward)
        })?;
        self.loads.last += 1;
        self.loads.event = event;
        Ok(self.loads.last)
    }

    /// Copies chunk `i` out; returns the number of this copy.
    pub(super) fn load(
        &mut self,
        i: usize,
        to: *mut u8,
        from: u64,
        len: usize,
        head: u64,
    ) -> Result<u64, Failure> {
        self.copy_out(OUT + i, to, from, len, head)
    }

    /// Copies an atomic's 8 bytes out; returns the number of this copy.
    pub(super) fn load_atomic(
        &mut self,
        i: usize,
        to: *mut u8,
        from: u64,
        head: u64,
    ) -> Result<u64, Failure> {
        self.copy_out(ATOMIC + i, to, from, 8, head)
    }

    fn asked(&mut self, event: usize) -> Asked {
        let answer = self.device.enter().map_or(api::INVALID_CONTEXT, |_current| {
            // SAFETY: an event of this GPU.
            unsafe { (self.device.api.event_query)(self.events[event]) }
        });
        match answer {
            api::SUCCESS => Asked::Done,
            api::NOT_READY => Asked::NotYet,
            _ => {
                self.lost = true;
                Asked::Lost
            }
        }
    }

    /// Whether placement `seq`, of chunk `i`, has ended.
    pub(super) fn asked_in(&mut self, i: usize, seq: u64) -> Asked {
        self.asked_in_order(|gpu| &mut gpu.placements, IN + i, seq)
    }

    /// Whether copy `number` out, of chunk `i`, has ended.
    pub(super) fn asked_out(&mut self, i: usize, number: u64) -> Asked {
        self.asked_in_order(|gpu| &mut gpu.loads, OUT + i, number)
    }

    /// Whether copy `number` out, of atomic `i`, has ended.
    pub(super) fn asked_atomic(&mut self, i: usize, number: u64) -> Asked {
        self.asked_in_order(|gpu| &mut gpu.loads, ATOMIC + i, number)
    }

    /// Whether the copy of a number and an event has ended.
    ///
    /// The driver's answer that a copy has ended costs ten times as much as its answer that it has
    /// not. So asks for the stream's latest copy first: if it has ended, so have those before it.
    fn asked_in_order(
        &mut self,
        copies: fn(&mut Streams) -> &mut Copies,
        event: usize,
        number: u64,
    ) -> Asked {
        let known = *copies(self);
        if number <= known.ended {
            return Asked::Done;
        }
        if number != known.last && self.asked(known.event) == Asked::Done {
            copies(self).ended = known.last;
            return Asked::Done;
        }
        let asked = self.asked(event);
        if asked == Asked::Done {
            copies(self).ended = number;
        }
        asked
    }

    /// Waits until no copy is in progress.
    pub(super) fn settle(&self) {
        let Ok(_current) = self.device.enter() else { return };
        for stream in [self.inward, self.outward] {
            if !stream.is_null() {
                // SAFETY: a stream of this GPU. An error means that nothing will be copied any
                // more.
                unsafe { (self.device.api.stream_sync)(stream) };
            }
        }
    }
}

impl Drop for Streams {
    fn drop(&mut self) {
        let _current = self.device.enter();
        for &event in &self.events {
            // SAFETY: an event of ours that nobody uses any more.
            unsafe { (self.device.api.event_destroy)(event) };
        }
        for stream in [self.inward, self.outward] {
            if !stream.is_null() {
                // SAFETY: a stream of ours that nobody uses any more.
                unsafe { (self.device.api.stream_destroy)(stream) };
            }
        }
    }
}

//! Verbs of completion queues, except extended polling.
use crate::abi::*;
use crate::channel_verbs::Channel;
use crate::event_acks::{AckCounters, EventKind};
use crate::failed_requests;
use crate::hca::{EventTarget, Hca};
use crate::hca_kinds::Called;
use crate::object_numbers::{ObjectKind, ObjectNumber};
use crate::open_context::{end_events, Context};
use crate::verb_result::{object, Verb};
use crate::weak;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gdrcore_core::device::{CqPlace, Device};
use gdrcore_core::verbs::types::{wc_flags, Handle};
use gdrcore_core::wire::ip::v4_of_gid;
use gdrcore_core::{refuse, Error, Result};
use gdrcore_net::thread_lock::{retry_while_busy, ThreadLock};

/// A completion queue.
#[repr(C)]
pub struct Cq {
    /// The public part; for a CQ that is not extended, its beginning.
    pub ex: ibv_cq_ex,
    /// Its `handle`.
    _number: ObjectNumber,
    pub device: &'static dyn Device,
    pub hca: &'static Hca,
    pub handle: Handle,
    /// Value of `sl` in the completion of a datagram.
    network_header: u8,
    /// Completion events that the program has taken.
    events_taken: AtomicU32,
    /// Asynchronous events that the program has taken.
    async_taken: AtomicU32,
    /// QPs that use it.
    pub users: AtomicU32,
    /// Extended: held by the thread that reads it.
    pub lock: ThreadLock,
    /// Extended: the program reads it from one thread only, so the lock is not needed.
    pub single_threaded: bool,
    /// Extended: completions get a timestamp.
    pub stamps: bool,
    /// Extended: the current completion, and the time at which it was taken.
    pub current: ibv_wc,
    pub stamp_ns: u64,
    /// Completions that were polled, if polls are shortened ([`crate::weak`]).
    polled: AtomicU64,
    /// How many had been polled when a round last ended early.
    ended: AtomicU64,
}

/// The arguments of a new CQ.
pub struct CqInit {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    /// The number of its thread domain.
    pub domain: Option<u32>,
}

/// Bytes of a CQ entry in the device, for growing its memory.
const ENTRY: usize = 64;

/// `sl` of the completion of a received datagram. RoCE has no service levels there; mlx5 reports
/// the packet's headers instead: 8 for UDP, plus 1 for IPv6 or 2 for IPv4. UCX 1.13 uses that to
/// find the addresses in the GRH.
fn network_header(gid: &[u8; 16]) -> u8 {
    const UDP: u8 = 8;
    UDP | if v4_of_gid(gid).is_some() { 2 } else { 1 }
}

impl Cq {
    /// The CQ that a program's pointer belongs to.
    ///
    /// # Errors
    /// [`Error::Invalid`]: null.
    ///
    /// # Safety
    /// `p` is null or a live CQ of ours.
    #[inline]
    pub unsafe fn from_ptr<'a>(p: *const ibv_cq) -> Result<&'a Cq> {
        // SAFETY: the caller's promise; the program's struct is the first field.
        unsafe { object(p.cast::<Cq>()) }
    }

    /// A CQ of the device that is in no table yet.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::NoMemory`].
    ///
    /// # Safety
    /// The program's pointers.
    pub unsafe fn make(context: *mut ibv_context, init: &CqInit) -> Result<Cq> {
        // SAFETY: the caller's promise.
        let c = unsafe { Context::from_ptr(context)? };
        let most = c.hca.attr.max_cqe;
        if init.cqe == 0 || init.cqe > most {
            return Err(refuse!(Invalid, "cqe {}: 1 to {most}", init.cqe));
        }
        let vectors = c.hca.device.vectors();
        if init.comp_vector >= vectors {
            return Err(refuse!(
                Invalid,
                "comp_vector {}: the device has {vectors}, from 0 on",
                init.comp_vector
            ));
        }
        let place = init.domain.map_or(CqPlace::Vector(init.comp_vector), CqPlace::Domain);
        let (handle, given) =
            c.hca.make(init.cqe as usize * ENTRY, |d| d.cq_create_at(init.cqe, place))?;
        // SAFETY: the caller's promise.
        if let Ok(channel) = unsafe { Channel::from_ptr(init.channel) } {
            channel.users.fetch_add(1, Ordering::Relaxed);
        }
        let number = ObjectNumber::new(ObjectKind::Cq, c.hca);
        Ok(Cq {
            ex: ibv_cq_ex {
                base: ibv_cq {
                    context,
                    channel: init.channel,
                    cq_context: init.cq_context,
                    handle: number.get(),
                    cqe: given as c_int,
                    mutex: libc::PTHREAD_MUTEX_INITIALIZER,
                    cond: libc::PTHREAD_COND_INITIALIZER,
                    comp_events_completed: 0,
                    async_events_completed: 0,
                },
                // SAFETY: zeroes are a value of each other field: numbers, and no functions.
                ..unsafe { core::mem::zeroed() }
            },
            _number: number,
            device: c.hca.device,
            hca: c.hca,
            handle,
            network_header: network_header(&c.hca.attr.gid),
            events_taken: AtomicU32::new(0),
            async_taken: AtomicU32::new(0),
            users: AtomicU32::new(0),
            lock: ThreadLock::default(),
            single_threaded: false,
            stamps: false,
            current: ibv_wc::default(),
            stamp_ns: 0,
            polled: AtomicU64::new(0),
            ended: AtomicU64::new(0),
        })
    }

    /// Polls completions, in the program's form.
    ///
    /// # Errors
    /// Those of the device's `poll_cq`, except [`Error::Busy`].
    ///
    /// # Safety
    /// Its device is a `D`.
    #[inline]
    pub unsafe fn poll<D: Called + ?Sized>(&self, room: &mut [ibv_wc]) -> Result<usize> {
        // SAFETY: the caller's promise.
        let n = retry_while_busy(|| unsafe { D::cast(self.device) }.poll_cq(self.handle, room))?;
        for wc in room.iter_mut().take(n).filter(|wc| wc.wc_flags & wc_flags::GRH != 0) {
            wc.sl = self.network_header;
        }
        Ok(n)
    }

    /// Counts completions that were polled, for [`weak`].
    pub fn count_polled(&self, n: usize) {
        self.polled.fetch_add(n as u64, Ordering::Relaxed);
    }

    /// Whether a round ends with the last completion that was polled, whatever else is there
    /// ([`weak::ends_poll`]). Once for each completion: a round that goes on gets the next one.
    pub fn ends_here(&self) -> bool {
        let polled = self.polled.load(Ordering::Relaxed);
        let ends = self.ended.load(Ordering::Relaxed) != polled
            && weak::ends_poll(self.ex.base.handle, polled);
        if ends {
            self.ended.store(polled, Ordering::Relaxed);
            self.end_early();
        }
        ends
    }

    /// A poll has ended early. The completions that it left count as new, so that a CQ that was
    /// armed meanwhile raises its event.
    fn end_early(&self) {
        weak::count_short_poll();
        // A forked child has no device; its polls have failed.
        let _ = self.hca.soft().map(|device| device.cq_raise_pending(self.handle));
    }

    /// Adds the CQ to its device's table, so that events reach it.
    pub fn publish(this: *mut Cq) {
        // SAFETY: just made.
        let cq = unsafe { &*this };
        cq.hca.objects().by_handle.insert(cq.handle, this);
    }

    /// Counts a completion event that the program has taken.
    pub fn event_taken(&self) {
        self.events_taken.fetch_add(1, Ordering::Relaxed);
    }

    /// Events that the program has taken and not acknowledged.
    pub fn unacknowledged(&self) -> u32 {
        let taken = [&self.events_taken, &self.async_taken].map(|n| n.load(Ordering::Relaxed));
        // SAFETY: this CQ.
        unsafe { self.acks().missing(taken[0], taken[1]) }
    }

    /// The `cq_context` that the program gave.
    pub fn program_context(&self) -> *mut c_void {
        self.ex.base.cq_context
    }

    /// Destroys the CQ in the device, drops the events that the program has not taken, and waits
    /// until the program has acknowledged the others.
    ///
    /// # Errors
    /// [`Error::Busy`]: QPs use it.
    pub fn end(&self) -> Result<()> {
        let users = self.users.load(Ordering::Relaxed);
        if users != 0 {
            return Err(refuse!(Busy, "cq: {users} queues use it"));
        }
        retry_while_busy(|| self.device.cq_destroy(self.handle))?;
        self.hca.objects().by_handle.remove(&self.handle);
        let this: *const Cq = self;
        // SAFETY: channel and context outlive their CQs.
        unsafe {
            if let Ok(channel) = Channel::from_ptr(self.ex.base.channel) {
                channel.events.remove(|&c| c.cast_const() == this.cast());
                channel.users.fetch_sub(1, Ordering::Relaxed);
            }
            end_events(self, self.events_taken.load(Ordering::Relaxed));
        }
        Ok(())
    }
}

impl EventTarget for Cq {
    fn kind(&self) -> EventKind {
        EventKind::Cq
    }

    fn context(&self) -> *mut ibv_context {
        self.ex.base.context
    }

    fn element(&self) -> ibv_async_element {
        ibv_async_element { cq: (&raw const self.ex.base).cast_mut() }
    }

    fn acks(&self) -> AckCounters {
        AckCounters::new(&raw const self.ex.base)
    }

    fn async_taken(&self) -> &AtomicU32 {
        &self.async_taken
    }

    fn raise_completion(&self) {
        // SAFETY: a channel outlives its CQs.
        if let Ok(channel) = unsafe { Channel::from_ptr(self.ex.base.channel) } {
            channel.events.push((&raw const *self).cast_mut().cast());
        }
    }
}

#[cold]
fn negative(cqe: c_int, comp_vector: c_int) -> Error {
    match cqe < 0 {
        true => refuse!(Invalid, "cqe {cqe}: negative"),
        false => refuse!(Invalid, "comp_vector {comp_vector}: negative"),
    }
}

/// `ibv_create_cq`.
pub unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let numbers = u32::try_from(cqe).and_then(|cqe| Ok((cqe, u32::try_from(comp_vector)?)));
    Verb("ibv_create_cq").pointer(numbers.map_err(|_| negative(cqe, comp_vector)).and_then(
        |(cqe, comp_vector)| {
            // SAFETY: the program's pointers.
            let cq = unsafe {
                Cq::make(context, &CqInit { cqe, cq_context, channel, comp_vector, domain: None })?
            };
            let cq = Box::into_raw(Box::new(cq));
            Cq::publish(cq);
            Ok(cq.cast())
        },
    ))
}

/// `ibv_resize_cq`.
pub unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    Verb("ibv_resize_cq").code((|| {
        // SAFETY: the program's pointer.
        let c = unsafe { Cq::from_ptr(cq)? };
        let wanted = u32::try_from(cqe).map_err(|_| negative(cqe, 0))?;
        let given = c.hca.make(wanted as usize * ENTRY, |d| {
            retry_while_busy(|| d.cq_resize(c.handle, wanted))
        })?;
        // SAFETY: the program may read it only after the call.
        unsafe { (*cq).cqe = given as c_int };
        Ok(())
    })())
}

/// `ibv_cq_attr_mask`.
const MODERATE: u32 = 1;

/// `ibv_modify_cq`: moderation, by which a NIC delays events and raises one for several
/// completions. This device raises each event at once, and so accepts any setting.
pub unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    Verb("ibv_modify_cq").code((|| {
        // SAFETY: the program's pointers.
        let (_, attr) = unsafe {
            (Cq::from_ptr(cq)?, attr.as_ref().ok_or_else(|| refuse!(Invalid, "attr: NULL"))?)
        };
        match attr.attr_mask {
            MODERATE => Ok(()),
            mask => Err(refuse!(Invalid, "attr_mask {mask:#x}: MODERATE (1)")),
        }
    })())
}

/// `ibv_destroy_cq`.
pub unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    Verb("ibv_destroy_cq").code((|| {
        // SAFETY: the program's pointer.
        unsafe { Cq::from_ptr(cq)? }.end()?;
        // SAFETY: made by Box::into_raw, the program may not use it any more.
        drop(unsafe { Box::from_raw(cq.cast::<Cq>()) });
        Ok(())
    })())
}

/// The operation behind `ibv_poll_cq`. `VERBOSE`: says why requests failed.
pub unsafe extern "C" fn poll_cq<D: Called + ?Sized, const VERBOSE: bool>(
    cq: *mut ibv_cq,
    n: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    // SAFETY: the program's CQ. Not checked for null: the inline verb has read it already.
    let c = unsafe { &*cq.cast::<Cq>() };
    if n <= 0 {
        return if n == 0 { 0 } else { -libc::EINVAL };
    }
    // SAFETY: room for `n` completions, as the program promises; any bits are a valid completion.
    let room = unsafe { core::slice::from_raw_parts_mut(wc, n as usize) };
    // SAFETY: contexts have this operation for their device.
    match unsafe { c.poll::<D>(room) } {
        Ok(n) => {
            if VERBOSE {
                failed_requests::explain(c.hca, &room[..n]);
            }
            n as c_int
        }
        Err(e) => -e.errno(),
    }
}

/// The operation behind `ibv_poll_cq` if polls are shortened. `VERBOSE`: as of [`poll_cq`].
pub unsafe extern "C" fn poll_cq_short<D: Called + ?Sized, const VERBOSE: bool>(
    cq: *mut ibv_cq,
    n: c_int,
    wc: *mut ibv_wc,
) -> c_int {
    // SAFETY: the program's CQ.
    let c = unsafe { &*cq.cast::<Cq>() };
    let most = match usize::try_from(n) {
        Ok(n @ 2..) => weak::few(c.ex.base.handle, c.polled.load(Ordering::Relaxed), n) as c_int,
        _ => n,
    };
    // SAFETY: the program's arguments, with a smaller room.
    let got = unsafe { poll_cq::<D, VERBOSE>(cq, most, wc) };
    if got > 0 {
        c.count_polled(got as usize);
        if got == most && most < n {
            c.end_early();
        }
    }
    got
}

/// The operation behind `ibv_req_notify_cq`.
pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the program's CQ.
    let c = unsafe { &*cq.cast::<Cq>() };
    Verb("ibv_req_notify_cq").code(c.device.cq_arm(c.handle, solicited_only != 0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_net::addr::{Endpoint, ROCE_PORT};

    #[test]
    fn a_datagrams_completion_reports_its_headers() {
        assert_eq!(network_header(&Endpoint::v4([10, 0, 0, 1], ROCE_PORT).ip), 0xa);
        assert_eq!(network_header(&1u128.to_be_bytes()), 0x9);
    }
}

//! The tenant's end of remote mode: a device whose verbs the router executes.
//!
//! Control calls wait for the router's answer, one at a time. Posts write into the queue's memory,
//! and ring its bell if the router has armed it; a poll reads the memory of its CQ. Neither
//! allocates, and neither makes a system call unless the router sleeps, or the CQ is empty.

/// Methods that are one call of the router: with the arguments of a message.
macro_rules! asked {
    ($(fn $method:ident($($arg:ident: $type:ty),*) -> $result:ty
        = $call:ident($arguments:expr);)*) => {$(
        fn $method(&self $(, $arg: $type)*) -> Result<$result> {
            self.ask::<call::$call>($arguments)
        }
    )*};
}

mod calls;
mod cm;

use super::adopt::Adopter;
use super::call::{self, parse_answer, request, Call, MESSAGE_MAX};
use super::queue::{Broken, DoorbellPage, QueueMap};
use super::table::ClientTable;
use crate::clock::now_ns;
use crate::fork::ForkGuard;
use crate::rights::{self, Foreign};
use crate::sys::{any_ready, check, set_option, wait_ready, Fd};
use crate::threads::own_cpu;
use crate::via::find::{of_device, SocketPath};
use crate::via::session::Session;
use crate::via::wire;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use gdrcore_core::device::{Device, DeviceAttr, MrAttr};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::reason::refused;
use gdrcore_core::refuse;
use gdrcore_core::ring::SlotRing;
use gdrcore_core::verbs::shared::QpShared;
use gdrcore_core::verbs::types::Handle;
use gdrcore_core::verbs::wqe::RecvWqe;
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

/// A router that does not answer a call within this time counts as gone.
const CALL_TIMEOUT_NS: u64 = if cfg!(test) { 4_000_000_000 } else { 60_000_000_000 };
/// Empty polls of a CQ between two looks whether the router is there; and between two turns of the
/// core for another thread, where the router runs on another core and where it waits for this one.
const POLLS_PER_LOOK: u32 = 1024;
const POLLS_PER_YIELD: u32 = 256;
const POLLS_PER_YIELD_TO_ROUTER: u32 = 4;
/// Bytes of an event.
const EVENT: usize = 24;

/// The start of the names of devices that may be remote.
pub const PREFIX: &str = "router:";

/// The number of the last request, and the buffer of its answer.
struct CallState {
    last: u32,
    buffer: Box<[u8; MESSAGE_MAX]>,
}

/// A queue pair. The thread that posts holds the consuming end of the ring, which gives slots back.
struct Qp {
    shared: QpShared,
    map: QueueMap,
    qpn: u32,
    /// Of its sends and of its receives.
    bells: [u32; 2],
    pins: AtomicU32,
}

/// An SRQ. `queue` is held by the thread that posts, or that goes on in memory of another size.
struct Srq {
    queue: Mutex<SrqQueue>,
    max_sge: u32,
    bell: u32,
}

struct SrqQueue {
    map: QueueMap,
    ring: SlotRing<RecvWqe>,
}

impl SrqQueue {
    fn new(map: QueueMap) -> SrqQueue {
        let ring = SlotRing::new();
        map.install(0, &ring);
        SrqQueue { map, ring }
    }
}

/// A CQ. `polling` is held by the thread that polls, `queues` for a moment by whoever uses them.
struct Cq {
    /// The memory that is polled now: the first of `queues`.
    polling: Mutex<Arc<QueueMap>>,
    /// Its memory, and before that the memory of its earlier sizes which was not emptied yet.
    queues: Mutex<VecDeque<Arc<QueueMap>>>,
    empty: AtomicU32,
    pins: AtomicU32,
}

impl Cq {
    fn queues(&self) -> MutexGuard<'_, VecDeque<Arc<QueueMap>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A region, for `mr_query` and for its pieces in the session's file.
struct Mr {
    attr: MrAttr,
    pieces: Vec<(u64, u64)>,
}

/// A remote device.
pub struct RemoteDevice {
    /// First, so that the router hears of the end of the session before that of its sockets.
    session: Option<Session>,
    fork: ForkGuard,
    control: Mutex<CallState>,
    calls: OwnedFd,
    events: OwnedFd,
    asyncs: OwnedFd,
    /// Readable when `events` or `asyncs` is, or the connection manager has an event.
    any: Fd,
    door: DoorbellPage,
    attr: DeviceAttr,
    adopter: Arc<Adopter>,
    /// Held by the thread that resizes or arms a CQ: its queues stay in the order of the resizes,
    /// and it is armed in the memory that the router fills now.
    resizing: Mutex<()>,
    gone: AtomicBool,
    mrs: RwLock<ClientTable<Mr>>,
    qps: RwLock<ClientTable<Qp>>,
    srqs: RwLock<ClientTable<Arc<Srq>>>,
    cqs: RwLock<ClientTable<Cq>>,
    channels: RwLock<ClientTable<OwnedFd>>,
    cm_bell: Mutex<Option<cm::Bell>>,
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// As [`ClientTable::add`].
fn add<T>(lock: &RwLock<ClientTable<T>>, h: Handle, object: T) -> Option<T> {
    lock.write().unwrap_or_else(PoisonError::into_inner).add(h, object)
}

fn remove<T>(lock: &RwLock<ClientTable<T>>, h: Handle) -> Option<T> {
    lock.write().unwrap_or_else(PoisonError::into_inner).remove(h)
}

/// Makes an epoll(7) descriptor readable while another one is.
fn watch(any: &Fd, fd: i32) -> Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: the event lives through the call.
    check(unsafe { libc::epoll_ctl(any.raw(), libc::EPOLL_CTL_ADD, fd, &mut event) }).map(drop)
}

/// What one thread at a time may use; `busy`: the error of a second one.
fn try_hold<T>(lock: &Mutex<T>, busy: impl FnOnce() -> Error) -> Result<MutexGuard<'_, T>> {
    match lock.try_lock() {
        Ok(held) => Ok(held),
        Err(std::sync::TryLockError::Poisoned(e)) => Ok(e.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => Err(busy()),
    }
}

impl RemoteDevice {
    /// Opens the device of a name that begins with [`PREFIX`].
    ///
    /// # Errors
    /// As [`Session::open_remote`]; those of the first call.
    pub fn open(name: &str) -> Result<RemoteDevice> {
        let at = name.strip_prefix(PREFIX).ok_or_else(|| {
            refuse!(Invalid, "device '{name}': a remote one is '{PREFIX}<name or socket>'")
        })?;
        RemoteDevice::open_at(&of_device(at)?)
    }

    /// Opens the device behind a router's socket.
    ///
    /// # Errors
    /// As [`RemoteDevice::open`].
    pub fn open_at(at: &SocketPath) -> Result<RemoteDevice> {
        let (session, fds) = Session::open_remote(at)?;
        RemoteDevice::over(fds, Some(session))
    }

    /// The device over a remote session's descriptors, in the order of the WELCOME. `session`: the
    /// connection by which they came, if that is to end with the device.
    ///
    /// # Errors
    /// As [`RemoteDevice::open`].
    pub fn over(fds: [OwnedFd; 4], session: Option<Session>) -> Result<RemoteDevice> {
        let [calls, events, asyncs, door] = fds;
        let door = DoorbellPage::open(door.as_fd())?;
        set_option(calls.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUF, 64i32 << 10)?;
        // SAFETY: no pointers.
        let any = Fd::from_call(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        [&events, &asyncs].into_iter().try_for_each(|fd| watch(&any, fd.as_raw_fd()))?;
        let mut device = RemoteDevice {
            session,
            fork: ForkGuard::new(),
            control: Mutex::new(CallState { last: 0, buffer: Box::new([0; MESSAGE_MAX]) }),
            calls,
            events,
            asyncs,
            any,
            door,
            attr: DeviceAttr::default(),
            adopter: Adopter::of_process()?,
            resizing: Mutex::default(),
            gone: AtomicBool::new(false),
            mrs: RwLock::default(),
            qps: RwLock::default(),
            srqs: RwLock::default(),
            cqs: RwLock::default(),
            channels: RwLock::default(),
            cm_bell: Mutex::default(),
        };
        device.exchange::<call::File>(&(), Some(device.adopter.fd()))?;
        device.attr = device.ask::<call::Query>(&())?;
        Ok(device)
    }

    /// The connection to the router.
    pub fn session(&self) -> Option<&Session> {
        self.session.as_ref()
    }

    /// Makes a call, and waits for its result.
    fn ask<C: Call>(&self, arguments: &C::In) -> Result<C::Out> {
        self.exchange::<C>(arguments, None).map(|(out, _)| out)
    }

    /// Makes a call whose answer brings a descriptor, and opens that by `open`. If it is missing or
    /// does not open, `undo` gets the answer.
    fn ask_fd<C: Call, T>(
        &self,
        arguments: &C::In,
        open: impl FnOnce(&C::Out, OwnedFd) -> Result<T>,
        undo: impl FnOnce(&C::Out),
    ) -> Result<(C::Out, T)> {
        let (out, fd) = self.exchange::<C>(arguments, None)?;
        let fd = fd.ok_or_else(|| {
            refuse!(Os(libc::EMFILE), "the router's answer is a descriptor too many (`ulimit -n`)")
        });
        match fd.and_then(|fd| open(&out, fd)) {
            Ok(opened) => Ok((out, opened)),
            Err(e) => {
                undo(&out);
                Err(e)
            }
        }
    }

    fn exchange<C: Call>(
        &self,
        arguments: &C::In,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(C::Out, Option<OwnedFd>)> {
        self.fork.check()?;
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let until = now_ns() + CALL_TIMEOUT_NS;
        control.last = control.last.wrapping_add(1);
        let number = control.last;
        let bytes = request::<C>(number, arguments);
        loop {
            match wire::send_bytes(self.calls.as_fd(), &bytes, fd) {
                Ok(()) => break,
                Err(Error::Again) => self.sleep(self.calls.as_raw_fd(), libc::POLLOUT, until)?,
                Err(_) => return Err(self.lost()),
            }
        }
        loop {
            let mut came: Option<Foreign> = None;
            let buffer = &mut control.buffer[..];
            let got = rights::receive(self.calls.as_raw_fd(), buffer, 0, |_, fd| came = Some(fd));
            let len = match got {
                Err(libc::EAGAIN | libc::EINTR) => {
                    self.sleep(self.calls.as_raw_fd(), libc::POLLIN, until)?;
                    continue;
                }
                Ok(arrived) if arrived.len > 0 => arrived.len,
                _ => return Err(self.lost()),
            };
            let answer = parse_answer::<C::Out>(&buffer[..len]);
            match answer.filter(|(n, _)| *n == number) {
                Some((_, Ok(out))) => return Ok((out, came.map(Foreign::trusted))),
                Some((_, Err((e, why)))) if why.is_empty() => return Err(e),
                Some((_, Err((e, why)))) => return Err(refused(e, format_args!("{why}"))),
                None => return Err(refuse!(Os(libc::EPROTO), "the router's answer is no answer")),
            }
        }
    }

    /// Sleeps until a descriptor is ready.
    fn sleep(&self, fd: i32, events: i16, until: u64) -> Result<()> {
        let left = until.saturating_sub(now_ns()) / 1_000_000;
        if left == 0 {
            self.hang_up();
            return Err(refuse!(TimedOut, "the router does not answer: the session has ended"));
        }
        wait_ready(fd, events, i32::try_from(left).unwrap_or(i32::MAX));
        Ok(())
    }

    /// Ends the session. Whoever waits for its events finds it ended, and so does a router that
    /// works again.
    #[cold]
    fn hang_up(&self) {
        for socket in [&self.calls, &self.events, &self.asyncs] {
            // SAFETY: no pointers.
            unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
        }
        self.gone.store(true, Ordering::Relaxed);
    }

    #[cold]
    fn lost(&self) -> Error {
        self.gone.store(true, Ordering::Relaxed);
        refuse!(Os(libc::ENOTCONN), "the router has ended, or has ended the session: open it anew")
    }

    #[cold]
    fn broken(&self, Broken: Broken) -> Error {
        refuse!(Os(libc::EPROTO), "a queue of the session holds what no router writes")
    }

    /// Wakes the router.
    #[cold]
    fn wake(&self) {
        // A full socket wakes as well.
        let _ = wire::send_bytes(self.calls.as_fd(), &call::bell(), None);
    }

    /// Rings the bell of a queue.
    #[inline]
    fn ring(&self, bell: u32) {
        if self.door.ring(bell) {
            self.wake();
        }
    }

    /// Notes an empty poll. Now and then it gives the core to another thread, most often to the
    /// router's, and looks whether the router is there.
    fn note_empty(&self, cq: &Cq) -> Result<()> {
        let empty = cq.empty.fetch_add(1, Ordering::Relaxed);
        let waits = empty % POLLS_PER_YIELD_TO_ROUTER == 0 && self.door.cpu() == own_cpu();
        if waits || empty % POLLS_PER_YIELD == 0 {
            std::thread::yield_now();
        }
        if empty % POLLS_PER_LOOK == POLLS_PER_LOOK - 1 && !self.gone.load(Ordering::Relaxed) {
            self.look();
        }
        if self.gone.load(Ordering::Relaxed) {
            return Err(self.lost());
        }
        Ok(())
    }

    /// Looks whether the router is there.
    fn look(&self) {
        // No event is asked for: what is ready has hung up.
        self.gone.store(any_ready([(self.calls.as_raw_fd(), 0)]), Ordering::Relaxed);
    }

    /// The words of the next event at a socket.
    ///
    /// # Errors
    /// ENOTCONN: the router has ended, or has ended the session.
    fn event(&self, fd: BorrowedFd<'_>) -> Result<Option<[u64; EVENT / 8]>> {
        let mut bytes = [0; EVENT];
        let n = match wire::read(fd, &mut bytes) {
            Ok(0) => {
                // A channel's end may be closed alone, as that is destroyed.
                self.look();
                return if self.gone.load(Ordering::Relaxed) { Err(self.lost()) } else { Ok(None) };
            }
            Ok(n) => n,
            Err(_) => return Ok(None),
        };
        bytes[n..].fill(0);
        let (words, _) = bytes.as_chunks();
        let mut all = [0; EVENT / 8];
        all.iter_mut().zip(words).for_each(|(to, from)| *to = u64::from_le_bytes(*from));
        Ok(Some(all))
    }
}

impl Drop for RemoteDevice {
    fn drop(&mut self) {
        // The pieces of regions stay the session's until the router says that it has them no more.
        let all = read(&self.mrs).handles();
        for mr in all {
            if self.mr_dereg(mr) == Err(Error::TimedOut) {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_core::device::Device;
    use gdrcore_testkit::patience::wait_for;

    /// A router's answer to the next call, if it is one of the two of an open.
    fn answer_open(calls: &OwnedFd, n: u32) {
        let mut buffer = [0; MESSAGE_MAX];
        wait_for(60, "no call", || {
            rights::receive(calls.as_raw_fd(), &mut buffer, 0, |_, _| ()).is_ok()
        });
        let mut words = Vec::new();
        if n == 2 {
            call::Words::put(&DeviceAttr::default(), &mut words);
        }
        wire::send_bytes(calls.as_fd(), &call::answer(n, Ok(words), ""), None).unwrap();
    }

    #[test]
    fn thorough_a_router_that_does_not_answer_in_time_is_gone() {
        let [[calls, theirs], [events, _events], [asyncs, _asyncs]] =
            [(); 3].map(|()| rights::pair().unwrap());
        let (_door, door) = DoorbellPage::create().unwrap();
        let device = std::thread::scope(|s| {
            s.spawn(|| (1..=2).for_each(|n| answer_open(&theirs, n)));
            RemoteDevice::over([calls, events, asyncs, door], None).unwrap()
        });
        let gone = Error::Os(libc::ENOTCONN);
        assert_eq!(device.pd_alloc(), Err(Error::TimedOut));
        assert_eq!(device.pd_alloc(), Err(gone), "a second wait");
        // Who waits for events is woken, and finds the end.
        assert_eq!(device.wait(0), Ok(true));
        assert_eq!((device.cq_event(), device.async_event()), (Err(gone), Err(gone)));
        device.look();
        assert_eq!(device.pd_alloc(), Err(gone));
    }
}

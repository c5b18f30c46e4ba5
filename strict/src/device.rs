//! A device that checks the calls of a program of the C API, and passes them on to a context's
//! device. Other contexts do not know of it.
//!
//! An object is its device and its handle. The device's own address stands for it.
//!
//! # Thread rule
//! As [`Device`]: any thread.

use crate::memory::{mr_words, MrRange};
use crate::posting::{Posting, Posts};
use crate::process::watch;
use crate::queues::{QpKey, QueueKey, Queues};
use crate::state::{ObjectKind, State};
use crate::Id;
use gdrcore_core::cm::types::{CmEvent, ConnParam};
use gdrcore_core::counters::Counters;
use gdrcore_core::device::*;
use gdrcore_core::error::Result;
use gdrcore_core::pool::index_of;
use gdrcore_core::verbs::cause::{Cause, CauseCode};
use gdrcore_core::verbs::types::*;
use gdrcore_core::{forward_calls, refuse, Error};

/// A device whose calls are looked at.
pub struct StrictDevice<D: Device + ?Sized + 'static> {
    device: &'static D,
    /// The device of which questions are asked: no rule fails its calls.
    behind: &'static D,
    /// The same for what undoes a call; `None`: this is it.
    undoing: Option<Box<StrictDevice<D>>>,
}

/// Where a region lies in the program's memory; `None`: it is memory of another kind.
fn region_of(reg: &MrReg) -> Option<MrRange> {
    (reg.provider == 0).then(|| MrRange::new(reg.addr, reg.length, reg.iova))
}

/// A request that has no slot.
#[cold]
fn no_slot() -> Error {
    refuse!(Again, "max_send_wr: no slot is free until a poll (strict)")
}

impl<D: Device + ?Sized> StrictDevice<D> {
    /// The device, whose calls go to `device`: the one `behind`, or one in front of that whose
    /// calls rules fail. [`crate::process::install`] has begun.
    pub fn new(device: &'static D, behind: &'static D) -> StrictDevice<D> {
        let undoing = Some(Box::new(StrictDevice { device: behind, behind, undoing: None }));
        StrictDevice { device, behind, undoing }
    }

    /// The device to which the calls go.
    pub fn device(&self) -> &'static D {
        self.device
    }

    /// The same device for what undoes a call: no rule fails it.
    pub fn undoing(&self) -> &StrictDevice<D> {
        self.undoing.as_deref().unwrap_or(self)
    }

    /// The device is about to be closed: reports what it still has, which ends with it.
    pub fn closing(&self) {
        self.look_for_overrun();
        watch(|state| state.device_closed(self.key()));
    }

    fn key(&self) -> usize {
        core::ptr::from_ref(self.behind).cast::<()>().addr()
    }

    fn id(&self, handle: Handle) -> Id {
        (self.key(), handle)
    }

    /// Asks no device: a post of a signal handler waits for no lock of its own thread.
    fn qp_key(&self, qp: Handle) -> Option<QpKey> {
        let number = watch(|state| state.qp_numbers.get(&self.id(qp)).copied()).flatten();
        number.map(|n| (self.key(), n))
    }

    /// A new object: tells of it what the call has answered.
    fn made<T>(
        &self,
        made: Result<T>,
        words: impl FnOnce(&T) -> (Handle, String, Option<u32>),
        more: impl FnOnce(&mut State, Id, &T),
    ) -> Result<T> {
        let answer = made?;
        watch(|state| {
            let (handle, words, rkey) = words(&answer);
            state.made(self.id(handle), words, rkey.map(|rkey| (self.key(), rkey)));
            more(state, self.id(handle), &answer);
        });
        Ok(answer)
    }

    /// A new CQ, whose events go to a channel; 0: to the device.
    fn made_cq(&self, made: Result<(Handle, u32)>, channel: Handle) -> Result<(Handle, u32)> {
        self.made(
            made,
            |(cq, room)| (*cq, format!("CQ of {room} entries"), None),
            |state, cq, (_, room)| state.made_cq(cq, *room as usize, self.id(channel)),
        )
    }

    /// A new SRQ.
    fn made_srq(&self, made: Result<(Handle, SrqAttr)>) -> Result<(Handle, SrqAttr)> {
        self.made(made, |(srq, _)| (*srq, "SRQ".into(), None), |state, srq, _| state.made_srq(srq))
    }

    /// A region is there, registered by [`Device::mr_reg`] or by a descriptor past it.
    pub fn note_region(&self, reg: &MrReg, made: &(Handle, MrAttr)) {
        let _ = self.made(
            Ok(*made),
            |(mr, a)| (*mr, mr_words(reg.addr, reg.length), Some(a.rkey)),
            |state, (device, _), (_, a)| state.made_region((device, a.lkey), region_of(reg)),
        );
    }

    /// Destroys an object.
    fn end(
        &self,
        handle: Handle,
        what: &ObjectKind,
        end: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let ending = watch(|state| state.ending(self.id(handle), what, None));
        let done = end();
        if let Some(ending) = ending {
            watch(|state| state.ended(self.id(handle), ending, done.is_err()));
        }
        done
    }

    /// Makes a post: of the program's list, or of a part of it. `bad`: where the call says what it
    /// has not posted.
    fn post<W>(
        &self,
        posts: Option<Posts>,
        list: *const W,
        bad: &mut *const W,
        post: impl FnOnce(Option<*const SendWr>, &mut *const W) -> Result<()>,
    ) -> Result<()> {
        let posting: Posting = match posts {
            None | Some(Posts::Unwatched) => return post(None, bad),
            Some(Posts::Full) => {
                *bad = list;
                return Err(no_slot());
            }
            Some(Posts::Kept(posting)) => posting,
        };
        let done = post(posting.list(), bad);
        let failed_at = done.is_err().then(|| bad.expose_provenance());
        match watch(|state| state.posted(&posting, failed_at)).flatten() {
            Some(first_left) => {
                *bad = core::ptr::with_exposed_provenance(first_left);
                done.and(Err(no_slot()))
            }
            None => done,
        }
    }

    /// Reports a CQ of this device that has failed, since a completion found it full. Only the last
    /// failure of the device is known. Waits for the device, as control calls do.
    fn look_for_overrun(&self) {
        let Ok(Cause { code, arg0, .. }) = self.behind.last_cause() else { return };
        if code != CauseCode::CqOverrun as u32 {
            return;
        }
        watch(|state| {
            let is_it = |id: &Id| id.0 == self.key() && index_of(id.1) as u64 == arg0;
            if let Some(cq) = state.cqs.keys().copied().find(is_it) {
                state.cq_failed(cq);
            }
        });
    }

    /// The connection manager has moved a queue pair.
    fn follow(&self, qp: Handle) {
        let (Some(key), Ok((attr, _))) = (self.qp_key(qp), self.behind.qp_query(qp)) else {
            return;
        };
        let set = qp_attr_mask::STATE | qp_attr_mask::AV | qp_attr_mask::DEST_QPN;
        watch(|state| state.enters(key, &attr, set));
    }

    /// Judges what a connection is made with.
    fn judge(&self, qp: Handle, p: &ConnParam<'_>, mask: u32) {
        let Some((_, n)) = self.qp_key(qp).filter(|_| p.qp_type != qp_type::UD) else { return };
        let (timeout, retry_cnt, rnr_retry) = (p.ack_timeout, p.retry_count, p.rnr_retry);
        let attr = QpAttr { timeout, retry_cnt, rnr_retry, ..QpAttr::default() };
        watch(|state| state.judge(n, (&attr, None), mask));
    }
}

forward_calls! { [impl<D: Device + ?Sized> Device for StrictDevice<D>], |own| own.device;
    fn query() -> Result<DeviceAttr>;
    fn facts() -> Result<DeviceAttr>;
    fn path_mtu(to: &AhAttr) -> Result<u32>;
    fn counters() -> Result<Counters>;
    fn qp_counters(qp: Handle) -> Result<Counters>;
    fn last_cause() -> Result<Cause>;
    fn qp_cause(qp: Handle) -> Result<Cause>;
    fn xrcd_alloc() -> Result<Handle>;
    fn xrcd_dealloc(xrcd: Handle) -> Result<()>;
    fn mr_share(mr: Handle, fd: i32, offset: u64) -> Result<()>;
    fn mr_query(mr: Handle) -> Result<MrAttr>;
    fn mcast_attach(qp: Handle, gid: &[u8; 16]) -> Result<()>;
    fn mcast_detach(qp: Handle, gid: &[u8; 16]) -> Result<()>;
    fn vectors() -> u32;
    fn cq_purge(cq: Handle, qpn: u32) -> Result<()>;
    fn srq_modify(srq: Handle, limit: u32) -> Result<()>;
    fn srq_resize(srq: Handle, max_wr: u32, limit: Option<u32>) -> Result<u32>;
    fn srq_query(srq: Handle) -> Result<SrqAttr>;
    fn srq_number(srq: Handle) -> Result<u32>;
    fn qp_query(qp: Handle) -> Result<(QpAttr, QpInit)>;
    fn qp_pin(qp: Handle) -> Result<()>;
    fn qp_unpin(qp: Handle) -> Result<()>;
    fn cq_pin(cq: Handle) -> Result<()>;
    fn cq_unpin(cq: Handle) -> Result<()>;
    fn qp_num(qp: Handle) -> Result<u32>;
    fn channel_create() -> Result<Handle>;
    fn channel_destroy(channel: Handle) -> Result<()>;
    fn channel_fd(channel: Handle) -> Result<i32>;
    fn channel_event(channel: Handle) -> Result<Option<Handle>>;
    fn cq_event() -> Result<Option<Handle>>;
    fn progress() -> Result<usize>;
    fn fd() -> Result<i32>;
    fn arm() -> Result<bool>;
    fn helper(on: bool) -> Result<()>;
    fn leaks() -> Result<Leaks>;
    {
        fn pd_alloc(&self) -> Result<Handle> {
            self.made(self.device.pd_alloc(), |pd| (*pd, "PD".into(), None), |_, _, _| ())
        }

        fn pd_dealloc(&self, pd: Handle) -> Result<()> {
            self.end(pd, &ObjectKind::Other, || self.device.pd_dealloc(pd))
        }

        fn mr_reg(&self, reg: &MrReg) -> Result<(Handle, MrAttr)> {
            let made = self.device.mr_reg(reg)?;
            self.note_region(reg, &made);
            Ok(made)
        }

        fn mr_rereg(&self, mr: Handle, reg: &MrReg) -> Result<MrAttr> {
            if let Ok(a) = self.behind.mr_query(mr) {
                watch(|state| state.region_ending((self.key(), a.lkey), "registered anew"));
            }
            let a = self.device.mr_rereg(mr, reg)?;
            watch(|state| {
                state.key_begins((self.key(), a.rkey));
                state.made_region((self.key(), a.lkey), region_of(reg));
            });
            Ok(a)
        }

        fn mr_dereg(&self, mr: Handle) -> Result<()> {
            let what = match self.behind.mr_query(mr) {
                Ok(a) => ObjectKind::Mr((self.key(), a.lkey)),
                Err(_) => ObjectKind::Other,
            };
            self.end(mr, &what, || self.device.mr_dereg(mr))
        }

        fn mw_alloc(&self, pd: Handle, mw_type: u32) -> Result<(Handle, u32)> {
            let made = self.device.mw_alloc(pd, mw_type);
            self.made(made, |(mw, rkey)| (*mw, "MW".into(), Some(*rkey)), |_, _, _| ())
        }

        fn mw_dealloc(&self, mw: Handle) -> Result<()> {
            self.end(mw, &ObjectKind::Other, || self.device.mw_dealloc(mw))
        }

        fn ah_create(&self, pd: Handle, attr: &AhAttr) -> Result<Handle> {
            self.made(self.device.ah_create(pd, attr), |ah| (*ah, "AH".into(), None), |_, _, _| ())
        }

        fn ah_destroy(&self, ah: Handle) -> Result<()> {
            self.end(ah, &ObjectKind::Ah, || self.device.ah_destroy(ah))
        }

        fn cq_create(&self, cqe: u32) -> Result<(Handle, u32)> {
            self.made_cq(self.device.cq_create(cqe), 0)
        }

        fn cq_create_at(&self, cqe: u32, place: CqPlace) -> Result<(Handle, u32)> {
            self.made_cq(self.device.cq_create_at(cqe, place), 0)
        }

        fn cq_create_on(&self, cqe: u32, channel: Handle) -> Result<(Handle, u32)> {
            self.made_cq(self.device.cq_create_on(cqe, channel), channel)
        }

        fn cq_resize(&self, cq: Handle, cqe: u32) -> Result<u32> {
            let room = self.device.cq_resize(cq, cqe)?;
            watch(|state| state.resized_cq(self.id(cq), room as usize));
            Ok(room)
        }

        fn cq_destroy(&self, cq: Handle) -> Result<()> {
            self.look_for_overrun();
            self.end(cq, &ObjectKind::Cq, || self.device.cq_destroy(cq))
        }

        fn srq_create(&self, pd: Handle, attr: &SrqAttr) -> Result<(Handle, SrqAttr)> {
            self.made_srq(self.device.srq_create(pd, attr))
        }

        fn srq_create_in(
            &self,
            domain: u32,
            pd: Handle,
            attr: &SrqAttr,
        ) -> Result<(Handle, SrqAttr)> {
            self.made_srq(self.device.srq_create_in(domain, pd, attr))
        }

        fn srq_create_xrc(&self, of: [Handle; 3], attr: &SrqAttr) -> Result<(Handle, SrqAttr)> {
            let made = self.device.srq_create_xrc(of, attr);
            self.made(made, |(srq, _)| (*srq, "SRQ".into(), None), |_, _, _| ())
        }

        fn srq_destroy(&self, srq: Handle) -> Result<()> {
            self.end(srq, &ObjectKind::Srq, || self.device.srq_destroy(srq))
        }

        fn qp_create(&self, init: &QpInit) -> Result<(Handle, u32, QpCap)> {
            watch(|state| state.queue_sizes(init.qp_type, &init.cap));
            let own = self.behind.facts().map(|a| a.gid).unwrap_or_default();
            self.made(
                self.device.qp_create(init),
                |(qp, n, _)| (*qp, format!("QP {n:#x}"), None),
                |state, qp, (_, n, cap)| {
                    state.qp_numbers.insert(qp, *n);
                    let cqs = [init.send_cq, init.recv_cq].map(|cq| self.id(cq));
                    let mut queues = Queues::new(init.qp_type, cqs, cap.max_send_wr as usize);
                    queues.srq = (init.srq != 0).then(|| self.id(init.srq));
                    queues.signals_all = init.sq_sig_all != 0;
                    // That is how gdrcore.h tells that a queue is full: a program may want it.
                    queues.may_fill = true;
                    queues.own = own;
                    state.made_qp((qp.0, *n), queues);
                },
            )
        }

        fn qp_modify(&self, qp: Handle, attr: &QpAttr, mask: u32) -> Result<()> {
            self.device.qp_modify(qp, attr, mask)?;
            if let Some(key) = self.qp_key(qp) {
                watch(|state| state.modified(key, attr, None, mask));
            }
            Ok(())
        }

        fn qp_reset(&self, qp: Handle) -> Result<()> {
            self.device.qp_reset(qp)?;
            if let Some(key) = self.qp_key(qp) {
                let reset = QpAttr { qp_state: qp_state::RESET, ..QpAttr::default() };
                watch(|state| state.enters(key, &reset, qp_attr_mask::STATE));
            }
            Ok(())
        }

        fn qp_destroy(&self, qp: Handle) -> Result<()> {
            let what = self.qp_key(qp).map_or(ObjectKind::Other, ObjectKind::Qp);
            self.end(qp, &what, || self.device.qp_destroy(qp))
        }

        unsafe fn post_send(
            &self,
            qp: Handle,
            wr: *const SendWr,
            bad: &mut *const SendWr,
        ) -> Result<()> {
            let key = self.qp_key(qp);
            let posts = key.and_then(|key| watch(|state| state.sends(key, wr.expose_provenance())));
            self.post(posts, wr, bad, |part, bad| {
                // SAFETY: the caller's promise; a part is of copies of its requests.
                unsafe { self.device.post_send(qp, part.unwrap_or(wr), bad) }
            })
        }

        unsafe fn post_send_all(&self, qp: Handle, wr: *const SendWr) -> Result<()> {
            // SAFETY: the caller's promise.
            unsafe { self.device.post_send_all(qp, wr) }
        }

        unsafe fn post_recv(
            &self,
            qp: Handle,
            wr: *const RecvWr,
            bad: &mut *const RecvWr,
        ) -> Result<()> {
            let (key, list) = (self.qp_key(qp), wr.expose_provenance());
            let posts = key.and_then(|key| {
                watch(|state| state.recvs(QueueKey::Recv(key), key.0, list))
            });
            self.post(posts, wr, bad, |_, bad| {
                // SAFETY: the caller's promise.
                unsafe { self.device.post_recv(qp, wr, bad) }
            })
        }

        unsafe fn post_srq_recv(
            &self,
            srq: Handle,
            wr: *const RecvWr,
            bad: &mut *const RecvWr,
        ) -> Result<()> {
            let (place, list) = (QueueKey::Shared(self.id(srq)), wr.expose_provenance());
            let posts = watch(|state| state.recvs(place, self.key(), list));
            self.post(posts, wr, bad, |_, bad| {
                // SAFETY: the caller's promise.
                unsafe { self.device.post_srq_recv(srq, wr, bad) }
            })
        }

        fn poll_cq(&self, cq: Handle, wc: &mut [Wc]) -> Result<usize> {
            let got = self.device.poll_cq(cq, wc)?;
            let all = wc.get_mut(..got).unwrap_or_default();
            watch(|state| {
                state.polled(self.id(cq));
                all.iter_mut().for_each(|wc| state.completion(self.key(), self.id(cq), wc));
            });
            Ok(got)
        }

        fn cq_arm(&self, cq: Handle, solicited_only: bool) -> Result<()> {
            self.device.cq_arm(cq, solicited_only)?;
            watch(|state| state.armed(self.id(cq), solicited_only));
            Ok(())
        }

        fn channel_wait(&self, channel: Handle, timeout_ms: i32) -> Result<Option<Handle>> {
            // With a limit a program may poll behind it.
            if timeout_ms < 0 {
                watch(|state| state.waiting(self.id(channel)));
            }
            self.device.channel_wait(channel, timeout_ms)
        }

        fn wait(&self, timeout_ms: i32) -> Result<bool> {
            if timeout_ms < 0 {
                watch(|state| state.waiting(self.id(0)));
            }
            self.device.wait(timeout_ms)
        }

        fn async_event(&self) -> Result<Option<AsyncEvent>> {
            let event = self.device.async_event()?;
            if event.is_some_and(|e| e.event == async_event::CQ_ERR) {
                self.look_for_overrun();
            }
            Ok(event)
        }

        unsafe fn arena_add(&self, memory: *mut u8, bytes: usize) -> Result<()> {
            // SAFETY: the caller's promise.
            unsafe { self.device.arena_add(memory, bytes) }
        }

        fn cm(&self) -> Result<&dyn CmDevice> {
            self.device.cm()?;
            Ok(self)
        }
    }
}

forward_calls! { [impl<D: Device + ?Sized> CmDevice for StrictDevice<D>], |own| own.device.cm()?;
    fn create(port_space: u16, context: u64) -> Result<Handle>;
    fn set_context(id: Handle, context: u64) -> Result<()>;
    fn bind(id: Handle, port: u16) -> Result<u16>;
    fn announce(id: Handle, soon: bool) -> Result<()>;
    fn listen(id: Handle, backlog: u32) -> Result<()>;
    fn establish(id: Handle) -> Result<()>;
    fn reject(id: Handle, private_data: &[u8]) -> Result<()>;
    fn disconnect(id: Handle) -> Result<()>;
    fn destroy(id: Handle) -> Result<()>;
    fn qp_attr(id: Handle, state: u32) -> Result<(QpAttr, u32)>;
    {
        fn connect(
            &self,
            id: Handle,
            to: &AhAttr,
            port: u16,
            qp: Handle,
            param: &ConnParam<'_>,
        ) -> Result<()> {
            self.device.cm()?.connect(id, to, port, qp, param)?;
            let of_both = qp_attr_mask::TIMEOUT | qp_attr_mask::RETRY_CNT;
            self.judge(qp, param, of_both | qp_attr_mask::RNR_RETRY);
            Ok(())
        }

        fn accept(&self, id: Handle, qp: Handle, param: &ConnParam<'_>) -> Result<()> {
            self.device.cm()?.accept(id, qp, param)?;
            self.judge(qp, param, qp_attr_mask::RNR_RETRY);
            self.follow(qp);
            Ok(())
        }

        fn event(&self) -> Result<Option<CmEvent>> {
            let event = self.device.cm()?.event()?;
            if let Some(e) = event.as_ref().filter(|e| e.qp != 0) {
                self.follow(e.qp);
            }
            Ok(event)
        }
    }
}

#[cfg(test)]
mod tests;

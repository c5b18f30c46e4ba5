//! Contexts: what `ibv_open_device` gives, and asynchronous events.

use crate::abi::*;
use crate::adapter::Adapter;
use crate::hca::Hca;
use crate::queue::EventQueue;
use crate::result::{object, out, Verb};
use crate::{cq, cq_ex, dm, mr, null, pd, post, qp, query, srq, uverbs};
use core::ffi::{c_int, c_void};
use core::mem::offset_of;
use gdrcore_core::device::async_event;
use gdrcore_core::{refuse, Result};
use gdrcore_net::reason;

/// An open device.
#[repr(C)]
pub struct Context {
    /// What programs see; they hold a pointer to its last field.
    pub verbs: verbs_context,
    pub hca: &'static Hca,
    pub adapter: &'static Adapter,
    /// Asynchronous events.
    pub events: EventQueue<ibv_async_event>,
}

impl Context {
    /// The context that a program's pointer belongs to.
    ///
    /// # Errors
    /// `Error::Invalid`: null. `Error::OwnerDead`: it is the parent's.
    ///
    /// # Safety
    /// `p` is null or came from [`open_device`] and is not closed.
    pub unsafe fn of<'a>(p: *const ibv_context) -> Result<&'a Context> {
        // SAFETY: the caller's promise.
        let c = unsafe { Context::of_anybody(p)? };
        c.hca.check()?;
        Ok(c)
    }

    /// The same for what a child of fork may ask of its parent's context: what is known without the device.
    ///
    /// # Errors
    /// [`Error::Invalid`]: null.
    ///
    /// # Safety
    /// As for [`Context::of`].
    pub unsafe fn of_anybody<'a>(p: *const ibv_context) -> Result<&'a Context> {
        if p.is_null() {
            return Err(refuse!(Invalid, "context: NULL"));
        }
        // SAFETY: the pointer is to the field of a Context, as the caller promises.
        Ok(unsafe { &*p.byte_sub(offset_of!(verbs_context, context)).cast::<Context>() })
    }

    /// A context that events find from here on.
    fn publish(
        hca: &'static Hca,
        adapter: &'static Adapter,
        events: EventQueue<ibv_async_event>,
        cmd_fd: c_int,
    ) -> *mut ibv_context {
        let verbs = verbs(adapter, cmd_fd, events.fd());
        let c = Box::into_raw(Box::new(Context { verbs, hca, adapter, events }));
        hca.objects().contexts.push(c);
        // SAFETY: just made.
        unsafe { &*c }.as_ibv()
    }

    /// What programs have as their pointer.
    pub fn as_ibv(&self) -> *mut ibv_context {
        (&raw const self.verbs.context).cast_mut()
    }
}

const NONE: Unused = core::ptr::null();

fn operations() -> ibv_context_ops {
    ibv_context_ops {
        compat_query_device: NONE,
        compat_query_port: NONE,
        compat_pd_mr: [NONE; 5],
        alloc_mw: Some(mr::alloc_mw),
        bind_mw: Some(post::bind_mw),
        dealloc_mw: Some(mr::dealloc_mw),
        compat_create_cq: NONE,
        poll_cq: Some(cq::poll_cq),
        req_notify_cq: Some(cq::req_notify_cq),
        compat_cq_srq: [NONE; 7],
        post_srq_recv: Some(post::post_srq_recv),
        compat_qp: [NONE; 4],
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        compat_ah_mcast: [NONE; 5],
    }
}

fn verbs(adapter: &'static Adapter, cmd_fd: c_int, async_fd: c_int) -> verbs_context {
    verbs_context {
        query_port: Some(query::query_port_ex),
        advise_mr: Some(mr::advise_mr),
        alloc_null_mr: Some(null::alloc_null_mr),
        read_counters: NONE,
        attach_counters_point_flow: NONE,
        create_counters: NONE,
        destroy_counters: NONE,
        reg_dm_mr: Some(dm::reg_dm_mr),
        alloc_dm: Some(dm::alloc_dm),
        free_dm: Some(dm::free_dm),
        modify_flow_action_esp: NONE,
        destroy_flow_action: NONE,
        create_flow_action_esp: NONE,
        modify_qp_rate_limit: Some(qp::modify_qp_rate_limit),
        alloc_parent_domain: Some(pd::alloc_parent_domain),
        dealloc_td: Some(pd::dealloc_td),
        alloc_td: Some(pd::alloc_td),
        modify_cq: Some(cq::modify_cq),
        post_srq_ops: NONE,
        destroy_rwq_ind_table: NONE,
        create_rwq_ind_table: NONE,
        destroy_wq: NONE,
        modify_wq: NONE,
        create_wq: NONE,
        query_rt_values: Some(query::query_rt_values),
        create_cq_ex: Some(cq_ex::create_cq_ex),
        private: NONE,
        query_device_ex: Some(query::query_device_ex),
        destroy_flow: NONE,
        placeholder2: NONE,
        create_flow: NONE,
        placeholder1: NONE,
        open_qp: NONE,
        create_qp_ex: Some(qp::create_qp_ex),
        get_srq_num: NONE,
        create_srq_ex: Some(srq::create_srq_ex),
        open_xrcd: NONE,
        close_xrcd: Some(close_xrcd),
        placeholder3: 0,
        sz: size_of::<verbs_context>(),
        context: ibv_context {
            device: (&raw const adapter.ibv).cast_mut(),
            ops: operations(),
            cmd_fd,
            async_fd,
            num_comp_vectors: 1,
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            // The mark by which the inline verbs know that there is a verbs_context.
            abi_compat: usize::MAX as *mut c_void,
        },
    }
}

/// The one operation that the inline verbs call without looking whether it is there.
unsafe extern "C" fn close_xrcd(_xrcd: *mut c_void) -> c_int {
    libc::EOPNOTSUPP
}

/// `ibv_open_device`.
pub unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    Verb("ibv_open_device").pointer((|| {
        reason::install();
        if device.is_null() {
            return Err(refuse!(Invalid, "device: NULL"));
        }
        // SAFETY: a pointer of the list.
        let adapter = unsafe { Adapter::of(device) };
        let events = EventQueue::new()?;
        let cmd_fd = uverbs::descriptor()?;
        let hca = Hca::get(adapter).inspect_err(|&e| {
            reason::before(e, format_args!("{}, '{}': ", adapter.name(), adapter.device_name()));
            // SAFETY: ours, and nobody has seen it.
            unsafe { libc::close(cmd_fd) };
        })?;
        Ok(Context::publish(hca, adapter, events, cmd_fd))
    })())
}

/// `ibv_close_device`. What the program has left on it goes with the last context of the device.
pub unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    if context.is_null() {
        return Verb("ibv_close_device").code(Err(refuse!(Invalid, "context: NULL")));
    }
    // SAFETY: the pointer is to the field of a Context, which the program may not use afterwards.
    let c = unsafe { context.byte_sub(offset_of!(verbs_context, context)).cast::<Context>() };
    // SAFETY: as above.
    let (hca, cmd_fd) = unsafe { ((*c).hca, (*context).cmd_fd) };
    // SAFETY: opened in `open_device`.
    unsafe { libc::close(cmd_fd) };
    if hca.check().is_err() {
        // A child of fork: only its copies of the descriptors are to be closed; locks may be held by threads that
        // it does not have.
        // SAFETY: made by Box::into_raw.
        drop(unsafe { Box::from_raw(c) });
        return 0;
    }
    hca.end_queues_of(context);
    hca.objects().contexts.retain(|&other| other != c);
    // SAFETY: made by Box::into_raw, and out of the table: no event finds it.
    drop(unsafe { Box::from_raw(c) });
    hca.put();
    0
}

/// `ibv_get_async_event`.
pub unsafe extern "C" fn get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
    Verb("ibv_get_async_event").number((|| {
        // SAFETY: the program's pointers.
        let (c, event) = unsafe { (Context::of(context)?, out(event)?) };
        *event = c.events.take(|e| {
            // SAFETY: an object removes its events from the list before it is freed, under the list's lock.
            unsafe { count_as_taken(&e) };
            e
        })?;
        Ok(0)
    })())
}

/// # Safety
/// The event's object lives.
unsafe fn count_as_taken(e: &ibv_async_event) {
    // SAFETY: the caller's promise; which field of the union is valid follows from the type.
    unsafe {
        match kind(e.event_type) {
            Kind::Cq => (*e.element.cq.cast::<cq::Cq>()).async_taken(),
            Kind::Qp => (*e.element.qp.cast::<qp::Qp>()).async_taken(),
            Kind::Srq => (*e.element.srq.cast::<srq::Srq>()).async_taken(),
            Kind::Port => {}
        }
    }
}

/// What an event type is about.
pub enum Kind {
    Cq,
    Qp,
    Srq,
    Port,
}

/// What an event type is about.
pub fn kind(event_type: u32) -> Kind {
    match event_type {
        async_event::CQ_ERR => Kind::Cq,
        async_event::QP_FATAL
        | async_event::QP_REQ_ERR
        | async_event::QP_ACCESS_ERR
        | async_event::COMM_EST
        | async_event::SQ_DRAINED
        | async_event::QP_LAST_WQE_REACHED => Kind::Qp,
        async_event::SRQ_ERR | async_event::SRQ_LIMIT_REACHED => Kind::Srq,
        _ => Kind::Port,
    }
}

/// `ibv_ack_async_event`: lets the destruction of the object go on.
pub unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: an event from ibv_get_async_event that was not acknowledged: its object lives.
    let Ok(e) = (unsafe { object(event) }) else { return };
    // SAFETY: as above; which field of the union is valid follows from the type.
    unsafe {
        match kind(e.event_type) {
            Kind::Cq => Acks::new(e.element.cq).acknowledge(1, true),
            Kind::Qp => Acks::new(e.element.qp).acknowledge(1, true),
            Kind::Srq => Acks::new(e.element.srq).acknowledge(1, true),
            Kind::Port => {}
        }
    }
}

/// The mutex, condition and counters that every object with events has in its ABI struct.
pub struct Acks {
    mutex: *mut libc::pthread_mutex_t,
    cond: *mut libc::pthread_cond_t,
    /// Completion events, or null.
    completion: *mut u32,
    /// Asynchronous events.
    asynchronous: *mut u32,
}

/// An object with events.
pub trait HasEvents {
    /// Where its fields are.
    fn acks(this: *mut Self) -> Acks;
}

impl HasEvents for ibv_cq {
    fn acks(p: *mut Self) -> Acks {
        // SAFETY: only addresses are formed, of fields of a live object.
        unsafe {
            Acks {
                mutex: &raw mut (*p).mutex,
                cond: &raw mut (*p).cond,
                completion: &raw mut (*p).comp_events_completed,
                asynchronous: &raw mut (*p).async_events_completed,
            }
        }
    }
}

macro_rules! has_events {
    ($($t:ty),*) => {$(
        impl HasEvents for $t {
            fn acks(p: *mut Self) -> Acks {
                // SAFETY: only addresses are formed, of fields of a live object.
                unsafe {
                    Acks {
                        mutex: &raw mut (*p).mutex,
                        cond: &raw mut (*p).cond,
                        completion: core::ptr::null_mut(),
                        asynchronous: &raw mut (*p).events_completed,
                    }
                }
            }
        }
    )*};
}
has_events!(ibv_qp, ibv_srq);

impl Acks {
    /// The fields of an object.
    ///
    /// # Safety
    /// It lives for as long as this is used.
    pub unsafe fn new<T: HasEvents>(object: *mut T) -> Acks {
        T::acks(object)
    }

    /// Counts events that the program has handled.
    ///
    /// # Safety
    /// As for [`Acks::new`].
    pub unsafe fn acknowledge(&self, n: u32, asynchronous: bool) {
        let counter = if asynchronous { self.asynchronous } else { self.completion };
        // SAFETY: mutex and condition were initialised with the object, and the mutex protects the counters.
        unsafe {
            libc::pthread_mutex_lock(self.mutex);
            *counter = (*counter).wrapping_add(n);
            libc::pthread_cond_broadcast(self.cond);
            libc::pthread_mutex_unlock(self.mutex);
        }
    }

    /// Sleeps until as many events were acknowledged as were taken.
    ///
    /// # Safety
    /// As for [`Acks::new`].
    pub unsafe fn wait(&self, completion_taken: u32, asynchronous_taken: u32) {
        // SAFETY: as in `acknowledge`.
        unsafe {
            libc::pthread_mutex_lock(self.mutex);
            while *self.asynchronous != asynchronous_taken
                || (!self.completion.is_null() && *self.completion != completion_taken)
            {
                libc::pthread_cond_wait(self.cond, self.mutex);
            }
            libc::pthread_mutex_unlock(self.mutex);
        }
    }
}

/// `ibv_import_device`: another context on the device of the one whose `cmd_fd`, or a copy of it, is given; only within a
/// process. The descriptor becomes the new context's.
pub unsafe extern "C" fn import_device(cmd_fd: c_int) -> *mut ibv_context {
    Verb("ibv_import_device").pointer((|| {
        let file =
            uverbs::File::of(cmd_fd).ok_or_else(|| refuse!(Os(libc::EBADF), "cmd_fd {cmd_fd}: not a descriptor"))?;
        let events = EventQueue::new()?;
        let found = uverbs::with_device(file, |open, adapter| {
            open.contexts += 1;
            (open.hca, adapter)
        });
        let (hca, adapter) =
            found.ok_or_else(|| refuse!(Unsupported, "cmd_fd {cmd_fd}: of no context of this process"))?;
        Ok(Context::publish(hca, adapter, events, cmd_fd))
    })())
}

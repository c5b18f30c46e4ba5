//! Verbs that open, import and close a device.

use crate::abi::*;
use crate::adapter::Adapter;
use crate::event_queue::EventQueue;
use crate::open_context::Context;
use crate::verb_result::Verb;
use crate::{open_devices, ops_table, umad, uverbs_commands};
use core::ffi::c_int;
use core::mem::offset_of;
use gdrcore_core::refuse;
use gdrcore_net::reason;

/// `ibv_open_device`.
pub unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    Verb("ibv_open_device").pointer((|| {
        reason::install();
        if device.is_null() {
            return Err(refuse!(Invalid, "device: NULL"));
        }
        // SAFETY: a pointer of the list.
        let adapter = unsafe { Adapter::from_ptr(device) };
        let events = EventQueue::new()?;
        let cmd_fd = uverbs_commands::descriptor()?;
        umad::prepare(adapter.lid != 0);
        let hca = open_devices::get(adapter).inspect_err(|&e| {
            reason::prefix(e, format_args!("{}, '{}': ", adapter.name(), adapter.device_name()));
            // SAFETY: ours, and nobody has seen it.
            unsafe { libc::close(cmd_fd) };
        })?;
        let verbs = ops_table::verbs(adapter, hca, cmd_fd, events.fd());
        Ok(Context { verbs, hca, adapter, events }.publish())
    })())
}

/// `ibv_close_device`. Objects that the program has left end with the last context of the device.
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
        // A child of fork: only its copies of the descriptors are closed; locks may be held by
        // threads that it does not have. SAFETY: made by Box::into_raw.
        drop(unsafe { Box::from_raw(c) });
        return 0;
    }
    hca.end_queues_of(context);
    hca.objects().contexts.retain(|other| other.ibv != context);
    // SAFETY: made by Box::into_raw, and out of the table: no event finds it.
    drop(unsafe { Box::from_raw(c) });
    open_devices::put(hca);
    0
}

/// `ibv_import_device`: a second context on the device of another context of this process, which
/// `cmd_fd` or a copy of that descriptor identifies. The new context owns the descriptor.
pub unsafe extern "C" fn import_device(cmd_fd: c_int) -> *mut ibv_context {
    Verb("ibv_import_device").pointer((|| {
        let file = uverbs_commands::File::find(cmd_fd)
            .ok_or_else(|| refuse!(Os(libc::EBADF), "cmd_fd {cmd_fd}: not a descriptor"))?;
        let events = EventQueue::new()?;
        let (hca, adapter) = uverbs_commands::device_of(file).ok_or_else(|| {
            refuse!(Unsupported, "cmd_fd {cmd_fd}: of no context of this process")
        })?;
        let verbs = ops_table::verbs(adapter, hca, cmd_fd, events.fd());
        Ok(Context { verbs, hca, adapter, events }.publish())
    })())
}

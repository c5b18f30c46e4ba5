//! Verbs of the list of devices: `ibv_get_device_list`, and the queries of its entries.

use crate::abi::ibv_device;
use crate::adapter::Adapter;
use crate::open_devices::{guard_forks, present};
use crate::verb_result::{object, set_errno};
use core::ffi::{c_char, c_int};

/// `ibv_get_device_list`: a null-terminated array, to be freed by `ibv_free_device_list`.
pub unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    guard_forks();
    let list = present();
    // SAFETY: calloc takes any sizes.
    let array = unsafe { libc::calloc(list.len() + 1, size_of::<*mut ibv_device>()) }
        .cast::<*mut ibv_device>();
    if !count.is_null() {
        let found = if array.is_null() { 0 } else { list.len() as c_int };
        // SAFETY: the program's int.
        unsafe { count.write(found) };
    }
    if array.is_null() {
        set_errno(libc::ENOMEM);
        return array;
    }
    for (i, a) in list.iter().enumerate() {
        // SAFETY: room for all and the terminating null.
        unsafe { array.add(i).write((&raw const a.ibv).cast_mut()) };
    }
    array
}

/// `ibv_free_device_list`.
pub unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the array came from calloc, or is null.
    unsafe { libc::free(list.cast()) };
}

/// `ibv_get_device_name`.
pub unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: a pointer of the list, or null.
    match unsafe { object(device) } {
        Ok(d) => d.name.as_ptr(),
        Err(_) => core::ptr::null(),
    }
}

/// `ibv_get_device_index`: the kernel's number of the device, −1 for none.
pub unsafe extern "C" fn get_device_index(device: *mut ibv_device) -> c_int {
    if device.is_null() {
        return -1;
    }
    // SAFETY: a pointer of the list.
    unsafe { Adapter::from_ptr(device) }.index as c_int
}

/// `ibv_get_device_guid`: in network order.
pub unsafe extern "C" fn get_device_guid(device: *mut ibv_device) -> u64 {
    if device.is_null() {
        return 0;
    }
    // SAFETY: a pointer of the list.
    unsafe { Adapter::from_ptr(device) }.guid().to_be()
}

//! The C call that lists which NIC is near which GPU.

use crate::c_result::{call, count, refuse};
use crate::c_types::*;
use crate::ptr::{self, put_text};
use core::ffi::{c_char, c_int, CStr};
use gdrcore_cuda::topology;
use std::path::Path;

/// Writes one entry for every NIC with every GPU of this machine, read from sysfs: the PCIe part
/// that they share, the nearest GPU of each NIC first. `root`: the folder of sysfs, NULL for /sys.
/// No driver is needed.
///
/// Returns the number of pairs; at most `capacity` are written (`pairs` may be NULL when it is 0).
/// Errors: -EINVAL: pairs is NULL or misaligned, root is no path. Threads: any. Cost: reads files,
/// allocates.
#[no_mangle]
pub unsafe extern "C" fn gdrc_topology(
    root: *const c_char,
    pairs: *mut gdrc_topology_pair,
    capacity: u32,
) -> c_int {
    call(|| {
        let root: &CStr = if root.is_null() {
            c"/sys"
        } else {
            // SAFETY: the header's contract: a NUL-terminated string that stays during the call.
            unsafe { ptr::cstr(root, libc::PATH_MAX as usize, "root") }?
        };
        if capacity > 0 {
            ptr::check(pairs, "pairs")?;
        }
        let found = topology::pairs(Path::new(
            root.to_str().map_err(|_| refuse!(Invalid, "root: not UTF-8"))?,
        ));
        for (i, (nic, gpu, near)) in found.iter().enumerate().take(capacity as usize) {
            let mut pair = gdrc_topology_pair {
                nic: [0; 64],
                netdev: [0; 16],
                nic_bdf: [0; 16],
                gpu_bdf: [0; 16],
                near: *near as u32,
                nic_numa: nic.place.numa_node,
                gpu_numa: gpu.place.numa_node,
                gpu_class: gpu.class,
                gpu_vendor: gpu.vendor,
                gpu_device: gpu.device,
                gpu_revision: gpu.revision.into(),
            };
            put_text(&mut pair.nic, &nic.name);
            put_text(&mut pair.netdev, &nic.netdev);
            put_text(&mut pair.nic_bdf, &nic.place.bdf.to_string());
            put_text(&mut pair.gpu_bdf, &gpu.place.bdf.to_string());
            // SAFETY: i < capacity entries, which the header's contract says are writable.
            unsafe { pairs.add(i).write(pair) };
        }
        Ok(count(found.len()))
    })
}

//! Verbs that query a device and its port. They also work in a child of fork, which gets the values
//! that its parent's device had at the open.

use crate::abi::*;
use crate::adapter::Adapter;
use crate::env::{self, Identity};
use crate::gids;
use crate::hca::Hca;
use crate::open_context::Context;
use crate::verb_result::{out, set_errno, Verb};
use core::ffi::{c_char, c_int, c_void};
use gdrcore_core::device::DeviceAttr;
use gdrcore_core::roce::multicast::MEMBERS;
use gdrcore_core::verbs::types::mtu;
use gdrcore_core::{refuse, Result};
use gdrcore_net::port::GROUPS;

/// Vendor and part of the device: a locally administered OUI (bit 1 of its first byte), which no
/// vendor owns, and 1. Tools take a vendor of 0 for a broken device.
const OWN: (u32, u32) = (0x02_47_44, 1);
/// Vendor and part of a ConnectX-5. Some programs choose their calls by the part: perftest uses
/// mlx5dv, and so DC, only with parts that it knows.
const MLX5: (u32, u32) = (0x02_c9, 4119);

/// The device's vendor.
pub fn vendor() -> u32 {
    identity().0
}

fn identity() -> (u32, u32) {
    match env::identity() {
        Identity::Own => OWN,
        Identity::Mlx5 => MLX5,
    }
}

/// The only P_Key: the default one, full member.
const PKEY: u16 = 0xffff;
/// `ibv_port_attr.phys_state`, `.link_layer`, `.flags`.
const PHYS_LINK_UP: u8 = 5;
const PHYS_DISABLED: u8 = 3;
const LINK_LAYER_ETHERNET: u8 = 2;
const GRH_REQUIRED: u8 = 1;
/// `IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS`.
const PORT_CAPS: u32 = 1 << 16 | 1 << 26;
/// Codes of a link with one lane at 10 Gb/s, the lowest that programs know. No rate is right for a
/// software device.
const WIDTH_1X: u8 = 1;
const SPEED_FDR10: u8 = 8;

/// `ibv_device_cap_flags`: CURR_QP_STATE_MOD, PORT_ACTIVE_EVENT, SYS_IMAGE_GUID, RC_RNR_NAK_GEN,
/// SRQ_RESIZE, MEM_WINDOW, XRC, MEM_MGT_EXTENSIONS, MEM_WINDOW_TYPE_2B (docs/using/DROPIN.md).
const CAPS: u32 =
    1 << 7 | 1 << 10 | 1 << 11 | 1 << 12 | SRQ_RESIZE | 1 << 17 | 1 << 20 | 1 << 21 | 1 << 24;
/// Not of a device of a router.
const SRQ_RESIZE: u32 = 1 << 13;
/// `IB_UVERBS_DEVICE_FLUSH_GLOBAL` and `_ATOMIC_WRITE` of `device_cap_flags_ex`.
const CAPS_EX: u64 = 1 << 38 | 1 << 40;
/// `IBV_ATOMIC_GLOB`: the CPU's atomics.
const ATOMIC_GLOB: u32 = 2;

/// `IBV_ODP_SUPPORT`: the CPU copies, so memory need not be present before it is used.
const ODP: u64 = 1;
/// `IBV_ODP_SUPPORT_IMPLICIT`: a region of the whole address space, which a device in this process
/// reaches.
const ODP_IMPLICIT: u64 = 2;
/// `ibv_odp_transport_cap_bits`.
pub const ODP_RC: u32 = ODP_SEND | ODP_RECV | ODP_WRITE | ODP_READ | ODP_SRQ_RECV | ODP_WORDS;
/// Operations whose answer has no data.
const ODP_WORDS: u32 = ODP_ATOMIC | ODP_ATOMIC_WRITE | ODP_FLUSH;
const ODP_SEND: u32 = 1;
const ODP_RECV: u32 = 2;
const ODP_WRITE: u32 = 4;
const ODP_READ: u32 = 8;
const ODP_ATOMIC: u32 = 16;
const ODP_SRQ_RECV: u32 = 32;
const ODP_FLUSH: u32 = 64;
const ODP_ATOMIC_WRITE: u32 = 128;

/// 1 GHz in kHz: the clock of completion timestamps counts nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;

fn int(n: u32) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}

/// The firmware's version in the kernel's format: 32, 16 and 16 bits.
pub fn firmware() -> u64 {
    let part = |text: &str| text.parse::<u64>().unwrap_or(0);
    let minor = part(env!("CARGO_PKG_VERSION_MINOR")) << 16;
    part(env!("CARGO_PKG_VERSION_MAJOR")) << 32 | minor | part(env!("CARGO_PKG_VERSION_PATCH"))
}

/// The attributes of an entry's device.
pub fn device_attr(hca: &Hca, adapter: &Adapter) -> ibv_device_attr {
    let a = &hca.attr;
    let mut fw_ver = [0 as c_char; 64];
    for (to, from) in fw_ver.iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *to = from as c_char;
    }
    let guid = adapter.guid().to_be();
    let limits = DeviceLimits {
        node_guid: guid,
        sys_image_guid: guid,
        max_mr_size: a.max_mr_size,
        page_size_cap: 0xffff_f000,
        vendor_id: vendor(),
        vendor_part_id: identity().1,
        max_qp: int(a.max_qp),
        max_qp_wr: int(a.max_qp_wr),
        device_cap_flags: if hca.soft().is_some() { CAPS } else { CAPS & !SRQ_RESIZE },
        max_sge: int(a.max_sge),
        max_sge_rd: int(a.max_sge),
        max_cq: int(a.max_cq),
        max_cqe: int(a.max_cqe),
        max_mr: int(a.max_mr),
        max_pd: int(a.max_pd),
        max_qp_rd_atom: int(a.max_rd_atomic),
        max_res_rd_atom: int(a.max_rd_atomic.saturating_mul(a.max_qp)),
        max_qp_init_rd_atom: int(a.max_rd_atomic),
        atomic_cap: ATOMIC_GLOB,
        max_mw: int(a.max_mr),
        max_mcast_grp: int(GROUPS as u32),
        max_mcast_qp_attach: int(MEMBERS as u32),
        max_total_mcast_qp_attach: int(MEMBERS as u32),
        max_ah: int(a.max_ah),
        max_srq: int(a.max_srq),
        max_srq_wr: int(a.max_qp_wr),
        max_srq_sge: int(a.max_sge),
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
        ..DeviceLimits::default()
    };
    ibv_device_attr { fw_ver, limits }
}

/// `ibv_query_device`.
pub unsafe extern "C" fn query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    // SAFETY: the program's pointers.
    Verb("ibv_query_device").code(unsafe { Context::of_anybody(context) }.and_then(|c| {
        // SAFETY: as above.
        *unsafe { out(attr)? } = device_attr(c.hca, c.adapter);
        Ok(())
    }))
}

/// `ibv_query_device_ex`: fills as much of the struct as the program has room for.
pub unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _input: *const c_void,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    // SAFETY: the program's pointer.
    Verb("ibv_query_device_ex").code(unsafe { Context::of_anybody(context) }.and_then(|c| {
        let plain = device_attr(c.hca, c.adapter);
        let flags = u64::from(plain.limits.device_cap_flags) | CAPS_EX;
        let full = ibv_device_attr_ex {
            orig_attr: plain,
            odp_general_caps: if c.hca.soft().is_some() { ODP | ODP_IMPLICIT } else { ODP },
            rc_odp_caps: ODP_RC,
            uc_odp_caps: ODP_SEND | ODP_RECV | ODP_WRITE,
            ud_odp_caps: ODP_SEND | ODP_RECV | ODP_SRQ_RECV,
            completion_timestamp_mask: u64::MAX,
            hca_core_clock: CLOCK_KHZ,
            device_cap_flags_ex: flags,
            cq_mod_caps: [u16::MAX; 2],
            max_dm_size: crate::dm_verbs::MAX,
            xrc_odp_caps: ODP_RC,
            phys_port_cnt_ex: 1,
            // SAFETY: zeroes are a value of each other field, all of which are numbers.
            ..unsafe { core::mem::zeroed() }
        };
        // SAFETY: `size` bytes are the program's.
        unsafe { copy_out(&full, attr.cast(), size) }
    }))
}

/// Copies as much of a struct as the program has room for. Zeroes fields that only the program's
/// newer header has.
///
/// # Safety
/// `to` is null or has `size` writable bytes.
unsafe fn copy_out<T>(from: &T, to: *mut u8, size: usize) -> Result<()> {
    if to.is_null() {
        let name = core::any::type_name::<T>().rsplit("::").next().unwrap_or("");
        return Err(refuse!(Invalid, "a pointer to a {name} is NULL"));
    }
    let n = size.min(size_of::<T>());
    // SAFETY: `n` is within both; the rest is within the program's.
    unsafe {
        to.add(n).write_bytes(0, size - n);
        core::ptr::copy_nonoverlapping((&raw const *from).cast::<u8>(), to, n);
    }
    Ok(())
}

fn check_port(port: u32) -> Result<()> {
    if port == 1 {
        Ok(())
    } else {
        Err(refuse!(Invalid, "port_num {port}: the device has one port, 1"))
    }
}

/// The device's present attributes, such as the state of its link. A child of fork gets those at
/// the open.
fn present(c: &Context) -> DeviceAttr {
    c.hca.device.query().unwrap_or(c.hca.attr)
}

/// The operation behind the inline `ibv_query_port`.
pub unsafe extern "C" fn query_port_ex(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    // SAFETY: the program's pointer.
    Verb("ibv_query_port").code(unsafe { Context::of_anybody(context) }.and_then(|c| {
        check_port(port.into())?;
        let now = present(c);
        let full = ibv_port_attr {
            state: now.port_state,
            max_mtu: mtu::MTU_4096,
            active_mtu: now.active_mtu,
            gid_tbl_len: int(gids::LEN),
            port_cap_flags: PORT_CAPS,
            max_msg_sz: u32::try_from(c.hca.attr.max_msg_size).unwrap_or(u32::MAX),
            pkey_tbl_len: 1,
            max_vl_num: 1,
            active_width: WIDTH_1X,
            active_speed: SPEED_FDR10,
            phys_state: if now.is_up() { PHYS_LINK_UP } else { PHYS_DISABLED },
            lid: c.adapter.lid,
            link_layer: LINK_LAYER_ETHERNET,
            flags: if c.adapter.lid == 0 { GRH_REQUIRED } else { 0 },
            ..ibv_port_attr::default()
        };
        // SAFETY: `size` bytes are the program's.
        unsafe { copy_out(&full, attr.cast(), size) }
    }))
}

/// The exported `ibv_query_port`, for programs whose headers have fewer fields.
pub unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the program's pointers; old structs have this many bytes.
    unsafe { query_port_ex(context, port, attr, COMPAT_PORT_ATTR) }
}

/// The rate of 1x FDR10, as [`query_port_ex`] reports it, in units of 100 Mb/s.
const SPEED: u64 = 100;

/// `ibv_query_port_speed`.
pub unsafe extern "C" fn query_port_speed(
    context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    // SAFETY: the program's pointers.
    Verb("ibv_query_port_speed").code(unsafe { Context::of_anybody(context) }.and_then(|_| {
        check_port(port)?;
        // SAFETY: as above.
        *unsafe { out(speed)? } = SPEED;
        Ok(())
    }))
}

/// An entry of the GID table.
///
/// # Errors
/// `Error::Invalid`: the index is too large. ENODATA: the entry is unused, or its address has been
/// removed.
fn gid_entry(c: &Context, index: u32) -> Result<ibv_gid_entry> {
    let gid_type = gids::gid_type(index)?;
    if present(c).has_gid == 0 {
        return Err(refuse!(Os(libc::ENODATA), "sgid_index {index}: its address was removed"));
    }
    Ok(ibv_gid_entry {
        gid: ibv_gid { raw: c.hca.attr.gid },
        gid_index: index,
        port_num: 1,
        gid_type: gid_type as u32,
        ndev_ifindex: c.adapter.ifindex,
    })
}

/// `ibv_query_gid`. As in rdma-core, an unused entry is a GID of zeros.
pub unsafe extern "C" fn query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: the program's pointers.
    Verb("ibv_query_gid").number(unsafe { Context::of_anybody(context) }.and_then(|c| {
        check_port(port.into())?;
        let index =
            u32::try_from(index).map_err(|_| refuse!(Invalid, "index {index}: negative"))?;
        let used = gids::entry(index)?.filter(|_| present(c).has_gid != 0);
        let raw = used.map_or([0; 16], |_| c.hca.attr.gid);
        // SAFETY: as above. The program's union may be less aligned than ours.
        unsafe { copy_out(&raw, gid.cast(), 16)? };
        Ok(0)
    }))
}

/// `_ibv_query_gid_ex`.
pub unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    // SAFETY: the program's pointer.
    Verb("ibv_query_gid_ex").code(unsafe { Context::of_anybody(context) }.and_then(|c| {
        check_port(port)?;
        if flags != 0 {
            return Err(refuse!(Unsupported, "flags {flags:#x}: must be 0"));
        }
        let found = gid_entry(c, index)?;
        // SAFETY: `size` bytes are the program's.
        unsafe { copy_out(&found, entry.cast(), size) }
    }))
}

/// `_ibv_query_gid_table`: the number of entries written, or a negative errno.
pub unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    // SAFETY: the program's pointer.
    let r = unsafe { Context::of_anybody(context) }.and_then(|c| {
        if flags != 0 {
            return Err(refuse!(Unsupported, "flags {flags:#x}: must be 0"));
        }
        let used = if present(c).has_gid != 0 { gids::USED } else { 0 };
        // Like the kernel: all entries that are in use, or none.
        if max < used as usize || entries.is_null() {
            return Err(refuse!(Invalid, "max_entries {max}: {used} entries are in use"));
        }
        for index in 0..used {
            let entry = gid_entry(c, index)?;
            // SAFETY: the program's array has `max` entries of `size` bytes each.
            unsafe { copy_out(&entry, entries.byte_add(index as usize * size).cast(), size)? };
        }
        Ok(used as isize)
    });
    r.unwrap_or_else(|e| {
        Verb("ibv_query_gid_table").refused(e);
        -(e.errno() as isize)
    })
}

/// `ibv_query_gid_type`, which is private to rdma-core but used by its tools: 1 is RoCE v2, 0 is IB
/// or RoCE v1. As in rdma-core, an unused entry gives 0.
pub unsafe extern "C" fn query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    // SAFETY: the program's pointers.
    Verb("ibv_query_gid_type").number(unsafe { Context::of_anybody(context) }.and_then(|c| {
        check_port(port.into())?;
        let found = gids::entry(index)?.filter(|_| present(c).has_gid != 0);
        // SAFETY: as above.
        *unsafe { out(kind)? } = u32::from(found == Some(gids::GidType::RoceV2));
        Ok(0)
    }))
}

/// `ibv_query_pkey`: in network order.
pub unsafe extern "C" fn query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    // SAFETY: the program's pointers.
    Verb("ibv_query_pkey").number(unsafe { Context::of_anybody(context) }.and_then(|_| {
        check_port(port.into())?;
        if index != 0 {
            return Err(refuse!(Invalid, "index {index}: the P_Key table has one entry, 0"));
        }
        // SAFETY: as above.
        *unsafe { out(pkey)? } = PKEY.to_be();
        Ok(0)
    }))
}

/// `ibv_get_pkey_index`; the P_Key is in network order.
pub unsafe extern "C" fn get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    // SAFETY: the program's pointer.
    Verb("ibv_get_pkey_index").number(unsafe { Context::of_anybody(context) }.and_then(|_| {
        check_port(port.into())?;
        if u16::from_be(pkey) == PKEY {
            Ok(0)
        } else {
            Err(refuse!(Invalid, "pkey {:#x}: the table has {PKEY:#x} alone", u16::from_be(pkey)))
        }
    }))
}

/// `IBV_VALUES_MASK_RAW_CLOCK`.
const RAW_CLOCK: u32 = 1;

/// The operation behind `ibv_query_rt_values_ex`: the clock of completion timestamps, its count in
/// `tv_nsec`.
pub unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    // SAFETY: the program's pointers.
    Verb("ibv_query_rt_values").code(unsafe { Context::of_anybody(context) }.and_then(|_| {
        // SAFETY: as above.
        let v = unsafe { out(values)? };
        if v.comp_mask & !RAW_CLOCK != 0 {
            return Err(refuse!(
                Unsupported,
                "comp_mask {:#x}: the device knows {RAW_CLOCK:#x}",
                v.comp_mask
            ));
        }
        v.comp_mask &= RAW_CLOCK;
        if v.comp_mask != 0 {
            v.raw_clock =
                libc::timespec { tv_sec: 0, tv_nsec: gdrcore_net::clock::now_ns() as i64 };
        }
        Ok(())
    }))
}

/// `ibv_get_sysfs_path`: the folder where librdmacm and tools read about devices.
pub unsafe extern "C" fn get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// `ibv_read_sysfs_file`: the first line of a file in a folder, without its newline. −1: there is
/// no such file.
pub unsafe extern "C" fn read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    if dir.is_null() || file.is_null() || buf.is_null() || size == 0 {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: the program's strings.
    let (dir, file) = unsafe { (core::ffi::CStr::from_ptr(dir), core::ffi::CStr::from_ptr(file)) };
    let path = format!("{}/{}", dir.to_string_lossy(), file.to_string_lossy());
    let text = match crate::sysfs::read(&path) {
        Some(text) => text.into_bytes(),
        None => match std::fs::read(path) {
            Ok(text) => text,
            Err(_) => return -1,
        },
    };
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    let n = text.len().min(size - 1);
    // SAFETY: `n` and the terminating zero fit into the program's buffer.
    unsafe {
        core::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast(), n);
        buf.add(n).write(0);
    }
    n as c_int
}

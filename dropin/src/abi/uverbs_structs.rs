//! Commands that programs write to a context's `cmd_fd`, in the layout of the kernel's uverbs
//! (`<rdma/ib_user_verbs.h>`).

use super::DeviceLimits;

/// `ib_uverbs_cmd_hdr`. Word counts are in units of four bytes; the count of the request includes
/// this header.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ib_uverbs_cmd_hdr {
    pub command: u32,
    pub in_words: u16,
    pub out_words: u16,
}

/// `ib_uverbs_query_device`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ib_uverbs_query_device {
    pub response: u64,
}

/// `ib_uverbs_query_device_resp`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ib_uverbs_query_device_resp {
    pub fw_ver: u64,
    pub limits: DeviceLimits,
}

/// `ib_uverbs_query_qp`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ib_uverbs_query_qp {
    pub response: u64,
    pub qp_handle: u32,
    pub attr_mask: u32,
}

/// `ib_uverbs_qp_dest`: an address vector.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct ib_uverbs_qp_dest {
    pub dgid: [u8; 16],
    pub flow_label: u32,
    pub dlid: u16,
    pub reserved: u16,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}

/// `ib_uverbs_query_qp_resp`. C aligns it for the data that drivers may append.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub struct ib_uverbs_query_qp_resp {
    pub dest: ib_uverbs_qp_dest,
    pub alt_dest: ib_uverbs_qp_dest,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_send_sge: u32,
    pub max_recv_sge: u32,
    pub max_inline_data: u32,
    pub qkey: u32,
    pub rq_psn: u32,
    pub sq_psn: u32,
    pub dest_qp_num: u32,
    pub qp_access_flags: u32,
    pub pkey_index: u16,
    pub alt_pkey_index: u16,
    pub qp_state: u8,
    pub cur_qp_state: u8,
    pub path_mtu: u8,
    pub path_mig_state: u8,
    pub sq_draining: u8,
    pub max_rd_atomic: u8,
    pub max_dest_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub port_num: u8,
    pub timeout: u8,
    pub retry_cnt: u8,
    pub rnr_retry: u8,
    pub alt_port_num: u8,
    pub alt_timeout: u8,
    pub sq_sig_all: u8,
    pub reserved: [u8; 5],
}

/// A struct without padding that is valid for any bytes.
///
/// # Safety
/// It has no padding, and any bytes are a value of it.
pub unsafe trait Plain: Copy + Default {
    fn bytes(&self) -> &[u8] {
        // SAFETY: initialised bytes, since there is no padding.
        unsafe { core::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }

    /// The struct at the front of some bytes; missing bytes are zero.
    fn of(bytes: &[u8]) -> Self {
        let mut value = Self::default();
        let n = bytes.len().min(size_of::<Self>());
        // SAFETY: `n` bytes of both; any bytes are a value.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut value).cast(), n) };
        value
    }
}

// SAFETY: integers only, and each size is the sum of its fields'.
unsafe impl Plain for ib_uverbs_cmd_hdr {}
// SAFETY: as above.
unsafe impl Plain for ib_uverbs_query_device {}
// SAFETY: as above.
unsafe impl Plain for ib_uverbs_query_device_resp {}
// SAFETY: as above.
unsafe impl Plain for ib_uverbs_query_qp {}
// SAFETY: as above.
unsafe impl Plain for ib_uverbs_query_qp_resp {}

const _: () = assert!(
    size_of::<ib_uverbs_cmd_hdr>() == 8
        && size_of::<ib_uverbs_query_device>() == 8
        && size_of::<ib_uverbs_query_device_resp>() == 5 * 8 + 32 * 4 + 8
        && size_of::<ib_uverbs_query_qp>() == 16
        && size_of::<ib_uverbs_query_qp_resp>() == 2 * 32 + 10 * 4 + 2 * 2 + 20
);

//! Handles of the header: one struct for each kind of object.

/// Protection domain.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_pd {
    /// Index, type and generation; opaque.
    pub handle: u64,
}

/// Memory region.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_mr {
    /// Opaque.
    pub handle: u64,
}

/// Memory window.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_mw {
    /// Opaque.
    pub handle: u64,
}

/// Completion queue.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_cq {
    /// Opaque.
    pub handle: u64,
}

/// Completion channel.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_channel {
    /// Opaque.
    pub handle: u64,
}

/// Shared receive queue.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_srq {
    /// Opaque.
    pub handle: u64,
}

/// XRC domain.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_xrcd {
    /// Opaque.
    pub handle: u64,
}

/// Queue pair.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_qp {
    /// Opaque.
    pub handle: u64,
}

/// Address handle.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_ah {
    /// Opaque.
    pub handle: u64,
}

//! DC by mlx5dv, the interface of libmlx5, which is NVIDIA's part of rdma-core.
//!
//! The module is not linked to libmlx5, but opens it when a program wants DC. On a machine with an
//! mlx5 NIC, libibverbs has loaded it already as the NIC's driver.

use gdrcore_core::verbs::types::qp_attr_mask as mask;

/// Attributes that a query of a DCT may name.
pub const DCT_ATTRIBUTES: u32 = mask::STATE
    | mask::ACCESS_FLAGS
    | mask::PKEY_INDEX
    | mask::PORT
    | mask::AV
    | mask::PATH_MTU
    | mask::MIN_RNR_TIMER;

#[cfg(mlx5dv)]
pub use with_header::{create, Dci};
#[cfg(not(mlx5dv))]
pub use without_header::{create, Dci};

#[cfg(mlx5dv)]
mod with_header {
    use core::ffi::{c_int, CStr};
    use core::mem::{transmute_copy, zeroed};
    use std::sync::OnceLock;

    use crate::last_errno;
    use crate::qp_init::{attributes, tries, with_most, Made};
    use api::*;
    use gdrcore_core::verbs::types::{qp_type, DcWr};
    use gdrcore_verbs::abi::{QpMake, Text};
    use rdma_sys::*;

    #[allow(warnings)]
    mod api {
        use rdma_sys::*;
        include!(concat!(env!("OUT_DIR"), "/mlx5dv.rs"));
    }

    type IsSupported = unsafe extern "C" fn(*mut ibv_device) -> bool;
    type CreateQp = unsafe extern "C" fn(
        *mut ibv_context,
        *mut ibv_qp_init_attr_ex,
        *mut mlx5dv_qp_init_attr,
    ) -> *mut ibv_qp;
    type QpEx = unsafe extern "C" fn(*mut ibv_qp_ex) -> *mut mlx5dv_qp_ex;

    const FILE: &CStr = c"libmlx5.so.1";

    /// The functions of libmlx5 that DC needs.
    struct Functions {
        is_supported: IsSupported,
        create_qp: CreateQp,
        qp_ex: QpEx,
    }

    static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

    /// The functions of libmlx5, which stays loaded after the first call that finds it.
    ///
    /// # Errors
    /// In words.
    fn functions() -> Result<&'static Functions, &'static str> {
        if let Some(known) = FUNCTIONS.get() {
            return Ok(known);
        }
        // SAFETY: a terminated name. Its constructor makes its driver known to libibverbs, which
        // has loaded it already if it has found a NIC of mlx5.
        let library = unsafe { libc::dlopen(FILE.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err("DC needs libmlx5.so.1 (ibverbs-providers), which cannot be loaded");
        }
        let symbol = |name: &CStr| {
            // SAFETY: a live handle, a terminated name.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        let (Some(is_supported), Some(create_qp), Some(qp_ex)) = (
            symbol(c"mlx5dv_is_supported"),
            symbol(c"mlx5dv_create_qp"),
            symbol(c"mlx5dv_qp_ex_from_ibv_qp_ex"),
        ) else {
            return Err("DC needs a libmlx5 of rdma-core 25 or later");
        };
        // SAFETY: mlx5dv.h declares the functions of these names so; a pointer is as long as a
        // function's.
        Ok(FUNCTIONS.get_or_init(|| unsafe {
            Functions {
                is_supported: transmute_copy(&is_supported),
                create_qp: transmute_copy(&create_qp),
                qp_ex: transmute_copy(&qp_ex),
            }
        }))
    }

    /// A DCI or a DCT.
    ///
    /// # Safety
    /// An open context, and objects of it.
    pub unsafe fn create(context: *mut ibv_context, m: &QpMake, why: &mut Text) -> Made {
        let functions = functions().map_err(|words| {
            why.set(format_args!("{words}; use RC"));
            libc::EOPNOTSUPP
        })?;
        // SAFETY: our contract: an open context has a device.
        if !unsafe { (functions.is_supported)((*context).device) } {
            why.set(format_args!("NICs of mlx5 have DC, and this is none; use RC"));
            return Err(libc::EOPNOTSUPP);
        }
        let mut init = attributes(m);
        init.qp_type = ibv_qp_type::IBV_QPT_DRIVER;
        init.comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
        // SAFETY: plain data, all-zero is valid.
        let mut more: mlx5dv_qp_init_attr = unsafe { zeroed() };
        more.comp_mask = u64::from(MLX5DV_QP_INIT_ATTR_MASK_DC);
        if m.qp_type == qp_type::DCT {
            // libibverbs passes both CQs to the kernel, though a DCT sends nothing.
            init.send_cq = init.recv_cq;
            more.dc_init_attr.dc_type = MLX5DV_DCTYPE_DCT;
            more.dc_init_attr.__bindgen_anon_1.dct_access_key = m.dc_key;
            // SAFETY: our contract, our own attributes.
            let qp = unsafe { (functions.create_qp)(context, &mut init, &mut more) };
            return if qp.is_null() { Err(refused(why)) } else { Ok((qp, 0, init.cap)) };
        }
        // Likewise a DCI gets both CQs, though it receives nothing.
        init.recv_cq = init.send_cq;
        init.comp_mask |= ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
        more.dc_init_attr.dc_type = MLX5DV_DCTYPE_DCI;
        // libmlx5 does not put a DCI's answers into its completions.
        more.comp_mask |= u64::from(MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS);
        more.create_flags = MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE;
        let made = with_most(tries(m.extended).chain([0]), &init, |init| {
            // SAFETY: our contract, our own attributes.
            unsafe { (functions.create_qp)(context, init, &mut more) }
        });
        match made {
            Some(Ok(made)) => Ok(made),
            _ => Err(refused(why)),
        }
    }

    /// The errno of a create that libmlx5 or the NIC refused. If DC is missing, `why` gets the
    /// reason.
    fn refused(why: &mut Text) -> c_int {
        let e = last_errno();
        if matches!(e, libc::EOPNOTSUPP | libc::ENOSYS) {
            why.set(format_args!("this NIC or its libmlx5 has no DC (errno {e}); use RC"));
            return libc::EOPNOTSUPP;
        }
        e
    }

    /// A DCI between `ibv_wr_start` and `ibv_wr_complete`.
    pub struct Dci(*mut mlx5dv_qp_ex);

    impl Dci {
        /// # Safety
        /// A live DCI of [`create`], or null.
        pub unsafe fn from_qp_ex(ex: *mut ibv_qp_ex) -> Option<Dci> {
            let functions = FUNCTIONS.get()?;
            // SAFETY: our contract.
            let dv = unsafe { (functions.qp_ex)(ex) };
            (!dv.is_null()).then_some(Dci(dv))
        }

        /// Names the target of the latest request. Its address handle is libibverbs' pointer.
        ///
        /// # Safety
        /// This thread is between start and complete; the address handle lives.
        pub unsafe fn set_target(&self, dc: &DcWr) -> Result<(), c_int> {
            // SAFETY: our contract.
            let set = unsafe { (*self.0).wr_set_dc_addr }.ok_or(libc::EOPNOTSUPP)?;
            let ah = core::ptr::with_exposed_provenance_mut(dc.ah as usize);
            // SAFETY: as above.
            unsafe { set(self.0, ah, dc.dctn, dc.dc_key) };
            Ok(())
        }
    }
}

#[cfg(not(mlx5dv))]
mod without_header {
    use core::ffi::c_int;

    use crate::qp_init::Made;
    use gdrcore_core::verbs::types::DcWr;
    use gdrcore_verbs::abi::{QpMake, Text};
    use rdma_sys::{ibv_context, ibv_qp_ex};

    /// # Safety
    /// None.
    pub unsafe fn create(_: *mut ibv_context, _: &QpMake, why: &mut Text) -> Made {
        let lacking = "libgdrcore_verbs.so was built without <infiniband/mlx5dv.h>";
        why.set(format_args!("{lacking}; use RC"));
        Err(libc::EOPNOTSUPP)
    }

    /// There is none.
    pub enum Dci {}

    impl Dci {
        /// # Safety
        /// None.
        pub unsafe fn from_qp_ex(_: *mut ibv_qp_ex) -> Option<Dci> {
            None
        }

        /// # Safety
        /// None.
        pub unsafe fn set_target(&self, _: &DcWr) -> Result<(), c_int> {
            match *self {}
        }
    }
}

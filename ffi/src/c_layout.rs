//! Sizes of the attribute structs, and an address vector to and from core's.

use crate::c_types::*;
use core::mem::size_of;
use gdrcore_core::verbs::types::AhAttr;

// The flow label is beside the frozen struct.
impl From<gdrc_ah_attr> for AhAttr {
    fn from(a: gdrc_ah_attr) -> AhAttr {
        let gdrc_ah_attr { dgid, scope_id, udp_port, hop_limit, traffic_class } = a;
        AhAttr { dgid, scope_id, udp_port, hop_limit, traffic_class, flow_label: 0 }
    }
}

impl From<AhAttr> for gdrc_ah_attr {
    fn from(a: AhAttr) -> gdrc_ah_attr {
        let AhAttr { dgid, scope_id, udp_port, hop_limit, traffic_class, .. } = a;
        gdrc_ah_attr { dgid, scope_id, udp_port, hop_limit, traffic_class }
    }
}

// First published sizes of the attribute structs: they may grow, never shrink.
const _: () = {
    assert!(size_of::<gdrc_config>() == 136);
    assert!(size_of::<gdrc_device_attr>() == 104);
    // 48 in the first version.
    assert!(size_of::<gdrc_mr_attr>() == 80);
    assert!(size_of::<gdrc_memory>() == 48);
    assert!(size_of::<gdrc_cuda_attr>() == 96);
    assert!(size_of::<gdrc_cuda_handle>() == 104);
    assert!(size_of::<gdrc_topology_pair>() == 136);
    assert!(size_of::<gdrc_srq_attr>() == 16);
    // 64 in the first version.
    assert!(size_of::<gdrc_qp_init>() == 80);
    assert!(size_of::<gdrc_qp_attr>() == 104);
    assert!(size_of::<gdrc_leaks>() == 32);
    assert!(size_of::<gdrc_endpoint>() == 80);
    assert!(size_of::<gdrc_qp_connect_opts>() == 56);
};

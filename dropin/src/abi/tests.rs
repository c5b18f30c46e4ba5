//! Compares every size and offset with `<infiniband/verbs.h>`: compiles a C file with one
//! `_Static_assert` for each field.

use super::*;
use core::mem::{align_of, offset_of, size_of};
use std::fmt::Write;

/// Asserts that `field` is at the same place; `ours = theirs` where the names differ, dots for
/// nested fields.
macro_rules! same {
    (
        $c:ident, $name:literal, $t:ty,
        [$($ours:ident $(. $ours2:ident)* $(= $theirs:literal)?),* $(,)?]
    ) => {
        let size = size_of::<$t>();
        writeln!($c, "_Static_assert(sizeof({0}) == {size}, \"size of {0}\");", $name).unwrap();
        same!(fields $c, $name, $t, [$($ours $(. $ours2)* $(= $theirs)?),*]);
        let align = align_of::<$t>();
        writeln!($c, "_Static_assert(_Alignof({0}) == {align}, \"alignment of {0}\");", $name)
            .unwrap();
    };
    (
        fields $c:ident, $name:literal, $t:ty,
        [$($ours:ident $(. $ours2:ident)* $(= $theirs:literal)?),* $(,)?]
    ) => {
        $(
            #[allow(unused_mut, unused_assignments)]
            let mut theirs = stringify!($ours $(. $ours2)*).replace(' ', "");
            $(theirs = $theirs.to_string();)?
            let at = offset_of!($t, $ours $(. $ours2)*);
            let same = format!("offsetof({}, {theirs}) == {at}", $name);
            writeln!($c, "_Static_assert({same}, \"{}.{theirs}\");", $name).unwrap();
        )*
    };
}

fn objects(c: &mut String) {
    same!(c, "struct ibv_pd", ibv_pd, [context, handle]);
    same!(c, "struct ibv_td", ibv_td, [context]);
    same!(c, "struct ibv_mr", ibv_mr, [context, pd, addr, length, handle, lkey, rkey]);
    same!(c, "struct ibv_mw", ibv_mw, [context, pd, rkey, handle, r#type = "type"]);
    same!(c, "struct ibv_mw_bind_info", ibv_mw_bind_info, [mr, addr, length, mw_access_flags]);
    same!(c, "struct ibv_mw_bind", ibv_mw_bind, [wr_id, send_flags, bind_info]);
    same!(c, "struct ibv_dm", ibv_dm, [context, memcpy_to_dm, memcpy_from_dm, comp_mask, handle]);
    same!(c, "struct ibv_ah", ibv_ah, [context, pd, handle]);
    same!(c, "struct ibv_comp_channel", ibv_comp_channel, [context, fd, refcnt]);
    same! { c, "struct ibv_cq", ibv_cq, [
        context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed,
        async_events_completed,
    ] }
    same!(c, "struct ibv_poll_cq_attr", ibv_poll_cq_attr, [comp_mask]);
    same! { c, "struct ibv_cq_ex", ibv_cq_ex, [
        base = "context", comp_mask, status, wr_id, start_poll, next_poll, end_poll, read_opcode,
        read_vendor_err, read_byte_len, read_imm_data, read_qp_num, read_src_qp, read_wc_flags,
        read_slid, read_sl, read_dlid_path_bits, read_completion_ts, read_cvlan, read_flow_tag,
        read_tm_info, read_completion_wallclock_ns,
    ] }
}

fn queues(c: &mut String) {
    same!(c, "struct ibv_xrcd", ibv_xrcd, [context]);
    same! { c, "struct ibv_srq", ibv_srq, [
        context, srq_context, pd, handle, mutex, cond, events_completed,
    ] }
    same! { c, "struct ibv_qp", ibv_qp, [
        context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
        events_completed,
    ] }
    same!(c, "struct ibv_data_buf", ibv_data_buf, [addr, length]);
    same! { fields c, "struct ibv_qp_ex", ibv_qp_ex, [
        qp_base, comp_mask, wr_id, wr_flags, wr_atomic_cmp_swp, wr_atomic_fetch_add, wr_bind_mw,
        wr_local_inv, wr_rdma_read, wr_rdma_write, wr_rdma_write_imm, wr_send, wr_send_imm,
        wr_send_inv, wr_send_tso, wr_set_ud_addr, wr_set_xrc_srqn, wr_set_inline_data,
        wr_set_inline_data_list, wr_set_sge, wr_set_sge_list, wr_start, wr_complete, wr_abort,
        wr_atomic_write,
    ] }
    // Release 45 and later have one more member behind those of Debian 12.
    let (of_44, of_45) = (offset_of!(ibv_qp_ex, wr_flush), size_of::<ibv_qp_ex>());
    let size = "sizeof(struct ibv_qp_ex)";
    let either = format!("{size} == {of_44} || {size} == {of_45}");
    writeln!(c, "_Static_assert({either}, \"size of struct ibv_qp_ex\");").unwrap();
    assert_eq!((of_44, of_45), (352, 360));
}

/// The fields of [`DeviceLimits`] in a C struct: as far from its `node_guid` as from ours.
fn limits(c: &mut String, name: &str) {
    macro_rules! same_distance {
        ($($field:ident),*) => {$(
            let at = offset_of!(DeviceLimits, $field);
            let [field, first] = [stringify!($field), "node_guid"]
                .map(|field| format!("offsetof({name}, {field})"));
            writeln!(c, "_Static_assert({field} - {first} == {at}, \"{field}\");").unwrap();
        )*};
    }
    same_distance! {
        node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id,
        hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr,
        max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom,
        max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp,
        max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr,
        max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay,
        phys_port_cnt
    }
}

fn attributes(c: &mut String) {
    same!(c, "union ibv_gid", ibv_gid, [raw]);
    same! { c, "struct ibv_gid_entry", ibv_gid_entry, [
        gid, gid_index, port_num, gid_type, ndev_ifindex,
    ] }
    same!(c, "struct ibv_device_attr", ibv_device_attr, [fw_ver, limits = "node_guid"]);
    limits(c, "struct ibv_device_attr");
    same! { c, "struct ibv_device_attr_ex", ibv_device_attr_ex, [
        orig_attr, comp_mask, odp_general_caps = "odp_caps.general_caps",
        rc_odp_caps = "odp_caps.per_transport_caps.rc_odp_caps",
        uc_odp_caps = "odp_caps.per_transport_caps.uc_odp_caps",
        ud_odp_caps = "odp_caps.per_transport_caps.ud_odp_caps", completion_timestamp_mask,
        hca_core_clock, device_cap_flags_ex, tso_caps, rss_caps, max_wq_type_rq, packet_pacing_caps,
        raw_packet_caps, tm_caps, cq_mod_caps, max_dm_size, pci_atomic_caps, xrc_odp_caps,
        phys_port_cnt_ex,
    ] }
}

fn port_attributes(c: &mut String) {
    same! { c, "struct ibv_port_attr", ibv_port_attr, [
        state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr,
        qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout,
        init_type_reply, active_width, active_speed, phys_state, link_layer, flags, port_cap_flags2,
    ] }
    same!(c, "struct ibv_async_event", ibv_async_event, [element, event_type]);
    same! { c, "struct ibv_global_route", ibv_global_route, [
        dgid, flow_label, sgid_index, hop_limit, traffic_class,
    ] }
    same! { c, "struct ibv_ah_attr", ibv_ah_attr, [
        grh, dlid, sl, src_path_bits, static_rate, is_global, port_num,
    ] }
}

fn queue_attributes(c: &mut String) {
    same!(c, "struct ibv_srq_attr", ibv_srq_attr, [max_wr, max_sge, srq_limit]);
    same!(c, "struct ibv_srq_init_attr", ibv_srq_init_attr, [srq_context, attr]);
    same! { c, "struct ibv_srq_init_attr_ex", ibv_srq_init_attr_ex, [
        srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap,
    ] }
    same!(c, "struct ibv_xrcd_init_attr", ibv_xrcd_init_attr, [comp_mask, fd, oflags]);
    same! { c, "struct ibv_qp_open_attr", ibv_qp_open_attr, [
        comp_mask, qp_num, xrcd, qp_context, qp_type,
    ] }
    same! { c, "struct ibv_qp_cap", ibv_qp_cap, [
        max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data,
    ] }
    same! { c, "struct ibv_qp_init_attr", ibv_qp_init_attr, [
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all,
    ] }
    same! { c, "struct ibv_qp_init_attr_ex", ibv_qp_init_attr_ex, [
        qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all, comp_mask, pd, xrcd,
        create_flags, max_tso_header, rwq_ind_tbl, rx_hash_conf, source_qpn, send_ops_flags,
    ] }
}

fn qp_attributes(c: &mut String) {
    same! { c, "struct ibv_qp_attr", ibv_qp_attr, [
        qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
        qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify,
        sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt,
        rnr_retry, alt_port_num, alt_timeout, rate_limit,
    ] }
    same! { c, "struct ibv_qp_rate_limit_attr", ibv_qp_rate_limit_attr, [
        rate_limit, max_burst_sz, typical_pkt_sz, comp_mask,
    ] }
    same!(c, "struct ibv_ece", ibv_ece, [vendor_id, options, comp_mask]);
    same! { c, "struct ibv_cq_init_attr_ex", ibv_cq_init_attr_ex, [
        cqe, cq_context, channel, comp_vector, wc_flags, comp_mask, flags, parent_domain,
    ] }
    same! { c, "struct ibv_modify_cq_attr", ibv_modify_cq_attr, [
        attr_mask, cq_count = "moderate.cq_count", cq_period = "moderate.cq_period",
    ] }
    same!(c, "struct ibv_td_init_attr", ibv_td_init_attr, [comp_mask]);
    same! { c, "struct ibv_parent_domain_init_attr", ibv_parent_domain_init_attr, [
        pd, td, comp_mask, alloc, free, pd_context,
    ] }
    same!(c, "struct ibv_alloc_dm_attr", ibv_alloc_dm_attr, [length, log_align_req, comp_mask]);
    same!(c, "struct ibv_values_ex", ibv_values_ex, [comp_mask, raw_clock]);
    same!(c, "struct ibv_grh", ibv_grh, []);
}

fn contexts(c: &mut String) {
    same! { c, "struct ibv_device", ibv_device, [
        ops = "_ops", node_type, transport_type, name, dev_name, dev_path, ibdev_path,
    ] }
    same! { c, "struct ibv_context_ops", ibv_context_ops, [
        compat_query_device = "_compat_query_device", compat_pd_mr = "_compat_alloc_pd", alloc_mw,
        bind_mw, dealloc_mw, compat_create_cq = "_compat_create_cq", poll_cq, req_notify_cq,
        compat_cq_srq = "_compat_cq_event", post_srq_recv, compat_qp = "_compat_create_qp",
        post_send, post_recv, compat_ah_mcast = "_compat_create_ah",
    ] }
    same! { c, "struct ibv_context", ibv_context, [
        device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat,
    ] }
    same! { c, "struct verbs_context", verbs_context, [
        query_port, advise_mr, alloc_null_mr, read_counters, attach_counters_point_flow,
        create_counters, destroy_counters, reg_dm_mr, alloc_dm, free_dm, modify_flow_action_esp,
        destroy_flow_action, create_flow_action_esp, modify_qp_rate_limit, alloc_parent_domain,
        dealloc_td, alloc_td, modify_cq, post_srq_ops, destroy_rwq_ind_table, create_rwq_ind_table,
        destroy_wq, modify_wq, create_wq, query_rt_values, create_cq_ex, private = "priv",
        query_device_ex, destroy_flow = "ibv_destroy_flow", placeholder2 = "ABI_placeholder2",
        create_flow = "ibv_create_flow", placeholder1 = "ABI_placeholder1", open_qp, create_qp_ex,
        get_srq_num, create_srq_ex, open_xrcd, close_xrcd, placeholder3 = "_ABI_placeholder3", sz,
        context,
    ] }
}

fn kernel(c: &mut String) {
    // Rust reads both at any address, whatever C's alignment.
    let sizes = (size_of::<ib_uverbs_ah_attr>(), size_of::<ib_uverbs_qp_attr>());
    for (name, size) in [("ib_uverbs_ah_attr", sizes.0), ("ib_uverbs_qp_attr", sizes.1)] {
        writeln!(c, "_Static_assert(sizeof(struct {name}) == {size}, \"size of {name}\");")
            .unwrap();
    }
    same! { fields c, "struct ib_uverbs_ah_attr", ib_uverbs_ah_attr, [
        grh, grh.dgid, grh.flow_label, grh.sgid_index, grh.hop_limit, grh.traffic_class, dlid, sl,
        src_path_bits, static_rate, is_global, port_num,
    ] }
    same! { fields c, "struct ib_uverbs_qp_attr", ib_uverbs_qp_attr, [
        qp_attr_mask, qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn,
        dest_qp_num, qp_access_flags, ah_attr, alt_ah_attr, max_send_wr, max_recv_wr, max_send_sge,
        max_recv_sge, max_inline_data, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining,
        max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry,
        alt_port_num, alt_timeout,
    ] }
}

fn paths(c: &mut String) {
    same! { c, "struct ib_user_path_rec", ib_user_path_rec, [
        dgid, sgid, dlid, slid, raw_traffic, flow_label, reversible, mtu, pkey, hop_limit,
        traffic_class, numb_path, sl, mtu_selector, rate_selector, rate, packet_life_time_selector,
        packet_life_time, preference,
    ] }
    same! { c, "struct ibv_sa_path_rec", ibv_sa_path_rec, [
        dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class, reversible,
        numb_path, pkey, sl, mtu_selector, mtu, rate_selector, rate, packet_life_time_selector,
        packet_life_time, preference,
    ] }
}

fn commands(c: &mut String) {
    same!(c, "struct ib_uverbs_cmd_hdr", ib_uverbs_cmd_hdr, [command, in_words, out_words]);
    same!(c, "struct ib_uverbs_query_device", ib_uverbs_query_device, [response]);
    same! { c, "struct ib_uverbs_query_device_resp", ib_uverbs_query_device_resp, [
        fw_ver, limits = "node_guid", limits.reserved = "reserved",
    ] }
    limits(c, "struct ib_uverbs_query_device_resp");
}

fn qp_commands(c: &mut String) {
    same!(c, "struct ib_uverbs_query_qp", ib_uverbs_query_qp, [response, qp_handle, attr_mask]);
    same! { c, "struct ib_uverbs_qp_dest", ib_uverbs_qp_dest, [
        dgid, flow_label, dlid, reserved, sgid_index, hop_limit, traffic_class, sl, src_path_bits,
        static_rate, is_global, port_num,
    ] }
    same! { c, "struct ib_uverbs_query_qp_resp", ib_uverbs_query_qp_resp, [
        dest, alt_dest, max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data, qkey,
        rq_psn, sq_psn, dest_qp_num, qp_access_flags, pkey_index, alt_pkey_index, qp_state,
        cur_qp_state, path_mtu, path_mig_state, sq_draining, max_rd_atomic, max_dest_rd_atomic,
        min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout,
        sq_sig_all, reserved,
    ] }
}

fn mlx5(c: &mut String) {
    same!(c, "struct mlx5dv_context_attr", mlx5dv_context_attr, [flags, comp_mask]);
    same! { c, "struct mlx5dv_context", mlx5dv_context, [
        version, flags, comp_mask, cqe_comp_caps, sw_parsing_caps, striding_rq_caps,
        tunnel_offloads_caps, max_dynamic_bfregs, max_clock_info_update_nsec, flow_action_flags,
        dc_odp_caps, hca_core_clock, num_lag_ports, sig_caps, dci_streams_caps,
        max_wr_memcpy_length, crypto_caps,
    ] }
    same! { c, "struct mlx5dv_cq_init_attr", mlx5dv_cq_init_attr, [
        comp_mask, cqe_comp_res_format, flags, cqe_size,
    ] }
    same!(c, "struct mlx5dv_dc_init_attr", mlx5dv_dc_init_attr, [dc_type, dct_access_key]);
    same! { c, "struct mlx5dv_qp_init_attr", mlx5dv_qp_init_attr, [
        comp_mask, create_flags, dc_init_attr, send_ops_flags,
    ] }
    same! { c, "struct mlx5dv_qp_ex", mlx5dv_qp_ex, [
        comp_mask, wr_set_dc_addr, wr_mr_interleaved, wr_mr_list, wr_mkey_configure,
        wr_set_mkey_access_flags, wr_set_mkey_layout_list, wr_set_mkey_layout_interleaved,
        wr_set_mkey_sig_block, wr_raw_wqe, wr_set_dc_addr_stream, wr_memcpy, wr_set_mkey_crypto,
    ] }
}

#[test]
fn layouts_are_those_of_libibverbs() {
    let header = "/usr/include/infiniband/verbs.h";
    if !std::path::Path::new(header).exists() {
        gdrcore_testkit::skip!("{header} is not here (libibverbs-dev)");
    }
    let mut c = String::from(
        "#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <infiniband/sa.h>\n\
         #include <infiniband/mlx5dv.h>\n#include <rdma/ib_user_verbs.h>\n\
         #include <rdma/ib_user_sa.h>\n",
    );
    let before = c.lines().count();
    objects(&mut c);
    queues(&mut c);
    attributes(&mut c);
    port_attributes(&mut c);
    queue_attributes(&mut c);
    qp_attributes(&mut c);
    contexts(&mut c);
    kernel(&mut c);
    paths(&mut c);
    commands(&mut c);
    qp_commands(&mut c);
    mlx5(&mut c);
    assert!(c.lines().count() > before + 300, "the list of fields is incomplete");
    let dir = std::env::temp_dir().join(format!("gdrc-abi-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let source = dir.join("layout.c");
    std::fs::write(&source, &c).unwrap();
    let made = std::process::Command::new("cc")
        .args(["-std=gnu11", "-fsyntax-only", "-Wall", "-Werror"])
        .arg(&source)
        .output();
    let _ = std::fs::remove_dir_all(&dir);
    match made {
        Ok(out) => assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr)),
        Err(e) => gdrcore_testkit::skip::skipped(format_args!("no C compiler: {e}")),
    }
}

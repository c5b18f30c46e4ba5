/*
 * Every size and offset of include/gdrcore.h for a C compiler. The numbers are the ABI: a line here
 * changes only together with the soname, but attribute structs (struct_size first) may get lines at
 * their end.
 */
#include <gdrcore.h>

#include <assert.h>
#include <stdalign.h>

#ifdef __cplusplus
#error "layout.c is the C side; header.cpp is the other"
#endif

#define SIZE(type, bytes, align)                   \
    static_assert(sizeof(type) == (bytes), #type); \
    static_assert(alignof(type) == (align), #type)
#define AT(type, field, offset) static_assert(offsetof(type, field) == (offset), #type "." #field)

SIZE(struct gdrc_pd, 8, 8);
AT(struct gdrc_pd, handle, 0);

SIZE(struct gdrc_mr, 8, 8);
AT(struct gdrc_mr, handle, 0);

SIZE(struct gdrc_mw, 8, 8);
AT(struct gdrc_mw, handle, 0);

SIZE(struct gdrc_cq, 8, 8);
AT(struct gdrc_cq, handle, 0);

SIZE(struct gdrc_channel, 8, 8);
AT(struct gdrc_channel, handle, 0);
SIZE(struct gdrc_srq, 8, 8);
AT(struct gdrc_srq, handle, 0);
SIZE(struct gdrc_xrcd, 8, 8);
AT(struct gdrc_xrcd, handle, 0);

SIZE(struct gdrc_qp, 8, 8);
AT(struct gdrc_qp, handle, 0);

SIZE(struct gdrc_ah, 8, 8);
AT(struct gdrc_ah, handle, 0);

SIZE(struct gdrc_sge, 16, 8);
AT(struct gdrc_sge, addr, 0);
AT(struct gdrc_sge, length, 8);
AT(struct gdrc_sge, lkey, 12);

SIZE(struct gdrc_rdma_wr, 16, 8);
AT(struct gdrc_rdma_wr, remote_addr, 0);
AT(struct gdrc_rdma_wr, rkey, 8);

SIZE(struct gdrc_atomic_wr, 32, 8);
AT(struct gdrc_atomic_wr, remote_addr, 0);
AT(struct gdrc_atomic_wr, compare_add, 8);
AT(struct gdrc_atomic_wr, swap, 16);
AT(struct gdrc_atomic_wr, rkey, 24);

SIZE(struct gdrc_ud_wr, 16, 8);
AT(struct gdrc_ud_wr, ah, 0);
AT(struct gdrc_ud_wr, remote_qpn, 8);
AT(struct gdrc_ud_wr, remote_qkey, 12);

SIZE(struct gdrc_flush_wr, 32, 8);
AT(struct gdrc_flush_wr, remote_addr, 0);
AT(struct gdrc_flush_wr, rkey, 8);
AT(struct gdrc_flush_wr, placement, 12);
AT(struct gdrc_flush_wr, length, 16);
AT(struct gdrc_flush_wr, level, 24);
SIZE(union gdrc_wr_op, 32, 8);
AT(union gdrc_wr_op, rdma, 0);
AT(union gdrc_wr_op, atomic, 0);
AT(union gdrc_wr_op, ud, 0);
AT(union gdrc_wr_op, flush, 0);

SIZE(struct gdrc_mw_bind_info, 32, 8);
AT(struct gdrc_mw_bind_info, mr, 0);
AT(struct gdrc_mw_bind_info, addr, 8);
AT(struct gdrc_mw_bind_info, length, 16);
AT(struct gdrc_mw_bind_info, mw_access_flags, 24);

SIZE(struct gdrc_dc_wr, 24, 8);
AT(struct gdrc_dc_wr, ah, 0);
AT(struct gdrc_dc_wr, dc_key, 8);
AT(struct gdrc_dc_wr, dctn, 16);
SIZE(union gdrc_wr_ext, 48, 8);
AT(union gdrc_wr_ext, bind_mw, 0);
AT(union gdrc_wr_ext, dc, 0);
SIZE(struct gdrc_bind_mw_wr, 48, 8);
AT(struct gdrc_bind_mw_wr, mw, 0);
AT(struct gdrc_bind_mw_wr, rkey, 8);
AT(struct gdrc_bind_mw_wr, bind_info, 16);

SIZE(struct gdrc_send_wr, 128, 8);
AT(struct gdrc_send_wr, wr_id, 0);
AT(struct gdrc_send_wr, next, 8);
AT(struct gdrc_send_wr, sg_list, 16);
AT(struct gdrc_send_wr, num_sge, 24);
AT(struct gdrc_send_wr, opcode, 28);
AT(struct gdrc_send_wr, send_flags, 32);
AT(struct gdrc_send_wr, imm_data, 36);
AT(struct gdrc_send_wr, wr, 40);
AT(struct gdrc_send_wr, remote_srqn, 72);
AT(struct gdrc_send_wr, ext, 80);

SIZE(struct gdrc_recv_wr, 32, 8);
AT(struct gdrc_recv_wr, wr_id, 0);
AT(struct gdrc_recv_wr, next, 8);
AT(struct gdrc_recv_wr, sg_list, 16);
AT(struct gdrc_recv_wr, num_sge, 24);

SIZE(struct gdrc_wc, 48, 8);
AT(struct gdrc_wc, wr_id, 0);
AT(struct gdrc_wc, status, 8);
AT(struct gdrc_wc, opcode, 12);
AT(struct gdrc_wc, vendor_err, 16);
AT(struct gdrc_wc, byte_len, 20);
AT(struct gdrc_wc, imm_data, 24);
AT(struct gdrc_wc, qp_num, 28);
AT(struct gdrc_wc, src_qp, 32);
AT(struct gdrc_wc, wc_flags, 36);
AT(struct gdrc_wc, pkey_index, 40);
AT(struct gdrc_wc, slid, 42);
AT(struct gdrc_wc, sl, 44);
AT(struct gdrc_wc, dlid_path_bits, 45);

SIZE(struct gdrc_config, 128, 8);
AT(struct gdrc_config, struct_size, 0);
AT(struct gdrc_config, flags, 4);
AT(struct gdrc_config, max_pd, 8);
AT(struct gdrc_config, max_mr, 12);
AT(struct gdrc_config, max_cq, 16);
AT(struct gdrc_config, max_qp, 20);
AT(struct gdrc_config, max_srq, 24);
AT(struct gdrc_config, max_ah, 28);
AT(struct gdrc_config, max_peer, 32);
AT(struct gdrc_config, max_sge, 36);
AT(struct gdrc_config, max_inline, 40);
AT(struct gdrc_config, max_rd_atomic, 44);
AT(struct gdrc_config, max_mtu, 48);
AT(struct gdrc_config, qpn_base, 52);
AT(struct gdrc_config, qpn_count, 56);
AT(struct gdrc_config, window_max, 60);
AT(struct gdrc_config, deadline_ms, 64);
AT(struct gdrc_config, max_cm_ids, 68);
AT(struct gdrc_config, ring_bytes, 72);
AT(struct gdrc_config, pcap_path, 80);
AT(struct gdrc_config, seed, 88);
AT(struct gdrc_config, line_rate_bytes_per_s, 96);
AT(struct gdrc_config, keepalive_ms, 104);
AT(struct gdrc_config, max_dc_context, 108);
AT(struct gdrc_config, burst_bytes, 112);
AT(struct gdrc_config, engines, 116);
AT(struct gdrc_config, faults, 120);

SIZE(struct gdrc_device_attr, 104, 8);
AT(struct gdrc_device_attr, struct_size, 0);
AT(struct gdrc_device_attr, reserved, 4);
AT(struct gdrc_device_attr, max_msg_size, 8);
AT(struct gdrc_device_attr, node_guid, 16);
AT(struct gdrc_device_attr, max_pd, 24);
AT(struct gdrc_device_attr, max_mr, 28);
AT(struct gdrc_device_attr, max_cq, 32);
AT(struct gdrc_device_attr, max_qp, 36);
AT(struct gdrc_device_attr, max_srq, 40);
AT(struct gdrc_device_attr, max_ah, 44);
AT(struct gdrc_device_attr, max_qp_wr, 48);
AT(struct gdrc_device_attr, max_cqe, 52);
AT(struct gdrc_device_attr, max_sge, 56);
AT(struct gdrc_device_attr, max_inline, 60);
AT(struct gdrc_device_attr, max_rd_atomic, 64);
AT(struct gdrc_device_attr, active_mtu, 68);
AT(struct gdrc_device_attr, udp_port, 72);
AT(struct gdrc_device_attr, qpn_base, 76);
AT(struct gdrc_device_attr, gid, 80);
AT(struct gdrc_device_attr, scope_id, 96);
AT(struct gdrc_device_attr, port_state, 100);

SIZE(struct gdrc_mr_attr, 80, 8);
AT(struct gdrc_mr_attr, struct_size, 0);
AT(struct gdrc_mr_attr, provider, 4);
AT(struct gdrc_mr_attr, addr, 8);
AT(struct gdrc_mr_attr, length, 16);
AT(struct gdrc_mr_attr, iova, 24);
AT(struct gdrc_mr_attr, lkey, 32);
AT(struct gdrc_mr_attr, rkey, 36);
AT(struct gdrc_mr_attr, access, 40);
AT(struct gdrc_mr_attr, reserved, 44);
AT(struct gdrc_mr_attr, route, 48);
AT(struct gdrc_mr_attr, no_dmabuf, 52);
AT(struct gdrc_mr_attr, no_peermem, 56);
AT(struct gdrc_mr_attr, refusal, 60);
AT(struct gdrc_mr_attr, buffer_id, 64);
AT(struct gdrc_mr_attr, flags, 72);
AT(struct gdrc_mr_attr, reserved2, 76);
SIZE(struct gdrc_memory, 48, 8);
AT(struct gdrc_memory, struct_size, 0);
AT(struct gdrc_memory, kind, 4);
AT(struct gdrc_memory, addr, 8);
AT(struct gdrc_memory, length, 16);
AT(struct gdrc_memory, iova, 24);
AT(struct gdrc_memory, flags, 32);
AT(struct gdrc_memory, fd, 36);
AT(struct gdrc_memory, fd_offset, 40);
SIZE(struct gdrc_cuda_attr, 96, 8);
AT(struct gdrc_cuda_attr, struct_size, 0);
AT(struct gdrc_cuda_attr, flags, 4);
AT(struct gdrc_cuda_attr, memory, 8);
AT(struct gdrc_cuda_attr, bdf, 16);
AT(struct gdrc_cuda_attr, name, 32);
SIZE(struct gdrc_cuda_handle, 104, 8);
AT(struct gdrc_cuda_handle, kind, 0);
AT(struct gdrc_cuda_handle, reserved, 4);
AT(struct gdrc_cuda_handle, length, 8);
AT(struct gdrc_cuda_handle, offset, 16);
AT(struct gdrc_cuda_handle, bdf, 24);
AT(struct gdrc_cuda_handle, ipc, 40);
SIZE(struct gdrc_topology_pair, 136, 4);
AT(struct gdrc_topology_pair, nic, 0);
AT(struct gdrc_topology_pair, netdev, 64);
AT(struct gdrc_topology_pair, nic_bdf, 80);
AT(struct gdrc_topology_pair, gpu_bdf, 96);
AT(struct gdrc_topology_pair, near, 112);
AT(struct gdrc_topology_pair, nic_numa, 116);
AT(struct gdrc_topology_pair, gpu_numa, 120);
AT(struct gdrc_topology_pair, gpu_class, 124);
AT(struct gdrc_topology_pair, gpu_vendor, 128);
AT(struct gdrc_topology_pair, gpu_device, 130);
AT(struct gdrc_topology_pair, gpu_revision, 132);

SIZE(struct gdrc_ah_attr, 24, 4);
AT(struct gdrc_ah_attr, dgid, 0);
AT(struct gdrc_ah_attr, scope_id, 16);
AT(struct gdrc_ah_attr, udp_port, 20);
AT(struct gdrc_ah_attr, hop_limit, 22);
AT(struct gdrc_ah_attr, traffic_class, 23);

SIZE(struct gdrc_srq_attr, 16, 4);
AT(struct gdrc_srq_attr, struct_size, 0);
AT(struct gdrc_srq_attr, max_wr, 4);
AT(struct gdrc_srq_attr, max_sge, 8);
AT(struct gdrc_srq_attr, srq_limit, 12);

SIZE(struct gdrc_qp_cap, 20, 4);
AT(struct gdrc_qp_cap, max_send_wr, 0);
AT(struct gdrc_qp_cap, max_recv_wr, 4);
AT(struct gdrc_qp_cap, max_send_sge, 8);
AT(struct gdrc_qp_cap, max_recv_sge, 12);
AT(struct gdrc_qp_cap, max_inline_data, 16);

SIZE(struct gdrc_qp_init, 80, 8);
AT(struct gdrc_qp_init, struct_size, 0);
AT(struct gdrc_qp_init, qp_type, 4);
AT(struct gdrc_qp_init, pd, 8);
AT(struct gdrc_qp_init, send_cq, 16);
AT(struct gdrc_qp_init, recv_cq, 24);
AT(struct gdrc_qp_init, srq, 32);
AT(struct gdrc_qp_init, sq_sig_all, 40);
AT(struct gdrc_qp_init, cap, 44);
AT(struct gdrc_qp_init, xrcd, 64);
AT(struct gdrc_qp_init, dc_key, 72);

SIZE(struct gdrc_qp_attr, 104, 8);
AT(struct gdrc_qp_attr, struct_size, 0);
AT(struct gdrc_qp_attr, qp_state, 4);
AT(struct gdrc_qp_attr, cur_qp_state, 8);
AT(struct gdrc_qp_attr, path_mtu, 12);
AT(struct gdrc_qp_attr, qkey, 16);
AT(struct gdrc_qp_attr, rq_psn, 20);
AT(struct gdrc_qp_attr, sq_psn, 24);
AT(struct gdrc_qp_attr, dest_qp_num, 28);
AT(struct gdrc_qp_attr, qp_access_flags, 32);
AT(struct gdrc_qp_attr, ah, 36);
AT(struct gdrc_qp_attr, cap, 60);
AT(struct gdrc_qp_attr, pkey_index, 80);
AT(struct gdrc_qp_attr, port_num, 82);
AT(struct gdrc_qp_attr, en_sqd_async_notify, 83);
AT(struct gdrc_qp_attr, sq_draining, 84);
AT(struct gdrc_qp_attr, max_rd_atomic, 85);
AT(struct gdrc_qp_attr, max_dest_rd_atomic, 86);
AT(struct gdrc_qp_attr, min_rnr_timer, 87);
AT(struct gdrc_qp_attr, timeout, 88);
AT(struct gdrc_qp_attr, retry_cnt, 89);
AT(struct gdrc_qp_attr, rnr_retry, 90);
AT(struct gdrc_qp_attr, reserved, 91);
AT(struct gdrc_qp_attr, flow_label, 92);
AT(struct gdrc_qp_attr, rate_limit_bytes_per_s, 96);

SIZE(struct gdrc_async_event, 16, 8);
AT(struct gdrc_async_event, event, 0);
AT(struct gdrc_async_event, reserved, 4);
AT(struct gdrc_async_event, handle, 8);

SIZE(struct gdrc_cm_id, 8, 8);
AT(struct gdrc_cm_id, handle, 0);

SIZE(struct gdrc_cm_conn_param, 72, 8);
AT(struct gdrc_cm_conn_param, struct_size, 0);
AT(struct gdrc_cm_conn_param, flags, 4);
AT(struct gdrc_cm_conn_param, qpn, 8);
AT(struct gdrc_cm_conn_param, qp_type, 12);
AT(struct gdrc_cm_conn_param, psn, 16);
AT(struct gdrc_cm_conn_param, responder_resources, 20);
AT(struct gdrc_cm_conn_param, initiator_depth, 24);
AT(struct gdrc_cm_conn_param, retry_count, 28);
AT(struct gdrc_cm_conn_param, rnr_retry, 32);
AT(struct gdrc_cm_conn_param, ack_timeout, 36);
AT(struct gdrc_cm_conn_param, response_timeout, 40);
AT(struct gdrc_cm_conn_param, path_mtu, 44);
AT(struct gdrc_cm_conn_param, qkey, 48);
AT(struct gdrc_cm_conn_param, private_data_len, 52);
AT(struct gdrc_cm_conn_param, private_data, 56);
AT(struct gdrc_cm_conn_param, context, 64);

SIZE(struct gdrc_cm_event, 320, 8);
AT(struct gdrc_cm_event, struct_size, 0);
AT(struct gdrc_cm_event, event, 4);
AT(struct gdrc_cm_event, status, 8);
AT(struct gdrc_cm_event, private_data_len, 12);
AT(struct gdrc_cm_event, id, 16);
AT(struct gdrc_cm_event, listener, 24);
AT(struct gdrc_cm_event, qp, 32);
AT(struct gdrc_cm_event, context, 40);
AT(struct gdrc_cm_event, peer, 48);
AT(struct gdrc_cm_event, remote_qpn, 72);
AT(struct gdrc_cm_event, qkey, 76);
AT(struct gdrc_cm_event, local_port, 80);
AT(struct gdrc_cm_event, remote_port, 84);
AT(struct gdrc_cm_event, qp_type, 88);
AT(struct gdrc_cm_event, path_mtu, 92);
AT(struct gdrc_cm_event, responder_resources, 96);
AT(struct gdrc_cm_event, initiator_depth, 100);
AT(struct gdrc_cm_event, retry_count, 104);
AT(struct gdrc_cm_event, rnr_retry, 108);
AT(struct gdrc_cm_event, srq, 112);
AT(struct gdrc_cm_event, reserved, 116);
AT(struct gdrc_cm_event, private_data, 120);

SIZE(struct gdrc_qp_fast, 8, 8);
AT(struct gdrc_qp_fast, ops, 0);
SIZE(struct gdrc_qp_fast_ops, 16, 8);
AT(struct gdrc_qp_fast_ops, post_send, 0);
AT(struct gdrc_qp_fast_ops, post_recv, 8);
SIZE(struct gdrc_cq_fast, 8, 8);
AT(struct gdrc_cq_fast, ops, 0);
SIZE(struct gdrc_cq_fast_ops, 8, 8);
AT(struct gdrc_cq_fast_ops, poll, 0);

SIZE(struct gdrc_leaks, 32, 4);
AT(struct gdrc_leaks, struct_size, 0);
AT(struct gdrc_leaks, pd, 4);
AT(struct gdrc_leaks, mr, 8);
AT(struct gdrc_leaks, mw, 12);
AT(struct gdrc_leaks, cq, 16);
AT(struct gdrc_leaks, qp, 20);
AT(struct gdrc_leaks, srq, 24);
AT(struct gdrc_leaks, ah, 28);

SIZE(struct gdrc_cause, 64, 8);
AT(struct gdrc_cause, code, 0);
AT(struct gdrc_cause, wc_status, 4);
AT(struct gdrc_cause, peer, 8);
AT(struct gdrc_cause, qpn, 24);
AT(struct gdrc_cause, remote_qpn, 28);
AT(struct gdrc_cause, psn, 32);
AT(struct gdrc_cause, counter, 36);
AT(struct gdrc_cause, arg0, 40);
AT(struct gdrc_cause, arg1, 48);
AT(struct gdrc_cause, time_ns, 56);

SIZE(struct gdrc_endpoint, 80, 8);
AT(struct gdrc_endpoint, struct_size, 0);
AT(struct gdrc_endpoint, version, 4);
AT(struct gdrc_endpoint, gid, 8);
AT(struct gdrc_endpoint, scope_id, 24);
AT(struct gdrc_endpoint, qpn, 28);
AT(struct gdrc_endpoint, psn, 32);
AT(struct gdrc_endpoint, mtu, 36);
AT(struct gdrc_endpoint, qp_type, 40);
AT(struct gdrc_endpoint, udp_port, 44);
AT(struct gdrc_endpoint, addr, 48);
AT(struct gdrc_endpoint, length, 56);
AT(struct gdrc_endpoint, rkey, 64);
AT(struct gdrc_endpoint, qkey, 68);
AT(struct gdrc_endpoint, max_rd_atomic, 72);
AT(struct gdrc_endpoint, flags, 76);

SIZE(struct gdrc_qp_connect_opts, 56, 8);
AT(struct gdrc_qp_connect_opts, struct_size, 0);
AT(struct gdrc_qp_connect_opts, access, 4);
AT(struct gdrc_qp_connect_opts, timeout, 8);
AT(struct gdrc_qp_connect_opts, retry_cnt, 12);
AT(struct gdrc_qp_connect_opts, rnr_retry, 16);
AT(struct gdrc_qp_connect_opts, min_rnr_timer, 20);
AT(struct gdrc_qp_connect_opts, max_rd_atomic, 24);
AT(struct gdrc_qp_connect_opts, max_dest_rd_atomic, 28);
AT(struct gdrc_qp_connect_opts, qkey, 32);
AT(struct gdrc_qp_connect_opts, pkey_index, 36);
AT(struct gdrc_qp_connect_opts, rate_limit_bytes_per_s, 40);
AT(struct gdrc_qp_connect_opts, flags, 48);
AT(struct gdrc_qp_connect_opts, traffic_class, 52);

#ifdef HAVE_VERBS
#include <infiniband/verbs.h>

/* The hot structs equal those of libibverbs, field by field. */
#define SAME(ours, theirs) static_assert(sizeof(struct ours) == sizeof(struct theirs), #ours)
#define SAME_AT(ours, a, theirs, b)                                                      \
    static_assert(offsetof(struct ours, a) == offsetof(struct theirs, b), #ours "." #a); \
    static_assert(sizeof(((struct ours *)0)->a) == sizeof(((struct theirs *)0)->b), #ours "." #a)

SAME(gdrc_sge, ibv_sge);
SAME_AT(gdrc_sge, addr, ibv_sge, addr);
SAME_AT(gdrc_sge, length, ibv_sge, length);
SAME_AT(gdrc_sge, lkey, ibv_sge, lkey);

SAME(gdrc_recv_wr, ibv_recv_wr);
SAME_AT(gdrc_recv_wr, wr_id, ibv_recv_wr, wr_id);
SAME_AT(gdrc_recv_wr, next, ibv_recv_wr, next);
SAME_AT(gdrc_recv_wr, sg_list, ibv_recv_wr, sg_list);
SAME_AT(gdrc_recv_wr, num_sge, ibv_recv_wr, num_sge);

SAME(gdrc_send_wr, ibv_send_wr);
SAME_AT(gdrc_send_wr, wr_id, ibv_send_wr, wr_id);
SAME_AT(gdrc_send_wr, next, ibv_send_wr, next);
SAME_AT(gdrc_send_wr, sg_list, ibv_send_wr, sg_list);
SAME_AT(gdrc_send_wr, num_sge, ibv_send_wr, num_sge);
SAME_AT(gdrc_send_wr, opcode, ibv_send_wr, opcode);
SAME_AT(gdrc_send_wr, send_flags, ibv_send_wr, send_flags);
SAME_AT(gdrc_send_wr, imm_data, ibv_send_wr, imm_data);
SAME_AT(gdrc_send_wr, wr.rdma.remote_addr, ibv_send_wr, wr.rdma.remote_addr);
SAME_AT(gdrc_send_wr, wr.rdma.rkey, ibv_send_wr, wr.rdma.rkey);
SAME_AT(gdrc_send_wr, wr.atomic.remote_addr, ibv_send_wr, wr.atomic.remote_addr);
SAME_AT(gdrc_send_wr, wr.atomic.compare_add, ibv_send_wr, wr.atomic.compare_add);
SAME_AT(gdrc_send_wr, wr.atomic.swap, ibv_send_wr, wr.atomic.swap);
SAME_AT(gdrc_send_wr, wr.atomic.rkey, ibv_send_wr, wr.atomic.rkey);
SAME_AT(gdrc_send_wr, wr.ud.ah, ibv_send_wr, wr.ud.ah);
SAME_AT(gdrc_send_wr, wr.ud.remote_qpn, ibv_send_wr, wr.ud.remote_qpn);
SAME_AT(gdrc_send_wr, wr.ud.remote_qkey, ibv_send_wr, wr.ud.remote_qkey);
SAME_AT(gdrc_send_wr, remote_srqn, ibv_send_wr, qp_type.xrc.remote_srqn);
SAME_AT(gdrc_send_wr, ext.bind_mw.mw, ibv_send_wr, bind_mw.mw);
SAME_AT(gdrc_send_wr, ext.bind_mw.rkey, ibv_send_wr, bind_mw.rkey);
SAME_AT(gdrc_send_wr, ext.bind_mw.bind_info.mr, ibv_send_wr, bind_mw.bind_info.mr);
SAME_AT(gdrc_send_wr, ext.bind_mw.bind_info.addr, ibv_send_wr, bind_mw.bind_info.addr);
SAME_AT(gdrc_send_wr, ext.bind_mw.bind_info.length, ibv_send_wr, bind_mw.bind_info.length);
SAME_AT(gdrc_send_wr, ext.bind_mw.bind_info.mw_access_flags, ibv_send_wr,
        bind_mw.bind_info.mw_access_flags);

SAME(gdrc_wc, ibv_wc);
SAME_AT(gdrc_wc, wr_id, ibv_wc, wr_id);
SAME_AT(gdrc_wc, status, ibv_wc, status);
SAME_AT(gdrc_wc, opcode, ibv_wc, opcode);
SAME_AT(gdrc_wc, vendor_err, ibv_wc, vendor_err);
SAME_AT(gdrc_wc, byte_len, ibv_wc, byte_len);
SAME_AT(gdrc_wc, imm_data, ibv_wc, imm_data);
SAME_AT(gdrc_wc, qp_num, ibv_wc, qp_num);
SAME_AT(gdrc_wc, src_qp, ibv_wc, src_qp);
SAME_AT(gdrc_wc, wc_flags, ibv_wc, wc_flags);
SAME_AT(gdrc_wc, pkey_index, ibv_wc, pkey_index);
SAME_AT(gdrc_wc, slid, ibv_wc, slid);
SAME_AT(gdrc_wc, sl, ibv_wc, sl);
SAME_AT(gdrc_wc, dlid_path_bits, ibv_wc, dlid_path_bits);

#define NUMBER(ours, theirs) static_assert((unsigned)(ours) == (unsigned)(theirs), #ours)
NUMBER(GDRC_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE);
NUMBER(GDRC_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_WRITE_WITH_IMM);
NUMBER(GDRC_WR_SEND, IBV_WR_SEND);
NUMBER(GDRC_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_IMM);
NUMBER(GDRC_WR_RDMA_READ, IBV_WR_RDMA_READ);
NUMBER(GDRC_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_CMP_AND_SWP);
NUMBER(GDRC_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_FETCH_AND_ADD);
NUMBER(GDRC_WR_LOCAL_INV, IBV_WR_LOCAL_INV);
NUMBER(GDRC_WR_BIND_MW, IBV_WR_BIND_MW);
NUMBER(GDRC_WR_ATOMIC_WRITE, IBV_WR_ATOMIC_WRITE);
NUMBER(GDRC_WR_SEND_WITH_INV, IBV_WR_SEND_WITH_INV);
NUMBER(GDRC_SEND_FENCE, IBV_SEND_FENCE);
NUMBER(GDRC_SEND_SIGNALED, IBV_SEND_SIGNALED);
NUMBER(GDRC_SEND_SOLICITED, IBV_SEND_SOLICITED);
NUMBER(GDRC_SEND_INLINE, IBV_SEND_INLINE);
NUMBER(GDRC_SEND_IP_CSUM, IBV_SEND_IP_CSUM);
NUMBER(GDRC_WC_SUCCESS, IBV_WC_SUCCESS);
NUMBER(GDRC_WC_LOC_LEN_ERR, IBV_WC_LOC_LEN_ERR);
NUMBER(GDRC_WC_LOC_QP_OP_ERR, IBV_WC_LOC_QP_OP_ERR);
NUMBER(GDRC_WC_LOC_PROT_ERR, IBV_WC_LOC_PROT_ERR);
NUMBER(GDRC_WC_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR);
NUMBER(GDRC_WC_MW_BIND_ERR, IBV_WC_MW_BIND_ERR);
NUMBER(GDRC_WC_BAD_RESP_ERR, IBV_WC_BAD_RESP_ERR);
NUMBER(GDRC_WC_LOC_ACCESS_ERR, IBV_WC_LOC_ACCESS_ERR);
NUMBER(GDRC_WC_REM_INV_REQ_ERR, IBV_WC_REM_INV_REQ_ERR);
NUMBER(GDRC_WC_REM_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR);
NUMBER(GDRC_WC_REM_OP_ERR, IBV_WC_REM_OP_ERR);
NUMBER(GDRC_WC_RETRY_EXC_ERR, IBV_WC_RETRY_EXC_ERR);
NUMBER(GDRC_WC_RNR_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR);
NUMBER(GDRC_WC_FATAL_ERR, IBV_WC_FATAL_ERR);
NUMBER(GDRC_WC_RESP_TIMEOUT_ERR, IBV_WC_RESP_TIMEOUT_ERR);
NUMBER(GDRC_WC_GENERAL_ERR, IBV_WC_GENERAL_ERR);
NUMBER(GDRC_WC_OP_SEND, IBV_WC_SEND);
NUMBER(GDRC_WC_OP_RDMA_WRITE, IBV_WC_RDMA_WRITE);
NUMBER(GDRC_WC_OP_RDMA_READ, IBV_WC_RDMA_READ);
NUMBER(GDRC_WC_OP_COMP_SWAP, IBV_WC_COMP_SWAP);
NUMBER(GDRC_WC_OP_FETCH_ADD, IBV_WC_FETCH_ADD);
NUMBER(GDRC_WC_OP_BIND_MW, IBV_WC_BIND_MW);
NUMBER(GDRC_WC_OP_LOCAL_INV, IBV_WC_LOCAL_INV);
NUMBER(GDRC_WC_OP_ATOMIC_WRITE, IBV_WC_ATOMIC_WRITE);
NUMBER(GDRC_WC_OP_RECV, IBV_WC_RECV);
NUMBER(GDRC_WC_OP_RECV_RDMA_WITH_IMM, IBV_WC_RECV_RDMA_WITH_IMM);
NUMBER(GDRC_WC_FLAG_GRH, IBV_WC_GRH);
NUMBER(GDRC_WC_FLAG_WITH_IMM, IBV_WC_WITH_IMM);
NUMBER(GDRC_WC_FLAG_IP_CSUM_OK, IBV_WC_IP_CSUM_OK);
NUMBER(GDRC_WC_FLAG_WITH_INV, IBV_WC_WITH_INV);
NUMBER(GDRC_ACCESS_LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE);
NUMBER(GDRC_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE);
NUMBER(GDRC_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_READ);
NUMBER(GDRC_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_ATOMIC);
NUMBER(GDRC_ACCESS_MW_BIND, IBV_ACCESS_MW_BIND);
NUMBER(GDRC_ACCESS_ZERO_BASED, IBV_ACCESS_ZERO_BASED);
NUMBER(GDRC_ACCESS_ON_DEMAND, IBV_ACCESS_ON_DEMAND);
NUMBER(GDRC_ACCESS_HUGETLB, IBV_ACCESS_HUGETLB);
NUMBER(GDRC_ACCESS_RELAXED_ORDERING, IBV_ACCESS_RELAXED_ORDERING);
NUMBER(GDRC_QPT_RC, IBV_QPT_RC);
NUMBER(GDRC_QPT_UC, IBV_QPT_UC);
NUMBER(GDRC_QPT_UD, IBV_QPT_UD);
NUMBER(GDRC_QPS_RESET, IBV_QPS_RESET);
NUMBER(GDRC_QPS_INIT, IBV_QPS_INIT);
NUMBER(GDRC_QPS_RTR, IBV_QPS_RTR);
NUMBER(GDRC_QPS_RTS, IBV_QPS_RTS);
NUMBER(GDRC_QPS_SQD, IBV_QPS_SQD);
NUMBER(GDRC_QPS_SQE, IBV_QPS_SQE);
NUMBER(GDRC_QPS_ERR, IBV_QPS_ERR);
NUMBER(GDRC_QP_STATE, IBV_QP_STATE);
NUMBER(GDRC_QP_CUR_STATE, IBV_QP_CUR_STATE);
NUMBER(GDRC_QP_EN_SQD_ASYNC_NOTIFY, IBV_QP_EN_SQD_ASYNC_NOTIFY);
NUMBER(GDRC_QP_ACCESS_FLAGS, IBV_QP_ACCESS_FLAGS);
NUMBER(GDRC_QP_PKEY_INDEX, IBV_QP_PKEY_INDEX);
NUMBER(GDRC_QP_PORT, IBV_QP_PORT);
NUMBER(GDRC_QP_QKEY, IBV_QP_QKEY);
NUMBER(GDRC_QP_AV, IBV_QP_AV);
NUMBER(GDRC_QP_PATH_MTU, IBV_QP_PATH_MTU);
NUMBER(GDRC_QP_TIMEOUT, IBV_QP_TIMEOUT);
NUMBER(GDRC_QP_RETRY_CNT, IBV_QP_RETRY_CNT);
NUMBER(GDRC_QP_RNR_RETRY, IBV_QP_RNR_RETRY);
NUMBER(GDRC_QP_RQ_PSN, IBV_QP_RQ_PSN);
NUMBER(GDRC_QP_MAX_QP_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC);
NUMBER(GDRC_QP_MIN_RNR_TIMER, IBV_QP_MIN_RNR_TIMER);
NUMBER(GDRC_QP_SQ_PSN, IBV_QP_SQ_PSN);
NUMBER(GDRC_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_DEST_RD_ATOMIC);
NUMBER(GDRC_QP_CAP, IBV_QP_CAP);
NUMBER(GDRC_QP_DEST_QPN, IBV_QP_DEST_QPN);
NUMBER(GDRC_QP_RATE_LIMIT, IBV_QP_RATE_LIMIT);
NUMBER(GDRC_MTU_256, IBV_MTU_256);
NUMBER(GDRC_MTU_512, IBV_MTU_512);
NUMBER(GDRC_MTU_1024, IBV_MTU_1024);
NUMBER(GDRC_MTU_2048, IBV_MTU_2048);
NUMBER(GDRC_MTU_4096, IBV_MTU_4096);
NUMBER(GDRC_EVENT_CQ_ERR, IBV_EVENT_CQ_ERR);
NUMBER(GDRC_EVENT_QP_FATAL, IBV_EVENT_QP_FATAL);
NUMBER(GDRC_EVENT_QP_REQ_ERR, IBV_EVENT_QP_REQ_ERR);
NUMBER(GDRC_EVENT_QP_ACCESS_ERR, IBV_EVENT_QP_ACCESS_ERR);
NUMBER(GDRC_EVENT_COMM_EST, IBV_EVENT_COMM_EST);
NUMBER(GDRC_EVENT_SQ_DRAINED, IBV_EVENT_SQ_DRAINED);
NUMBER(GDRC_EVENT_SRQ_LIMIT_REACHED, IBV_EVENT_SRQ_LIMIT_REACHED);
NUMBER(GDRC_EVENT_QP_LAST_WQE_REACHED, IBV_EVENT_QP_LAST_WQE_REACHED);
NUMBER(GDRC_EVENT_DEVICE_FATAL, IBV_EVENT_DEVICE_FATAL);
NUMBER(GDRC_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ACTIVE);
NUMBER(GDRC_EVENT_PORT_ERR, IBV_EVENT_PORT_ERR);
NUMBER(GDRC_EVENT_SRQ_ERR, IBV_EVENT_SRQ_ERR);
NUMBER(GDRC_EVENT_GID_CHANGE, IBV_EVENT_GID_CHANGE);
NUMBER(GDRC_PORT_DOWN, IBV_PORT_DOWN);
NUMBER(GDRC_PORT_ACTIVE, IBV_PORT_ACTIVE);
#endif

/*
 * The hot structs and the numbers of include/gdrcore.h are those of libibverbs. All sizes and
 * offsets stand in ffi/abi.
 */
#include <gdrcore.h>

#include <assert.h>
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

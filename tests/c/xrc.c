/*
 * xrc DEVICE: XRC on a device of any kind, by the C API: one initiator, one target,
 * two SRQs of its domain, each with a PD and a CQ of its own. Prints "ok".
 */
#include <string.h>

#include "checked.h"

static gdrc_context *ctx;

struct shared {
    gdrc_pd pd;
    gdrc_cq cq;
    gdrc_srq srq;
    gdrc_mr mr;
    struct gdrc_mr_attr region;
    uint32_t number;
    unsigned char memory[4096] __attribute__((aligned(8)));
};
static struct shared to[2];
static struct shared from;

static void memory_of(struct shared *s)
{
    MUST(gdrc_pd_alloc(ctx, &s->pd) == 0);
    MUST(gdrc_cq_create(ctx, 16, &s->cq, NULL) == 0);
    s->region.struct_size = sizeof s->region;
    MUST(gdrc_mr_reg(ctx, s->pd, s->memory, sizeof s->memory,
                     GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_WRITE, &s->mr,
                     &s->region) == 0);
}

static void post(struct shared *s, uint64_t id)
{
    gdrc_sge piece = { .addr = s->region.iova, .length = 64, .lkey = s->region.lkey };
    gdrc_recv_wr wr = { .wr_id = id, .sg_list = &piece, .num_sge = 1 };
    const gdrc_recv_wr *bad;
    MUST(gdrc_post_srq_recv(ctx, s->srq, &wr, &bad) == 0);
}

/* Takes both to RTS by their endpoints. */
static void connect_by_endpoints(gdrc_qp ini, gdrc_qp tgt)
{
    struct gdrc_endpoint ends[2];
    uint8_t wire[GDRC_ENDPOINT_WIRE_BYTES];
    memset(ends, 0, sizeof ends);
    for (int i = 0; i < 2; i++) {
        ends[i].struct_size = sizeof ends[i];
        MUST(gdrc_endpoint_local(ctx, i ? tgt : ini, NULL, &ends[i]) == 0);
        MUST(gdrc_endpoint_pack(&ends[i], wire) == 0);
        MUST(gdrc_endpoint_unpack(wire, &ends[i]) == 0);
    }
    MUST(gdrc_qp_connect(ctx, ini, &ends[0], &ends[0], NULL) == -EINVAL);
    MUST(gdrc_qp_connect(ctx, ini, &ends[0], &ends[1], NULL) == 0);
    MUST(gdrc_qp_connect(ctx, tgt, &ends[1], &ends[0], NULL) == 0);
}

/* Takes a queue pair to RTS, towards the other one of this device. */
static void connect(gdrc_qp qp, uint32_t peer, int answers)
{
    struct gdrc_qp_attr a;
    struct gdrc_endpoint own;
    uint32_t mask = GDRC_QP_STATE | GDRC_QP_PKEY_INDEX | GDRC_QP_PORT | GDRC_QP_ACCESS_FLAGS;
    memset(&a, 0, sizeof a);
    memset(&own, 0, sizeof own);
    own.struct_size = sizeof own;
    MUST(gdrc_endpoint_local(ctx, qp, NULL, &own) == 0);
    a.struct_size = sizeof a;
    a.qp_state = GDRC_QPS_INIT;
    a.port_num = 1;
    a.qp_access_flags = answers ? GDRC_ACCESS_REMOTE_WRITE : 0;
    MUST(gdrc_qp_modify(ctx, qp, &a, mask) == 0);
    a.qp_state = GDRC_QPS_RTR;
    a.path_mtu = GDRC_MTU_1024;
    a.dest_qp_num = peer;
    a.max_dest_rd_atomic = 1;
    a.min_rnr_timer = 1;
    memcpy(a.ah.dgid, own.gid, sizeof own.gid);
    mask = GDRC_QP_STATE | GDRC_QP_AV | GDRC_QP_PATH_MTU | GDRC_QP_DEST_QPN | GDRC_QP_RQ_PSN;
    if (answers)
        mask |= GDRC_QP_MAX_DEST_RD_ATOMIC | GDRC_QP_MIN_RNR_TIMER;
    MUST(gdrc_qp_modify(ctx, qp, &a, mask) == 0);
    a.qp_state = GDRC_QPS_RTS;
    a.timeout = 14;
    a.retry_cnt = a.rnr_retry = 7;
    a.max_rd_atomic = 1;
    mask = GDRC_QP_STATE | GDRC_QP_SQ_PSN | GDRC_QP_TIMEOUT;
    if (!answers)
        mask |= GDRC_QP_RETRY_CNT | GDRC_QP_RNR_RETRY | GDRC_QP_MAX_QP_RD_ATOMIC;
    MUST(gdrc_qp_modify(ctx, qp, &a, mask) == 0);
}

static uint32_t send_to(gdrc_qp qp, uint32_t number)
{
    gdrc_sge piece = { .addr = from.region.iova, .length = 64, .lkey = from.region.lkey };
    gdrc_send_wr wr;
    const gdrc_send_wr *bad;
    memset(&wr, 0, sizeof wr);
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = GDRC_WR_SEND;
    wr.send_flags = GDRC_SEND_SIGNALED;
    wr.remote_srqn = number;
    MUST(gdrc_post_send(ctx, qp, &wr, &bad) == 0);
    return next_wc(ctx, from.cq).status;
}

/* The memory of an ATOMIC WRITE is that of the SRQ's PD. Not each NIC has it. */
static void word_to(gdrc_qp qp, struct shared *s)
{
    gdrc_sge piece = { .addr = from.region.iova + 8, .length = 8, .lkey = from.region.lkey };
    gdrc_send_wr wr;
    const gdrc_send_wr *bad;
    memset(&wr, 0, sizeof wr);
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = GDRC_WR_ATOMIC_WRITE;
    wr.send_flags = GDRC_SEND_SIGNALED;
    wr.remote_srqn = s->number;
    wr.wr.rdma.remote_addr = s->region.iova + 1024;
    wr.wr.rdma.rkey = s->region.rkey;
    memset(from.memory + 8, 0x5c, 8);
    int rc = gdrc_post_send(ctx, qp, &wr, &bad);
    if (rc == -EOPNOTSUPP)
        return;
    MUST(rc == 0);
    gdrc_wc wc = next_wc(ctx, from.cq);
    MUST(wc.status == GDRC_WC_SUCCESS && wc.opcode == GDRC_WC_OP_ATOMIC_WRITE);
    MUST(memcmp(s->memory + 1024, from.memory + 8, 8) == 0 && s->memory[1032] == 0);
}

int main(int argc, char **argv)
{
    gdrc_xrcd xrcd;
    gdrc_qp ini, tgt;
    uint32_t ini_qpn, tgt_qpn, granted;
    struct gdrc_qp_init init;
    MUST(argc == 2 && gdrc_open(argv[1], NULL, &ctx) == 0);
    MUST(gdrc_xrcd_alloc(ctx, &xrcd) == 0);
    memory_of(&from);
    for (int i = 0; i < 2; i++) {
        struct gdrc_srq_attr attr = { .struct_size = sizeof attr, .max_wr = 4, .max_sge = 1 };
        memory_of(&to[i]);
        MUST(gdrc_srq_create_xrc(ctx, to[i].pd, xrcd, to[i].cq, &attr, &to[i].srq) == 0);
        MUST(gdrc_srq_number(ctx, to[i].srq, &to[i].number) == 0);
    }
    MUST(to[0].number != to[1].number && gdrc_xrcd_dealloc(ctx, xrcd) == -EBUSY);
    memset(&init, 0, sizeof init);
    init.struct_size = sizeof init;
    init.qp_type = GDRC_QPT_XRC_SEND;
    init.pd = from.pd;
    init.send_cq = from.cq;
    init.cap.max_send_wr = 4;
    init.cap.max_send_sge = 1;
    MUST(gdrc_qp_create(ctx, &init, &ini, &ini_qpn) == 0 && init.cap.max_recv_wr == 0);
    memset(&init, 0, sizeof init);
    init.struct_size = sizeof init;
    init.qp_type = GDRC_QPT_XRC_RECV;
    MUST(gdrc_qp_create(ctx, &init, &tgt, &tgt_qpn) == -EINVAL);
    init.xrcd = xrcd;
    MUST(gdrc_qp_create(ctx, &init, &tgt, &tgt_qpn) == 0);
    connect_by_endpoints(ini, tgt);
    post(&to[0], 1);
    MUST(send_to(ini, to[0].number) == GDRC_WC_SUCCESS && next_wc(ctx, to[0].cq).wr_id == 1);
    MUST(reset_qp(ctx, ini, from.cq) == 0);
    MUST(reset_qp(ctx, tgt, from.cq) == 0);
    connect(ini, tgt_qpn, 0);
    connect(tgt, ini_qpn, 1);
    for (int i = 0; i < 8; i++) {
        struct shared *s = &to[i % 2];
        gdrc_wc wc;
        memset(from.memory, i + 1, 64);
        post(s, 100 + i);
        MUST(send_to(ini, s->number) == GDRC_WC_SUCCESS);
        wc = next_wc(ctx, s->cq);
        MUST(wc.wr_id == 100u + i && wc.status == GDRC_WC_SUCCESS && wc.byte_len == 64);
        MUST(wc.qp_num == tgt_qpn && memcmp(s->memory, from.memory, 64) == 0);
    }
    for (int i = 0; i < 2; i++)
        word_to(ini, &to[i]);
    /* What is posted moves with a new size, in its order. */
    for (int i = 0; i < 4; i++)
        post(&to[0], 200 + i);
    MUST(gdrc_srq_resize(ctx, to[0].srq, 3, NULL) == -EINVAL);
    MUST(gdrc_srq_resize(ctx, to[0].srq, 100, &granted) == 0 && granted >= 100);
    for (int i = 0; i < 4; i++) {
        MUST(send_to(ini, to[0].number) == GDRC_WC_SUCCESS);
        MUST(next_wc(ctx, to[0].cq).wr_id == 200u + i);
    }
    MUST(send_to(ini, 1) == GDRC_WC_REM_INV_REQ_ERR);
    MUST(gdrc_qp_destroy(ctx, ini) == 0 && gdrc_qp_destroy(ctx, tgt) == 0);
    for (int i = 0; i < 2; i++)
        MUST(gdrc_srq_destroy(ctx, to[i].srq) == 0);
    MUST(gdrc_xrcd_dealloc(ctx, xrcd) == 0 && gdrc_xrcd_dealloc(ctx, xrcd) == -EINVAL);
    puts("ok");
    return 0;
}

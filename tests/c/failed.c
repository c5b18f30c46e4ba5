// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Requests that fail. Before it takes a completion that is to be explained, the program prints to
 * standard error the line that GDRC_VERBOSE=1 must print: "want WORDS". Prints "ok" in the end.
 */
#include "rc_pair.h"

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static char memory[64];

static void reset(struct ibv_qp *qp)
{
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_RESET};
    CHECK(ibv_modify_qp(qp, &a, IBV_QP_STATE) == 0);
}

/* Posts WRITEs with these keys, each a request of its own. */
static void post(struct ibv_qp *qp, uint32_t lkey, uint32_t rkey, int n)
{
    struct ibv_sge sge = {(uintptr_t)memory, 8, lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_RDMA_WRITE,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.rdma = {(uintptr_t)memory + 8, rkey}},
                       *bad;
    while (n-- > 0)
        CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void want(struct ibv_qp *qp, enum ibv_wc_status status, const char *words, const char *key,
                 uint32_t number, int at)
{
    fprintf(stderr, "want QP %#x: %s: %s (%s %#010x, address %#lx); \n", qp->qp_num,
            ibv_wc_status_str(status), words, key, number, (unsigned long)(uintptr_t)memory + at);
}

#define REMOTE_WORDS "peer refused: remote key unknown or expired, range or access wrong"
#define LOCAL_WORDS "local key unknown, expired or of another protection domain"

/* A wrong remote key, and a request behind it that is flushed. */
static void remote(struct ibv_qp *a, struct ibv_qp *b)
{
    uint32_t wrong = mr->rkey ^ 0x100;
    connect_both(a, b);
    CHECK(write_to(a, mr, 8, (uintptr_t)memory + 8, mr->rkey).status == IBV_WC_SUCCESS);
    want(a, IBV_WC_REM_ACCESS_ERR, REMOTE_WORDS, "rkey", wrong, 8);
    post(a, mr->lkey, wrong, 2);
    CHECK(next_wc(a->send_cq).status == IBV_WC_REM_ACCESS_ERR);
    CHECK(next_wc(a->send_cq).status == IBV_WC_WR_FLUSH_ERR);
}

/* A datagram's wrong key: the queue goes on after it, and its next failure is not explained. */
static void datagrams(struct ibv_cq *cq)
{
    struct ibv_qp *qp = new_qp(pd, cq, IBV_QPT_UD, 8);
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 5};
    struct ibv_ah_attr to = {.is_global = 1, .port_num = 1};
    struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey ^ 0x100};
    struct ibv_send_wr *bad;
    CHECK(ibv_modify_qp(qp, &a,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
    a.qp_state = IBV_QPS_RTR;
    CHECK(ibv_modify_qp(qp, &a, IBV_QP_STATE) == 0);
    CHECK(ibv_query_gid(ctx, 1, 1, &to.grh.dgid) == 0);
    struct ibv_ah *ah = ibv_create_ah(pd, &to);
    CHECK(ah);
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.ud = {ah, qp->qp_num, 5}};
    want(qp, IBV_WC_LOC_PROT_ERR, LOCAL_WORDS, "lkey", sge.lkey, 0);
    for (int i = 0; i < 2; i++) {
        a.qp_state = IBV_QPS_RTS;
        CHECK(ibv_modify_qp(qp, &a, IBV_QP_STATE | (i ? 0 : IBV_QP_SQ_PSN)) == 0);
        CHECK(ibv_post_send(qp, &wr, &bad) == 0);
        CHECK(next_wc(cq).status == IBV_WC_LOC_PROT_ERR);
    }
}

int main(void)
{
    ctx = open_device();
    struct ibv_cq *cq = ibv_create_cq(ctx, 32, NULL, NULL, 0);
    struct ibv_cq_init_attr_ex init = {.cqe = 32};
    struct ibv_cq_ex *ex = ibv_create_cq_ex(ctx, &init);
    CHECK(cq && ex && (pd = ibv_alloc_pd(ctx)));
    CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, REMOTE)));
    struct ibv_qp *a = new_qp(pd, cq, IBV_QPT_RC, 8), *b = new_qp(pd, cq, IBV_QPT_RC, 8),
                  *c = new_qp(pd, ibv_cq_ex_to_cq(ex), IBV_QPT_RC, 8);
    remote(a, b);
    /* Another connection, another reason; for each once. */
    reset(a);
    reset(b);
    remote(a, b);
    reset(b);
    connect_both(c, b);
    want(c, IBV_WC_LOC_PROT_ERR, LOCAL_WORDS, "lkey", mr->lkey ^ 0x100, 0);
    post(c, mr->lkey ^ 0x100, mr->rkey, 1);
    struct ibv_poll_cq_attr none = {0};
    while (ibv_start_poll(ex, &none) != 0)
        ;
    CHECK(ex->status == IBV_WC_LOC_PROT_ERR);
    ibv_end_poll(ex);
    /* Nothing failed here: the program ended the queue. */
    struct ibv_qp *d = new_qp(pd, cq, IBV_QPT_RC, 8);
    struct ibv_qp_attr end = {.qp_state = IBV_QPS_ERR};
    struct ibv_recv_wr wr = {0}, *bad;
    connect_qp(d, b->qp_num, 14);
    CHECK(ibv_post_recv(d, &wr, &bad) == 0 && ibv_modify_qp(d, &end, IBV_QP_STATE) == 0);
    CHECK(next_wc(cq).status == IBV_WC_WR_FLUSH_ERR);
    datagrams(cq);
    puts("ok");
    return 0;
}

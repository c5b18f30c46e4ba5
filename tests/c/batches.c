/*
 * Batches of ibv_wr_start to ibv_wr_complete on the drop-in: a batch that has a wrong request, or
 * for which the queue has no room, posts none of its requests. Prints "ok".
 */
#include <string.h>

#include "rc_pair.h"

enum { DEPTH = 32, SIZE = 64, QKEY = 0x11 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *sends, *receives;
static struct ibv_mr *mr;
static union ibv_gid gid;
/* Data are sent from the first half and received in the second one, behind a datagram's GRH. */
static unsigned char bytes[2 * SIZE + 40];

static struct ibv_qp *create(enum ibv_qp_type type)
{
    struct ibv_qp_init_attr_ex init = {
        .send_cq = sends,
        .recv_cq = receives,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 1},
        .qp_type = type,
        .sq_sig_all = 1,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM};
    struct ibv_qp *qp = ibv_create_qp_ex(ctx, &init);
    CHECK(qp);
    return qp;
}

static void start(struct ibv_qp *qp, uint32_t to)
{
    struct ibv_qp_attr a = towards(ctx, to);
    a.qkey = QKEY;
    take_to_rts(qp, a);
}

static struct ibv_wc next(struct ibv_cq *cq)
{
    struct ibv_wc wc = next_wc(cq);
    CHECK(wc.status == IBV_WC_SUCCESS);
    return wc;
}

static void receive(struct ibv_qp *qp, int n)
{
    struct ibv_sge sge = {(uintptr_t)bytes + SIZE, SIZE + 40, mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    while (n--)
        CHECK(ibv_post_recv(qp, &wr, &bad) == 0);
}

/* Where the SENDs of a batch go. */
static struct ibv_qp *to;

/* Begins a SEND. The immediate data say its number to the receiver. */
static void begin(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t number)
{
    qp->wr_id = number;
    qp->wr_flags = 0;
    ibv_wr_send_imm(qp, number);
    if (qp->qp_base.qp_type == IBV_QPT_UD)
        ibv_wr_set_ud_addr(qp, ah, to->qp_num, QKEY);
}

/* A batch of n SENDs; of which, if wrong is one, the last has more bytes than a message may. */
static int batch(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t first, int n, int wrong)
{
    struct ibv_sge long_one[2] = {{(uintptr_t)bytes, 0x80000000u, mr->lkey},
                                  {(uintptr_t)bytes, 1, mr->lkey}};
    ibv_wr_start(qp);
    for (int i = 0; i < n; i++) {
        begin(qp, ah, first + (uint32_t)i);
        if (wrong && i + 1 == n)
            ibv_wr_set_sge_list(qp, 2, long_one);
        else
            ibv_wr_set_sge(qp, mr->lkey, (uintptr_t)bytes, SIZE);
    }
    return ibv_wr_complete(qp);
}

/* The next n SENDs that are completed and received are those from a number on. */
static void come(uint32_t first, int n)
{
    for (int i = 0; i < n; i++)
        CHECK(next(sends).wr_id == first + (uint32_t)i);
    for (int i = 0; i < n; i++)
        CHECK(next(receives).imm_data == first + (uint32_t)i);
}

/* What is behind a wrong request of a batch, and before it, was not posted. */
static void of_wrong_ones(struct ibv_qp *qp, struct ibv_ah *ah)
{
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
    receive(to, DEPTH);
    CHECK(batch(ex, ah, 100, 2, 1) == EMSGSIZE);
    CHECK(batch(ex, ah, 200, 20, 1) == EMSGSIZE);
    CHECK(batch(ex, ah, 300, 20, 0) == 0);
    come(300, 20);
    CHECK(batch(ex, ah, 400, DEPTH - 20, 0) == 0);
    come(400, DEPTH - 20);
}

int main(void)
{
    ctx = open_device();
    CHECK((pd = ibv_alloc_pd(ctx)) && ibv_query_gid(ctx, 1, 0, &gid) == 0);
    CHECK((sends = ibv_create_cq(ctx, 2 * DEPTH, NULL, NULL, 0)));
    CHECK((receives = ibv_create_cq(ctx, 2 * DEPTH, NULL, NULL, 0)));
    CHECK((mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE)));

    /* Datagrams, whose requests name their target. */
    struct ibv_qp *from = create(IBV_QPT_UD);
    to = create(IBV_QPT_UD);
    start(from, 0);
    start(to, 0);
    struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid}};
    struct ibv_ah *ah = ibv_create_ah(pd, &attr);
    CHECK(ah);
    of_wrong_ones(from, ah);
    receive(to, 1);
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(from);
    ibv_wr_start(ex);
    begin(ex, ah, 500);
    begin(ex, NULL, 501);
    CHECK(ibv_wr_complete(ex) == EINVAL);
    CHECK(batch(ex, ah, 600, 1, 0) == 0);
    come(600, 1);
    CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0);

    from = create(IBV_QPT_RC);
    to = create(IBV_QPT_RC);
    start(from, to->qp_num);
    start(to, from->qp_num);
    of_wrong_ones(from, NULL);

    /* The peer takes none: the queue has room for three, and for no batch of four. */
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(from, &a, IBV_QP_CAP, &init) == 0);
    int room = (int)a.cap.max_send_wr;
    ex = ibv_qp_to_qp_ex(from);
    CHECK(room >= DEPTH && batch(ex, NULL, 0, room - 3, 0) == 0);
    /* A router that executes the requests takes them out of the queue at any time. */
    int is_forwarded = getenv("GDRC_ROUTER") != NULL;
    for (int n = 4; n <= room && !is_forwarded; n++)
        CHECK(batch(ex, NULL, 1000, n, 0) == ENOMEM);
    CHECK(batch(ex, NULL, (uint32_t)room - 3, 3, 0) == 0);
    CHECK(is_forwarded || batch(ex, NULL, 1000, 1, 0) == ENOMEM);
    receive(to, DEPTH);
    come(0, DEPTH);
    receive(to, room - DEPTH);
    come(DEPTH, room - DEPTH);

    CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0 && ibv_dereg_mr(mr) == 0);
    CHECK(ibv_destroy_cq(sends) == 0 && ibv_destroy_cq(receives) == 0);
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(ctx) == 0);
    puts("ok");
    return 0;
}

// An SRQ of another protection domain than its queue pairs: its receives are of its own, keys of
// peers of theirs. Prints "ok".
#include "rc_pair.h"

static struct ibv_cq *sent, *received;
static char source[64], memory[4096];

static struct ibv_qp *queue_pair(struct ibv_pd *pd, struct ibv_srq *srq) {
    struct ibv_qp_init_attr init = {
        .send_cq = sent,
        .recv_cq = received,
        .srq = srq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    return qp;
}

static void receive(struct ibv_srq *srq, struct ibv_mr *mr) {
    struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
}

int main(void) {
    struct ibv_context *ctx = open_device();
    struct ibv_pd *own = ibv_alloc_pd(ctx), *apart = ibv_alloc_pd(ctx);
    CHECK(own && apart && (sent = ibv_create_cq(ctx, 16, NULL, NULL, 0)));
    CHECK((received = ibv_create_cq(ctx, 16, NULL, NULL, 0)));
    struct ibv_srq_init_attr shared = {.attr = {.max_wr = 8, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(apart, &shared);
    struct ibv_mr *from = ibv_reg_mr(own, source, sizeof source, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_mr *of_qp = ibv_reg_mr(own, memory, sizeof memory, REMOTE);
    struct ibv_mr *of_srq = ibv_reg_mr(apart, memory, sizeof memory, REMOTE);
    CHECK(srq && from && of_qp && of_srq);
    memcpy(source, "into another one", 16);
    struct ibv_sge sge = {(uintptr_t)source, 16, from->lkey};
    struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};

    struct ibv_qp *a = queue_pair(own, NULL), *b = queue_pair(own, srq);
    connect_both(a, b);
    receive(srq, of_srq);
    CHECK(done(a, send).status == IBV_WC_SUCCESS);
    CHECK(next_wc(received).status == IBV_WC_SUCCESS && memcmp(memory, source, 16) == 0);
    uint64_t at = (uintptr_t)memory + 100;
    CHECK(write_to(a, from, 16, at, of_qp->rkey).status == IBV_WC_SUCCESS);
    CHECK(memcmp(memory + 100, source, 16) == 0);
    CHECK(write_to(a, from, 16, at, of_srq->rkey).status == IBV_WC_REM_ACCESS_ERR);

    a = queue_pair(own, NULL), b = queue_pair(own, srq);
    connect_both(a, b);
    receive(srq, of_qp);
    CHECK(done(a, send).status == IBV_WC_REM_OP_ERR);
    CHECK(next_wc(received).status == IBV_WC_LOC_PROT_ERR);
    puts("ok");
    return 0;
}

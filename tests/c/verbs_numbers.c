/*
 * verbs_numbers COUNT PAIRS: as numbers.c, through libibverbs. Creates and destroys COUNT queue
 * pairs that are never connected, one after another, then PAIRS pairs that exchange a message.
 * Prints "ok". C11.
 */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(what)                                                                               \
    do {                                                                                          \
        if (!(what)) {                                                                            \
            fprintf(stderr, "verbs_numbers.c:%d: %s (errno %d; made %lu, %lu pairs)\n", __LINE__, \
                    #what, errno, made, pairs);                                                   \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

static unsigned long made, pairs;
static char memory[128];
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;

static struct ibv_qp *make(enum ibv_qp_type type)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = type,
        .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 }
    };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    return qp;
}

static void join(struct ibv_qp *qp, const struct ibv_qp *to)
{
    union ibv_gid gid;
    CHECK(ibv_query_gid(ctx, 1, 0, &gid) == 0);
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = IBV_ACCESS_REMOTE_WRITE,
    };
    CHECK(ibv_modify_qp(qp, &a,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = to->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } }
    };
    CHECK(ibv_modify_qp(qp, &a,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS,
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .max_rd_atomic = 1,
    };
    CHECK(ibv_modify_qp(qp, &a,
                        IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                            IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static void talk(void)
{
    struct ibv_qp *a = make(IBV_QPT_RC), *b = make(IBV_QPT_RC);
    struct ibv_wc done;
    int n;
    join(a, b);
    join(b, a);
    struct ibv_sge piece = {.addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey};
    struct ibv_send_wr write = { .sg_list = &piece,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_RDMA_WRITE,
                                 .send_flags = IBV_SEND_SIGNALED,
                                 .wr.rdma = { (uintptr_t)memory + 64, mr->rkey } },
                       *bad;
    memset(memory, (int)pairs, 64);
    CHECK(ibv_post_send(a, &write, &bad) == 0);
    while ((n = ibv_poll_cq(cq, 1, &done)) == 0) {
    }
    CHECK(n == 1 && done.status == IBV_WC_SUCCESS && memcmp(memory, memory + 64, 64) == 0);
    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: verbs_numbers COUNT PAIRS\n");
        return 2;
    }
    unsigned long count = strtoul(argv[1], NULL, 10), talks = strtoul(argv[2], NULL, 10);
    int n = 0;
    struct ibv_device **list = ibv_get_device_list(&n);
    CHECK(list && n > 0 && (ctx = ibv_open_device(list[0])));
    ibv_free_device_list(list);
    CHECK((pd = ibv_alloc_pd(ctx)) && (cq = ibv_create_cq(ctx, 16, NULL, NULL, 0)));
    CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
    static const enum ibv_qp_type types[3] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD};
    for (; made < count; made++)
        CHECK(ibv_destroy_qp(make(types[made % 3])) == 0);
    for (; pairs < talks; pairs++)
        talk();
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 &&
          ibv_close_device(ctx) == 0);
    printf("ok: %lu queue pairs, %lu connected pairs\n", made, pairs);
    return 0;
}

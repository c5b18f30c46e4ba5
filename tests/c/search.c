// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * search HOW: programs with one mistake each, for a search of faults. A call that is checked and
 * fails ends them with 2. HOW:
 *   right      none
 *   unchecked  the second region is used whether or not there is one
 *   hang       waits for the completion of the third post, whether or not it was posted
 *   left       leaves a process of a session of its own running that holds FILE (the next argument)
 *              locked
 *   lost       ends with 3 if the messages 7 and 12 of a UC queue pair are lost, and needs no other
 *   device, domain, queue   the device, the protection domain or the CQ is used whether or not it
 *              is there
 *   gid        ends with 3 if it has no GID
 *   status     ends with 3 if message 6 fails; others may
 *   event      ends with 3 if there is an asynchronous event
 *   limit      the second queue pair is used whether or not there is one
 */
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* Of calls that a fault may hit. */
#define NEED(what) \
    do {           \
        if (!(what)) \
            exit(2); \
    } while (0)

/* Of calls that are not checked in one of the ways. */
#define NEED_BUT(way, what) \
    do {                    \
        if (!(what) && !is(way)) \
            exit(2);        \
    } while (0)

#define MESSAGES 20

static const char *how;
static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[4096];
static union ibv_gid gid;

static int is(const char *way)
{
    return !strcmp(how, way);
}

static struct ibv_qp *make_qp(enum ibv_qp_type type)
{
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = type,
        .cap = {.max_send_wr = 32, .max_recv_wr = 32, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    NEED_BUT("limit", qp);
    printf("QP %x\n", qp->qp_num);
    return qp;
}

static void connect_qp(struct ibv_qp *qp, uint32_t peer)
{
    int is_rc = qp->qp_type == IBV_QPT_RC;
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    NEED(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
                                   IBV_QP_ACCESS_FLAGS) == 0);
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .hop_limit = 64}}};
    NEED(ibv_modify_qp(qp, &a,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN |
                           (is_rc ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0)) == 0);
    a = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
                             .timeout = 14,
                             .retry_cnt = 7,
                             .rnr_retry = 7,
                             .max_rd_atomic = 1};
    NEED(ibv_modify_qp(qp, &a,
                       IBV_QP_STATE | IBV_QP_SQ_PSN |
                           (is_rc ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                        IBV_QP_MAX_QP_RD_ATOMIC
                                  : 0)) == 0);
}

static void pair(enum ibv_qp_type type, struct ibv_qp *both[2])
{
    both[0] = make_qp(type);
    both[1] = make_qp(type);
    connect_qp(both[0], both[1]->qp_num);
    connect_qp(both[1], both[0]->qp_num);
}

static int post(struct ibv_qp *qp, uint32_t number)
{
    struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND_WITH_IMM,
                             .send_flags = IBV_SEND_SIGNALED,
                             .imm_data = number},
                       *bad;
    return ibv_post_send(qp, &wr, &bad);
}

static void post_recv(struct ibv_qp *qp)
{
    struct ibv_sge sge = {(uintptr_t)memory + 2048, 8, mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    NEED(ibv_post_recv(qp, &wr, &bad) == 0);
}

static struct ibv_wc next(void)
{
    struct ibv_wc wc;
    int n;
    do
        NEED((n = ibv_poll_cq(cq, 1, &wc)) >= 0);
    while (n == 0);
    NEED_BUT("status", wc.status == IBV_WC_SUCCESS);
    return wc;
}

/* Sends messages one by one, until one of them fails. */
static int statuses(void)
{
    struct ibv_qp *rc[2];
    pair(IBV_QPT_RC, rc);
    for (int i = 1; i <= 8; i++) {
        post_recv(rc[1]);
        NEED(post(rc[0], i) == 0);
        struct ibv_wc wc[2];
        wc[0] = next();
        if (wc[0].status)
            return i == 6 ? 3 : 2;
        wc[1] = next();
        if (wc[1].status)
            return i == 6 ? 3 : 2;
    }
    return 0;
}

static int lost(void)
{
    struct ibv_qp *uc[2], *rc[2];
    char come[MESSAGES + 1] = {0};
    pair(IBV_QPT_UC, uc);
    pair(IBV_QPT_RC, rc);
    for (int i = 0; i < MESSAGES; i++)
        post_recv(uc[1]);
    post_recv(rc[1]);
    for (int i = 1; i <= MESSAGES; i++)
        NEED(post(uc[0], i) == 0);
    for (int left = MESSAGES, is_over = 0; !is_over;) {
        struct ibv_wc wc = next();
        if (wc.opcode == IBV_WC_SEND)
            /* All have left, so this one arrives behind them. */
            NEED(--left != 0 || post(rc[0], 0) == 0);
        else if (wc.qp_num == uc[1]->qp_num)
            come[wc.imm_data] = 1;
        else
            is_over = 1;
    }
    return !come[7] && !come[12] ? 3 : 0;
}

int main(int argc, char **argv)
{
    how = argc > 1 ? argv[1] : "right";
    if (is("left")) {
        if (fork() == 0) {
            NEED(setsid() > 0);
            FILE *file = fopen(argv[2], "w");
            NEED(file && flock(fileno(file), LOCK_EX) == 0);
            for (;;)
                pause();
        }
        return 0;
    }
    struct ibv_device **list = ibv_get_device_list(NULL);
    NEED(list && list[0]);
    NEED_BUT("device", (ctx = ibv_open_device(list[0])));
    printf("device %s\n", ctx->device->name);
    NEED_BUT("domain", (pd = ibv_alloc_pd(ctx)));
    printf("PD %u\n", pd->handle);
    NEED_BUT("queue", (cq = ibv_create_cq(ctx, 128, NULL, NULL, 0)));
    printf("CQ of %d\n", cq->cqe);
    NEED((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)));
    NEED_BUT("gid", ibv_query_gid(ctx, 1, 0, &gid) == 0);
    if (gid.global.interface_id == 0)
        return 3;
    if (is("lost"))
        return lost();
    if (is("status"))
        return statuses();
    struct ibv_mr *second = ibv_reg_mr(pd, memory, 64, IBV_ACCESS_LOCAL_WRITE);
    NEED_BUT("unchecked", second);
    printf("lkey %x\n", second->lkey);
    struct ibv_qp *both[2];
    pair(IBV_QPT_RC, both);
    for (int i = 0; i < 4; i++) {
        post_recv(both[1]);
        int rc = post(both[0], i);
        NEED(rc == 0 || (i == 2 && is("hang")));
        next();
        next();
        struct pollfd p = {.fd = ctx->async_fd, .events = POLLIN};
        if (is("event") && poll(&p, 1, 0) == 1)
            return 3;
    }
    return 0;
}

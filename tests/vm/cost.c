// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * cost raw|gdrc|fast DEVICE N LIST: posts a list of LIST (1 to 16) signalled WRITEs of 8 bytes and
 * polls for their completions, N times, from a queue pair to itself: by libibverbs, by libgdrcore's
 * verbs device, or by its fast handles. For an instruction counter that collects in *_post_one and
 * *_poll_one only. Prints "N posts, M polls".
 */
#define _GNU_SOURCE
#include <errno.h>
#include <gdrcore.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEPTH 16

static uint64_t words[512] __attribute__((aligned(4096)));

#define MUST(x)                                                                          \
    do {                                                                                 \
        if (!(x)) {                                                                      \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #x, strerror(errno)); \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

static struct {
    struct ibv_qp *qp;
    struct ibv_cq *cq;
    struct ibv_send_wr wr[DEPTH];
    struct ibv_sge sge;
} raw;

static struct {
    gdrc_context *ctx;
    gdrc_qp qp;
    gdrc_cq cq;
    gdrc_qp_fast *fast_qp;
    gdrc_cq_fast *fast_cq;
    gdrc_send_wr wr[DEPTH];
    gdrc_sge sge;
} ours;

__attribute__((noinline)) static int raw_post_one(void)
{
    struct ibv_send_wr *bad;
    return ibv_post_send(raw.qp, raw.wr, &bad);
}

__attribute__((noinline)) static int raw_poll_one(struct ibv_wc *wc)
{
    return ibv_poll_cq(raw.cq, DEPTH, wc);
}

__attribute__((noinline)) static int gdrc_post_one(void)
{
    const gdrc_send_wr *bad;
    return gdrc_post_send(ours.ctx, ours.qp, ours.wr, &bad);
}

__attribute__((noinline)) static int gdrc_poll_one(gdrc_wc *wc)
{
    return gdrc_poll_cq(ours.ctx, ours.cq, DEPTH, wc);
}

__attribute__((noinline)) static int fast_post_one(void)
{
    const gdrc_send_wr *bad;
    return gdrc_qp_fast_post_send(ours.fast_qp, ours.wr, &bad);
}

__attribute__((noinline)) static int fast_poll_one(gdrc_wc *wc)
{
    return gdrc_cq_fast_poll(ours.fast_cq, DEPTH, wc);
}

static void open_raw(const char *name, int list)
{
    int n = 0;
    struct ibv_device **devices = ibv_get_device_list(&n);
    struct ibv_context *ctx = NULL;
    for (int i = 0; i < n; i++)
        if (!strcmp(ibv_get_device_name(devices[i]), name))
            ctx = ibv_open_device(devices[i]);
    MUST(ctx);
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    MUST(pd);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    struct ibv_mr *mr = ibv_reg_mr(pd, words, sizeof words, access);
    MUST(mr && (raw.cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)));
    struct ibv_qp_init_attr init = {
        .send_cq = raw.cq,
        .recv_cq = raw.cq,
        .qp_type = IBV_QPT_RC,
        .cap = { .max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 }
    };
    MUST((raw.qp = ibv_create_qp(pd, &init)));
    struct ibv_qp_attr attr = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = access,
    };
    MUST(!ibv_modify_qp(raw.qp, &attr,
                        IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = raw.qp->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
        .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = 1, .hop_limit = 64 } }
    };
    MUST(!ibv_query_gid(ctx, 1, 1, &attr.ah_attr.grh.dgid));
    MUST(!ibv_modify_qp(raw.qp, &attr,
                        IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                            IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS,
        .timeout = 14,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .max_rd_atomic = 1,
    };
    MUST(!ibv_modify_qp(raw.qp, &attr,
                        IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                            IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
    raw.sge = (struct ibv_sge){ .addr = (uint64_t)(uintptr_t)words, .length = 8, .lkey = mr->lkey };
    for (int i = 0; i < list; i++) {
        raw.wr[i] = (struct ibv_send_wr){
            .next = i + 1 < list ? &raw.wr[i + 1] : NULL,
            .sg_list = &raw.sge,
            .num_sge = 1,
            .opcode = IBV_WR_RDMA_WRITE,
            .send_flags = IBV_SEND_SIGNALED,
        };
        raw.wr[i].wr.rdma.remote_addr = (uint64_t)(uintptr_t)(words + 256);
        raw.wr[i].wr.rdma.rkey = mr->rkey;
    }
}

static void open_ours(const char *name, int list)
{
    char device[80], why[384];
    snprintf(device, sizeof device, "verbs:%s", name);
    if (gdrc_open(device, NULL, &ours.ctx)) {
        gdrc_error_detail(why, sizeof why);
        fprintf(stderr, "%s\n", why);
        exit(1);
    }
    gdrc_pd pd;
    gdrc_mr mr;
    struct gdrc_mr_attr attr = { .struct_size = sizeof attr };
    MUST(!gdrc_pd_alloc(ours.ctx, &pd));
    MUST(!gdrc_mr_reg(ours.ctx, pd, words, sizeof words,
                      GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_WRITE, &mr, &attr));
    MUST(!gdrc_cq_create(ours.ctx, 64, &ours.cq, NULL));
    struct gdrc_qp_init init = {
        .struct_size = sizeof init,
        .qp_type = GDRC_QPT_RC,
        .pd = pd,
        .send_cq = ours.cq,
        .recv_cq = ours.cq,
        .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 }
    };
    MUST(!gdrc_qp_create(ours.ctx, &init, &ours.qp, NULL));
    struct gdrc_endpoint self = { .struct_size = sizeof self };
    MUST(!gdrc_endpoint_local(ours.ctx, ours.qp, &mr, &self));
    MUST(!gdrc_qp_connect(ours.ctx, ours.qp, &self, &self, NULL));
    MUST(!gdrc_qp_fast_get(ours.ctx, ours.qp, &ours.fast_qp) &&
         !gdrc_cq_fast_get(ours.ctx, ours.cq, &ours.fast_cq));
    ours.sge = (gdrc_sge){ .addr = attr.iova, .length = 8, .lkey = attr.lkey };
    for (int i = 0; i < list; i++) {
        ours.wr[i] = (gdrc_send_wr){
            .next = i + 1 < list ? &ours.wr[i + 1] : NULL,
            .sg_list = &ours.sge,
            .num_sge = 1,
            .opcode = GDRC_WR_RDMA_WRITE,
            .send_flags = GDRC_SEND_SIGNALED,
        };
        ours.wr[i].wr.rdma = (gdrc_rdma_wr){ .remote_addr = attr.iova + 2048, .rkey = attr.rkey };
    }
}

int main(int argc, char **argv)
{
    int n = argc == 5 ? atoi(argv[3]) : 0, list = argc == 5 ? atoi(argv[4]) : 0, polls = 0;
    if (n < 1 || list < 1 || list > DEPTH) {
        fprintf(stderr, "usage: cost raw|gdrc|fast DEVICE N LIST\n");
        return 2;
    }
    int is_raw = !strcmp(argv[1], "raw"), is_fast = !strcmp(argv[1], "fast");
    if (is_raw)
        open_raw(argv[2], list);
    else
        open_ours(argv[2], list);
    for (int i = 0; i < n; i++) {
        words[0] = (uint64_t)i + 1;
        MUST(!(is_raw ? raw_post_one() : is_fast ? fast_post_one() : gdrc_post_one()));
        for (int got = 0, more; got < list; got += more) {
            /* Long enough that the first poll finds it: an empty poll would be counted. */
            nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
            struct ibv_wc theirs[DEPTH];
            gdrc_wc wc[DEPTH];
            more = is_raw      ? raw_poll_one(theirs)
                   : is_fast ? fast_poll_one(wc)
                               : gdrc_poll_one(wc);
            polls++;
            MUST(more >= 0);
            for (int k = 0; k < more; k++)
                MUST((is_raw ? theirs[k].status : wc[k].status) == 0);
        }
        MUST(words[256] == words[0]);
    }
    printf("%d posts, %d polls\n", n, polls);
    return 0;
}

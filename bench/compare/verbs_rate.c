// Messages of 8 bytes that threads of one program send by verbs, each from a queue pair and a CQ of
// its own to another one that it drives, too. Arguments: threads, messages of each, and "write"
// (within one device, to the queue pair itself) or "send" (from the first device to the second).
// Prints millions of messages a second, of all threads.
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"

enum { MOST = 64, DEPTH = 128, WINDOW = 32, RECEIVES = 64, BUFFER = 4096 };

struct end {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    union ibv_gid gid;
};

static struct ibv_context *devices[2];
static struct ibv_pd *pds[2];
static int sends;
static long messages;
static pthread_barrier_t ready;

static struct end make(int device) {
    struct end e;
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    void *memory = aligned_alloc(BUFFER, BUFFER);
    CHECK(memory && (e.mr = ibv_reg_mr(pds[device], memset(memory, 0, BUFFER), BUFFER, access)));
    CHECK((e.cq = ibv_create_cq(devices[device], 4 * DEPTH, NULL, NULL, 0)));
    struct ibv_qp_init_attr init = {
        .send_cq = e.cq,
        .recv_cq = e.cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
    };
    CHECK((e.qp = ibv_create_qp(pds[device], &init)));
    CHECK(ibv_query_gid(devices[device], 1, 0, &e.gid) == 0);
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    CHECK(ibv_modify_qp(e.qp, &a, mask) == 0);
    return e;
}

static void connect_to(struct end *e, struct end *peer) {
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->qp->qp_num,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .hop_limit = 64}},
    };
    int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
               IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    CHECK(ibv_modify_qp(e->qp, &a, mask) == 0);
    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTS,
        .timeout = 18,
        .retry_cnt = 7,
        .rnr_retry = 7,
        .max_rd_atomic = 1,
    };
    mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
           IBV_QP_MAX_QP_RD_ATOMIC;
    CHECK(ibv_modify_qp(e->qp, &a, mask) == 0);
}

static void receive(struct end *e) {
    struct ibv_sge sge = {(uintptr_t)e->mr->addr + BUFFER / 2, 64, e->mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(e->qp, &wr, &bad) == 0);
}

static void post(struct end *from, struct end *to) {
    struct ibv_sge sge = {(uintptr_t)from->mr->addr, 8, from->mr->lkey};
    struct ibv_send_wr wr = {
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = sends ? IBV_WR_SEND : IBV_WR_RDMA_WRITE,
        .send_flags = IBV_SEND_SIGNALED,
        .wr.rdma = {(uintptr_t)to->mr->addr + 64, to->mr->rkey},
    };
    struct ibv_send_wr *bad;
    CHECK(ibv_post_send(from->qp, &wr, &bad) == 0);
}

static int poll_cq(struct end *e) {
    struct ibv_wc wc[WINDOW];
    int n = ibv_poll_cq(e->cq, WINDOW, wc);
    CHECK(n >= 0);
    for (int i = 0; i < n; i++)
        CHECK(wc[i].status == IBV_WC_SUCCESS);
    return n;
}

static void *work(void *unused) {
    struct end from = make(0), to = sends ? make(1) : from;
    connect_to(&from, &to);
    if (sends)
        connect_to(&to, &from);
    for (int i = 0; sends && i < RECEIVES; i++)
        receive(&to);
    pthread_barrier_wait(&ready);
    for (long posted = 0, done = 0; done < messages;) {
        for (; posted < messages && posted - done < WINDOW; posted++)
            post(&from, &to);
        for (int n = sends ? poll_cq(&to) : 0; n > 0; n--)
            receive(&to);
        done += poll_cq(&from);
    }
    return unused;
}

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    int threads = atoi(argv[1]);
    messages = atol(argv[2]);
    sends = strcmp(argv[3], "send") == 0;
    CHECK(threads >= 1 && threads <= MOST && messages > 0);
    int count;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count > sends);
    for (int i = 0; i <= sends; i++)
        CHECK((devices[i] = ibv_open_device(list[i])) && (pds[i] = ibv_alloc_pd(devices[i])));
    pthread_barrier_init(&ready, NULL, threads + 1);
    pthread_t all[MOST];
    for (int i = 0; i < threads; i++)
        CHECK(pthread_create(&all[i], NULL, work, NULL) == 0);
    pthread_barrier_wait(&ready);
    double begin = seconds();
    for (int i = 0; i < threads; i++)
        pthread_join(all[i], NULL);
    printf("%.4f\n", threads * messages / (seconds() - begin) / 1e6);
    return 0;
}

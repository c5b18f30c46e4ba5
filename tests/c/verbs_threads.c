// Threads of one context, each with a CQ and two queue pairs of its own, which are each other's
// peers. Each writes and sends to itself; all receives end at one CQ of the main thread, which
// sleeps on a completion channel. Arguments: threads, messages of each, and the number of vectors
// over which the main thread spreads the CQs that it makes for them, or "domains": it makes each of
// them in a thread domain, with an SRQ and a queue pair of it (without: they make their own).
// Exit code 0: everything came once, in order, and the memory is right.
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rc_pair.h"

enum { MOST = 16, RECEIVES = 32 };

struct worker {
    pthread_t thread;
    uint32_t number;
    struct ibv_td *td;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    struct ibv_qp *from, *to, *served;
    uint64_t source, target;
};

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *receives;
static union ibv_gid gid;
static struct worker workers[MOST];
static struct ibv_mr *memory;
static uint32_t messages;
static pthread_barrier_t ready;

static struct ibv_qp *queue_pair(struct worker *w) {
    struct ibv_qp_init_attr init = {
        .send_cq = w->cq,
        .recv_cq = receives,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 16, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1},
    };
    struct ibv_qp *qp = ibv_create_qp(w->pd, &init);
    CHECK(qp);
    return qp;
}

static void post_recv(struct worker *w) {
    struct ibv_recv_wr wr = {.wr_id = w->number}, *bad;
    CHECK(ibv_post_recv(w->to, &wr, &bad) == 0);
}

static void post_send(struct worker *w, uint32_t round) {
    struct ibv_sge sge = {(uintptr_t)&w->source, sizeof w->source, memory->lkey};
    struct ibv_send_wr send = {
        .wr_id = round,
        .opcode = IBV_WR_SEND_WITH_IMM,
        .imm_data = round,
        .send_flags = IBV_SEND_SIGNALED,
    };
    struct ibv_send_wr write = {
        .next = &send,
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_RDMA_WRITE,
        .wr.rdma = {(uintptr_t)&w->target, memory->rkey},
    };
    struct ibv_send_wr *bad;
    CHECK(ibv_post_send(w->from, &write, &bad) == 0);
}

// A parent domain and a CQ for a worker, in a thread domain of its own.
static void make_domain(struct worker *w) {
    struct ibv_td_init_attr of_thread = {0};
    CHECK((w->td = ibv_alloc_td(ctx, &of_thread)));
    struct ibv_parent_domain_init_attr parent = {.pd = pd, .td = w->td};
    CHECK((w->pd = ibv_alloc_parent_domain(ctx, &parent)));
    struct ibv_cq_init_attr_ex init = {
        .cqe = 64,
        .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
        .parent_domain = w->pd,
    };
    CHECK((w->cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(ctx, &init))));
    // All of a thread domain, whichever thread makes them.
    struct ibv_srq_init_attr of_srq = {.attr = {.max_wr = 8, .max_sge = 1}};
    CHECK((w->srq = ibv_create_srq(w->pd, &of_srq)));
    struct ibv_qp_init_attr of_qp = {
        .send_cq = w->cq,
        .recv_cq = w->cq,
        .srq = w->srq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 1},
    };
    CHECK((w->served = ibv_create_qp(w->pd, &of_qp)));
}

static void *work(void *argument) {
    struct worker *w = argument;
    if (!w->cq)
        CHECK((w->cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)));
    w->from = queue_pair(w);
    w->to = queue_pair(w);
    connect_qp(w->from, w->to->qp_num, 17);
    connect_qp(w->to, w->from->qp_num, 17);
    for (int i = 0; i < RECEIVES; i++)
        post_recv(w);
    pthread_barrier_wait(&ready);
    for (uint32_t round = 0; round < messages; round++) {
        w->source = (uint64_t)w->number << 32 | round;
        post_send(w, round);
        struct ibv_wc wc;
        int n;
        while ((n = ibv_poll_cq(w->cq, 1, &wc)) == 0) {
        }
        CHECK(n == 1 && wc.status == IBV_WC_SUCCESS && wc.wr_id == round);
        CHECK(__atomic_load_n(&w->target, __ATOMIC_ACQUIRE) == w->source);
    }
    return NULL;
}

int main(int argc, char **argv) {
    CHECK(argc == 3 || argc == 4);
    int vectors = argc == 4 ? atoi(argv[3]) : 0;
    int domains = argc == 4 && strcmp(argv[3], "domains") == 0;
    uint32_t threads = atoi(argv[1]);
    messages = atoi(argv[2]);
    CHECK(threads >= 1 && threads <= MOST);
    alarm(patience_ms(50) / 1000);
    ctx = open_device();
    CHECK((pd = ibv_alloc_pd(ctx)) && ibv_query_gid(ctx, 1, 0, &gid) == 0);
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    CHECK((memory = ibv_reg_mr(pd, workers, sizeof workers, access)));
    struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
    CHECK(channel && (receives = ibv_create_cq(ctx, MOST * RECEIVES, NULL, channel, 0)));
    CHECK(!vectors || (ctx->num_comp_vectors == vectors &&
                       !ibv_create_cq(ctx, 64, NULL, NULL, vectors)));
    pthread_barrier_init(&ready, NULL, threads + 1);
    for (uint32_t i = 0; i < threads; i++) {
        workers[i].number = i;
        workers[i].pd = pd;
        if (domains)
            make_domain(&workers[i]);
        else if (vectors)
            CHECK((workers[i].cq = ibv_create_cq(ctx, 64, NULL, NULL, i % vectors)));
        CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
    }
    pthread_barrier_wait(&ready);
    uint32_t seen[MOST] = {0}, all = 0, events = 0;
    while (all < threads * messages) {
        CHECK(ibv_req_notify_cq(receives, 0) == 0);
        struct ibv_wc wc[8];
        int n, any = 0;
        while ((n = ibv_poll_cq(receives, 8, wc)) > 0) {
            any = 1;
            for (int i = 0; i < n; i++) {
                struct worker *w = &workers[wc[i].wr_id];
                CHECK(wc[i].status == IBV_WC_SUCCESS && wc[i].qp_num == w->to->qp_num);
                CHECK(wc[i].imm_data == seen[w->number]++);
                post_recv(w);
                all++;
            }
        }
        CHECK(n == 0);
        if (!any && all < threads * messages) {
            struct ibv_cq *cq;
            void *context;
            CHECK(ibv_get_cq_event(channel, &cq, &context) == 0 && cq == receives);
            events++;
        }
    }
    for (uint32_t i = 0; i < threads; i++) {
        struct worker *w = &workers[i];
        CHECK(pthread_join(w->thread, NULL) == 0 && seen[i] == messages);
        CHECK(ibv_destroy_qp(w->from) == 0 && ibv_destroy_qp(w->to) == 0);
        if (w->srq)
            CHECK(ibv_destroy_qp(w->served) == 0 && ibv_destroy_srq(w->srq) == 0);
        CHECK(ibv_destroy_cq(w->cq) == 0);
        if (w->td)
            CHECK(ibv_dealloc_pd(w->pd) == 0 && ibv_dealloc_td(w->td) == 0);
    }
    ibv_ack_cq_events(receives, events);
    CHECK(ibv_destroy_cq(receives) == 0 && ibv_destroy_comp_channel(channel) == 0);
    CHECK(ibv_dereg_mr(memory) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(ctx) == 0);
    printf("ok, %u messages\n", all);
    return 0;
}

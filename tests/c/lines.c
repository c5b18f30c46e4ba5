// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * lines: two threads of one context, each with a CQ and a pair of connected queue pairs of its own,
 * one after the other, for a tool that records accesses to memory (valgrind's lackey).
 *
 * lines ENGINES OPERATION OPERATION: what the first and the second thread do: write, read or send
 * (8 bytes, with all completions), empty (a poll that finds nothing).
 *
 * Prints "marker ADDRESS". A thread stores to it before and after the operations to be recorded:
 * 1, 2 by the first thread, 3, 4 by the second. Both threads live until the end, so that neither
 * has the stack of the other, and who waits is blocked and accesses nothing.
 */
#include <gdrcore.h>

#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARM 100
#define RECORDED 20

static gdrc_context *ctx;
static gdrc_pd pd;
static _Alignas(64) volatile uint64_t marker[8];
static sem_t recorded, over;

static void check(const char *what, int rc)
{
    char why[384];
    if (rc >= 0)
        return;
    gdrc_error_detail(why, sizeof why);
    fprintf(stderr, "lines: %s: %s\n", what, why);
    exit(1);
}

struct worker {
    const char *operation;
    uint64_t first_mark;
    gdrc_cq cq;
    gdrc_qp qp[2];
    gdrc_mr mr;
    struct gdrc_mr_attr attr;
    unsigned char *data;
};

static void join(struct worker *w)
{
    struct gdrc_endpoint end[2];
    w->data = aligned_alloc(4096, 4096);
    memset(w->data, 0, 4096);
    memset(&w->attr, 0, sizeof w->attr);
    w->attr.struct_size = sizeof w->attr;
    check("cq_create", gdrc_cq_create(ctx, 64, &w->cq, NULL));
    uint32_t access =
        GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_WRITE | GDRC_ACCESS_REMOTE_READ;
    check("mr_reg", gdrc_mr_reg(ctx, pd, w->data, 4096, access, &w->mr, &w->attr));
    for (int i = 0; i < 2; i++) {
        struct gdrc_qp_init init;
        memset(&init, 0, sizeof init);
        init.struct_size = sizeof init;
        init.qp_type = GDRC_QPT_RC;
        init.pd = pd;
        init.send_cq = init.recv_cq = w->cq;
        init.cap = (struct gdrc_qp_cap){
            .max_send_wr = 64,
            .max_recv_wr = 64,
            .max_send_sge = 1,
            .max_recv_sge = 1,
            .max_inline_data = 64,
        };
        end[i].struct_size = sizeof end[i];
        check("qp_create", gdrc_qp_create(ctx, &init, &w->qp[i], NULL));
        check("endpoint", gdrc_endpoint_local(ctx, w->qp[i], &w->mr, &end[i]));
    }
    for (int i = 0; i < 2; i++)
        check("connect", gdrc_qp_connect(ctx, w->qp[i], &end[i], &end[!i], NULL));
}

static void operate(struct worker *w)
{
    gdrc_wc wc;
    gdrc_sge sge = { .addr = (uintptr_t)w->data, .length = 8, .lkey = w->attr.lkey };
    gdrc_send_wr wr = {
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = GDRC_WR_RDMA_WRITE,
        .send_flags = GDRC_SEND_SIGNALED | GDRC_SEND_INLINE,
    };
    wr.wr.rdma.remote_addr = w->attr.iova + 2048;
    wr.wr.rdma.rkey = w->attr.rkey;
    int left = 1;
    if (!strcmp(w->operation, "empty")) {
        check("poll_cq", gdrc_poll_cq(ctx, w->cq, 1, &wc));
        return;
    } else if (!strcmp(w->operation, "read")) {
        wr.opcode = GDRC_WR_RDMA_READ;
        wr.send_flags = GDRC_SEND_SIGNALED;
    } else if (!strcmp(w->operation, "send")) {
        gdrc_sge to = { .addr = (uintptr_t)w->data + 2048, .length = 8, .lkey = w->attr.lkey };
        gdrc_recv_wr recv = { .sg_list = &to, .num_sge = 1 };
        check("post_recv", gdrc_post_recv(ctx, w->qp[1], &recv, NULL));
        wr.opcode = GDRC_WR_SEND;
        left = 2;
    }
    check("post_send", gdrc_post_send(ctx, w->qp[0], &wr, NULL));
    while (left > 0) {
        int n = gdrc_poll_cq(ctx, w->cq, 1, &wc);
        check("poll_cq", n > 0 && wc.status ? -5 : n);
        left -= n;
    }
}

static void *work(void *arg)
{
    struct worker *w = arg;
    join(w);
    for (int i = 0; i < WARM; i++)
        operate(w);
    marker[0] = w->first_mark;
    for (int i = 0; i < RECORDED; i++)
        operate(w);
    marker[0] = w->first_mark + 1;
    sem_post(&recorded);
    sem_wait(&over);
    return NULL;
}

int main(int argc, char **argv)
{
    struct gdrc_config config;
    struct worker workers[2];
    pthread_t threads[2];
    if (argc != 4)
        return 2;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.engines = (uint32_t)atoi(argv[1]);
    check("open", gdrc_open("loopback", &config, &ctx));
    check("pd_alloc", gdrc_pd_alloc(ctx, &pd));
    printf("marker %p\n", (void *)marker);
    fflush(stdout);
    sem_init(&recorded, 0, 0);
    sem_init(&over, 0, 0);
    for (int i = 0; i < 2; i++) {
        workers[i].operation = argv[2 + i];
        workers[i].first_mark = 1 + 2 * (uint64_t)i;
        pthread_create(&threads[i], NULL, work, &workers[i]);
        sem_wait(&recorded);
    }
    for (int i = 0; i < 2; i++)
        sem_post(&over);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    return 0;
}

/*
 * The recipes of docs/using/ABI.md for threads that sleep; "recipes.h" holds them as printed there.
 *
 * sleep one|many|fd [helper]: messages go back and forth between two contexts of this process; each
 * end sleeps until its message comes. one: one thread per context, gdrc_wait; many: two threads per
 * context, channels; fd: poll(2) on channels' descriptors (needs helper).
 */
#include <errno.h>
#include <gdrcore.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "recipes.h"

#define ROUNDS 2000
#define CHECK(call)                                                                            \
    do {                                                                                       \
        int rc_ = (call);                                                                      \
        if (rc_ < 0) {                                                                         \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, gdrc_strerror(rc_)); \
            exit(1);                                                                           \
        }                                                                                      \
    } while (0)

static enum { ONE, MANY, FD } way;
static atomic_int ended;
static int threads;

struct end {
    gdrc_context *ctx;
    gdrc_channel channel;
    gdrc_cq cq;
    gdrc_qp qp;
    gdrc_mr_attr attr;
    struct gdrc_endpoint own;
    char memory[128];
    int first;
    int sent, received; /* completions that were taken and not asked for yet */
};

/* poll(2) in place of gdrc_channel_wait. */
static int wait_by_poll(struct end *e, int room, gdrc_wc *wc)
{
    for (;;) {
        gdrc_cq ready;
        int n = gdrc_poll_cq(e->ctx, e->cq, room, wc);
        if (n != 0)
            return n;
        CHECK(gdrc_cq_arm(e->ctx, e->cq, 0));
        if ((n = gdrc_poll_cq(e->ctx, e->cq, room, wc)) != 0)
            return n;
        struct pollfd p = {.fd = gdrc_channel_fd(e->ctx, e->channel), .events = POLLIN};
        if (poll(&p, 1, -1) < 0 && errno != EINTR)
            return -errno;
        while (gdrc_channel_get_event(e->ctx, e->channel, &ready) == 1) {}
    }
}

static void post_recv(struct end *e)
{
    gdrc_sge piece = {.addr = e->attr.addr + 64, .length = 64, .lkey = e->attr.lkey};
    gdrc_recv_wr wr = {.sg_list = &piece, .num_sge = 1};
    CHECK(gdrc_post_recv(e->ctx, e->qp, &wr, NULL));
}

static void post_send(struct end *e)
{
    gdrc_sge piece = {.addr = e->attr.addr, .length = 8, .lkey = e->attr.lkey};
    gdrc_send_wr wr = {
        .sg_list = &piece,
        .num_sge = 1,
        .opcode = GDRC_WR_SEND,
        .send_flags = GDRC_SEND_SIGNALED,
    };
    CHECK(gdrc_post_send(e->ctx, e->qp, &wr, NULL));
}

/* Polls completions until `sends` requests and `receives` messages have completed. */
static void take(struct end *e, int sends, int receives)
{
    while (e->sent < sends || e->received < receives) {
        gdrc_wc wc[4];
        int n = way == ONE    ? wait_for_cq(e->ctx, e->cq, 4, wc)
                : way == MANY ? wait_on_channel(e->ctx, e->channel, e->cq, 4, wc)
                              : wait_by_poll(e, 4, wc);
        CHECK(n);
        for (int i = 0; i < n; i++) {
            if (wc[i].status != GDRC_WC_SUCCESS) {
                fprintf(stderr, "%s\n", gdrc_wc_status_str(wc[i].status));
                exit(1);
            }
            if (wc[i].opcode & GDRC_WC_OP_RECV)
                e->received++;
            else
                e->sent++;
        }
    }
    e->sent -= sends;
    e->received -= receives;
}

static void *run(void *p)
{
    struct end *e = p;
    for (int i = 0; i < ROUNDS; i++) {
        if (e->first)
            post_send(e);
        take(e, e->first, 1);
        post_recv(e);
        if (!e->first) {
            post_send(e);
            take(e, 1, 0);
        }
    }
    /* The last message is acknowledged only while its receiver runs its engine. */
    atomic_fetch_add(&ended, 1);
    while (atomic_load(&ended) < threads) {
        CHECK(gdrc_progress(e->ctx));
        sched_yield();
    }
    return NULL;
}

static void open_end(struct end *e, gdrc_context *ctx, int first)
{
    gdrc_pd pd;
    gdrc_mr mr;
    e->ctx = ctx;
    e->first = first;
    e->attr.struct_size = sizeof e->attr;
    CHECK(gdrc_pd_alloc(ctx, &pd));
    if (way == ONE) {
        CHECK(gdrc_cq_create(ctx, 16, &e->cq, NULL));
    } else {
        CHECK(gdrc_channel_create(ctx, &e->channel));
        CHECK(gdrc_cq_create_on(ctx, 16, e->channel, &e->cq, NULL));
    }
    CHECK(
        gdrc_mr_reg(ctx, pd, e->memory, sizeof e->memory, GDRC_ACCESS_LOCAL_WRITE, &mr, &e->attr));
    struct gdrc_qp_init init = {
        .struct_size = sizeof init,
        .pd = pd,
        .send_cq = e->cq,
        .recv_cq = e->cq,
        .qp_type = GDRC_QPT_RC,
    };
    init.cap.max_send_wr = init.cap.max_recv_wr = 4;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    CHECK(gdrc_qp_create(ctx, &init, &e->qp, NULL));
    e->own.struct_size = sizeof e->own;
    CHECK(gdrc_endpoint_local(ctx, e->qp, &mr, &e->own));
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return fprintf(stderr, "sleep one|many|fd DEVICE DEVICE [helper]\n"), 2;
    way = !strcmp(argv[1], "one") ? ONE : !strcmp(argv[1], "many") ? MANY : FD;
    int pairs = way == ONE ? 1 : 2;
    gdrc_context *ctx[2];
    struct end end[2][2];
    pthread_t thread[2][2];
    memset(end, 0, sizeof end);
    for (int side = 0; side < 2; side++) {
        CHECK(gdrc_open(argv[2 + side], NULL, &ctx[side]));
        if (argc > 4)
            CHECK(gdrc_helper_start(ctx[side]));
        for (int i = 0; i < pairs; i++)
            open_end(&end[side][i], ctx[side], side == 0);
    }
    threads = 2 * pairs;
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < pairs; i++) {
            CHECK(gdrc_qp_connect(ctx[side], end[side][i].qp, &end[side][i].own, &end[!side][i].own,
                                  NULL));
            post_recv(&end[side][i]);
        }
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < pairs; i++)
            pthread_create(&thread[side][i], NULL, run, &end[side][i]);
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < pairs; i++)
            pthread_join(thread[side][i], NULL);
    /* Without messages no thread may run: all sleep, by their recipe, until the process ends. */
    for (int side = 0; side < 2; side++)
        for (int i = 0; i < pairs; i++)
            pthread_create(&thread[side][i], NULL, run, (end[side][i].first = 0, &end[side][i]));
    struct rusage before, after;
    usleep(300 * 1000);
    getrusage(RUSAGE_SELF, &before);
    sleep(2);
    getrusage(RUSAGE_SELF, &after);
    double cpu = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) +
                 (double)(after.ru_stime.tv_sec - before.ru_stime.tv_sec) +
                 1e-6 * (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec) +
                 1e-6 * (double)(after.ru_stime.tv_usec - before.ru_stime.tv_usec);
    printf("%d messages each way, %.0f ms of CPU time in two seconds of sleep\n", pairs * ROUNDS,
           1e3 * cpu);
    fflush(stdout);
    _exit(cpu > 0.1);
}

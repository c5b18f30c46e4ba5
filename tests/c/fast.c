/*
 * fast DEVICE: fast handles of queue pairs and CQs on a device of any kind: what they do, and what
 * they refuse. C11 and C++11. Prints "ok".
 */
#include <errno.h>
#include <gdrcore.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "checked.h"

#define DEPTH 16

/* Whole pages: pages of a region on a NIC are missing in a child. */
static unsigned char memory[8192] __attribute__((aligned(4096)));

static gdrc_context *ctx;
static gdrc_pd pd;
static gdrc_cq cq;
static gdrc_mr mr;
static struct gdrc_mr_attr region;
static int is_nic;

static gdrc_qp make(uint32_t type)
{
    struct gdrc_qp_init init;
    gdrc_qp qp;
    memset(&init, 0, sizeof init);
    init.struct_size = sizeof init;
    init.qp_type = type;
    init.pd = pd;
    init.send_cq = init.recv_cq = cq;
    init.cap.max_send_wr = init.cap.max_recv_wr = DEPTH;
    init.cap.max_send_sge = init.cap.max_recv_sge = 2;
    init.cap.max_inline_data = 16;
    MUST(gdrc_qp_create(ctx, &init, &qp, NULL) == 0);
    return qp;
}

static void join(gdrc_qp a, gdrc_qp b)
{
    struct gdrc_endpoint x, y;
    memset(&x, 0, sizeof x);
    memset(&y, 0, sizeof y);
    x.struct_size = y.struct_size = sizeof x;
    MUST(gdrc_endpoint_local(ctx, a, &mr, &x) == 0 && gdrc_endpoint_local(ctx, b, &mr, &y) == 0);
    MUST(gdrc_qp_connect(ctx, a, &x, &y, NULL) == 0 && gdrc_qp_connect(ctx, b, &y, &x, NULL) == 0);
}

static gdrc_sge piece(size_t at, uint32_t length)
{
    gdrc_sge s;
    s.addr = region.iova + at;
    s.length = length;
    s.lkey = region.lkey;
    return s;
}

/* A signalled WRITE of one entry to `to`. */
static gdrc_send_wr write_to(gdrc_sge *from, size_t to)
{
    gdrc_send_wr wr;
    memset(&wr, 0, sizeof wr);
    wr.wr_id = 7;
    wr.sg_list = from;
    wr.num_sge = 1;
    wr.opcode = GDRC_WR_RDMA_WRITE;
    wr.send_flags = GDRC_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = region.iova + to;
    wr.wr.rdma.rkey = region.rkey;
    return wr;
}

static int later(const struct timespec *begin, long ms)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - begin->tv_sec) * 1000 + (now.tv_nsec - begin->tv_nsec) / 1000000 >= ms;
}

/*
 * Polls for `want` completions, `room` at a time; *last receives the last one. Status 0 requires
 * that all succeeded.
 */
static void take(gdrc_cq_fast *fast, int want, int room, gdrc_wc *last, int succeed)
{
    struct timespec begin;
    gdrc_wc wc[DEPTH];
    int got = 0;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while (got < want) {
        int n = gdrc_cq_fast_poll(fast, room, wc);
        MUST(n >= 0 && n <= room);
        must_be_soon(&begin);
        for (int i = 0; i < n; i++)
            MUST(!succeed || wc[i].status == GDRC_WC_SUCCESS);
        if (n > 0)
            *last = wc[n - 1];
        got += n;
    }
    MUST(got == want);
}

/* Polls until nothing has come for a while; returns the number of completions. */
static int drain(gdrc_cq_fast *fast)
{
    struct timespec begin;
    gdrc_wc wc[DEPTH];
    int got = 0;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while (!later(&begin, 300)) {
        int n = gdrc_cq_fast_poll(fast, DEPTH, wc);
        MUST(n >= 0);
        if (n > 0)
            clock_gettime(CLOCK_MONOTONIC, &begin);
        got += n;
    }
    return got;
}

/* All three calls by handles that were released, or belong to a parent. */
static void refused(gdrc_qp_fast *qp, gdrc_cq_fast *of, int words)
{
    gdrc_sge s = piece(0, 8);
    gdrc_send_wr wr = write_to(&s, 4096);
    const gdrc_send_wr *bad = NULL;
    gdrc_recv_wr rx;
    const gdrc_recv_wr *worse = NULL;
    gdrc_wc wc[2];
    memset(&rx, 0, sizeof rx);
    rx.sg_list = &s;
    rx.num_sge = 1;
    MUST(gdrc_qp_fast_post_send(qp, &wr, &bad) == words && bad == &wr);
    MUST(gdrc_qp_fast_post_send(qp, &wr, NULL) == words);
    wr.num_sge = 0;
    MUST(gdrc_qp_fast_post_send(qp, &wr, &bad) == words);
    MUST(gdrc_qp_fast_post_recv(qp, &rx, &worse) == words && worse == &rx);
    MUST(gdrc_cq_fast_poll(of, 1, wc) == words && gdrc_cq_fast_poll(of, 2, wc) == words);
}

static void traffic(gdrc_qp a, gdrc_qp b)
{
    gdrc_qp_fast *pa, *pb;
    gdrc_cq_fast *pc;
    gdrc_sge s = piece(0, 8), t = piece(4096, 64), two[2] = {piece(0, 8), piece(64, 8)};
    gdrc_send_wr wr = write_to(&s, 4096), list[DEPTH];
    const gdrc_send_wr *bad = NULL;
    gdrc_recv_wr rx, many[3];
    const gdrc_recv_wr *worse = NULL;
    gdrc_wc wc;

    MUST(gdrc_qp_fast_get(ctx, a, &pa) == 0 && gdrc_qp_fast_get(ctx, b, &pb) == 0 &&
         gdrc_cq_fast_get(ctx, cq, &pc) == 0);
    for (int i = 1; i < 100; i++) {
        memory[0] = (unsigned char)i;
        MUST(gdrc_qp_fast_post_send(pa, &wr, &bad) == 0 && bad == NULL);
        take(pc, 1, i % 3 + 1, &wc, 1);
        MUST(wc.wr_id == 7 && wc.opcode == GDRC_WC_OP_RDMA_WRITE && memory[4096] == i);
    }
    /* Two entries, no entry, inline data. */
    wr.sg_list = two;
    wr.num_sge = 2;
    memory[64] = 0x55;
    MUST(gdrc_qp_fast_post_send(pa, &wr, &bad) == 0);
    take(pc, 1, 1, &wc, 1);
    MUST(memory[4096 + 8] == 0x55);
    wr.num_sge = 0;
    MUST(gdrc_qp_fast_post_send(pa, &wr, &bad) == 0);
    take(pc, 1, 1, &wc, 1);
    wr.sg_list = &s;
    wr.num_sge = 1;
    wr.send_flags |= GDRC_SEND_INLINE;
    s.addr = (uint64_t)(uintptr_t)&wr.wr_id;
    MUST(gdrc_qp_fast_post_send(pa, &wr, &bad) == 0);
    take(pc, 1, 1, &wc, 1);
    MUST(memory[4096] == 7);
    s = piece(0, 8);
    wr = write_to(&s, 4096);

    /* A list, then a circular one, which ends where the queue is full. */
    for (int i = 0; i < DEPTH; i++) {
        list[i] = write_to(&s, 4096);
        list[i].next = i + 1 < DEPTH ? &list[i + 1] : NULL;
    }
    MUST(gdrc_qp_fast_post_send(pa, list, &bad) == 0 && bad == NULL);
    take(pc, DEPTH, DEPTH, &wc, 1);
    list[DEPTH - 1].next = list;
    int rc = gdrc_qp_fast_post_send(pa, list, &bad);
    MUST(rc == -EAGAIN && bad >= list && bad < list + DEPTH);
    /* As many requests as the queue has room for. */
    int posted = bad == list ? DEPTH : (int)(bad - list);
    take(pc, posted, DEPTH, &wc, 1);
    MUST(drain(pc) == 0);
    /* An invalid request in the middle: those before it are posted. */
    list[DEPTH - 1].next = NULL;
    list[3].num_sge = 77;
    MUST(gdrc_qp_fast_post_send(pa, list, &bad) == -EINVAL && bad == &list[3]);
    take(pc, 3, DEPTH, &wc, 1);
    list[3].num_sge = 1;
    list[3].opcode = 13;
    MUST(gdrc_qp_fast_post_send(pa, list, &bad) == -EINVAL && bad == &list[3]);
    take(pc, 3, DEPTH, &wc, 1);

    /* One invalid field at a time. */
    const int pieces[] = {3, 1000, -1, -2147483647 - 1};
    /* A NIC's provider may read as many entries as the request names before it refuses them. */
    for (size_t i = 0; !is_nic && i < sizeof pieces / sizeof *pieces; i++) {
        wr.num_sge = pieces[i];
        bad = NULL;
        MUST(gdrc_qp_fast_post_send(pa, &wr, &bad) == -EINVAL && bad == &wr);
    }
    wr.num_sge = 1;
    wr.sg_list = NULL;
    MUST(is_nic || gdrc_qp_fast_post_send(pa, &wr, &bad) == -EINVAL);
    wr.sg_list = &s;
    wr.opcode = 99;
    MUST(gdrc_qp_fast_post_send(pa, &wr, &bad) == -EINVAL);
    /*
     * A window and a region that do not exist; a NIC's provider would dereference them. The soft
     * device reports them in a completion.
     */
    wr.opcode = GDRC_WR_BIND_MW;
    wr.ext.bind_mw.mw.handle = 0x4141414141414141;
    wr.ext.bind_mw.bind_info.mr.handle = 0x4242424242424242;
    for (int n = 0; is_nic && n < 2; n++) {
        wr.num_sge = n;
        MUST(gdrc_qp_fast_post_send(pa, &wr, &bad) == -EINVAL && bad == &wr);
        wr.sg_list = n ? NULL : &s;
        MUST(gdrc_qp_fast_post_send(pa, &wr, &bad) == -EINVAL);
        wr.sg_list = &s;
    }

    MUST(gdrc_cq_fast_poll(pc, 0, &wc) == 0 && gdrc_cq_fast_poll(pc, 1, &wc) == 0);

    /* Receives: one, a list, one with too many entries, a circular list. */
    memset(&rx, 0, sizeof rx);
    rx.wr_id = 9;
    rx.sg_list = &t;
    rx.num_sge = 1;
    MUST(gdrc_qp_fast_post_recv(pb, &rx, &worse) == 0 && worse == NULL);
    for (int i = 0; i < 3; i++) {
        many[i] = rx;
        many[i].next = i < 2 ? &many[i + 1] : NULL;
    }
    MUST(gdrc_qp_fast_post_recv(pb, many, &worse) == 0 && worse == NULL &&
         gdrc_qp_fast_post_recv(pb, &rx, &worse) == 0);
    rx.num_sge = 3;
    MUST(gdrc_qp_fast_post_recv(pb, &rx, &worse) == -EINVAL && worse == &rx);
    rx.num_sge = -1;
    MUST(gdrc_qp_fast_post_recv(pb, &rx, &worse) == -EINVAL && worse == &rx);
    rx.num_sge = 1;
    rx.sg_list = NULL;
    MUST(gdrc_qp_fast_post_recv(pb, &rx, &worse) == -EINVAL && worse == &rx);
    wr = write_to(&s, 0);
    wr.opcode = GDRC_WR_SEND;
    memory[0] = 0x77;
    for (int i = 0; i < 5; i++) {
        MUST(gdrc_qp_fast_post_send(pa, &wr, &bad) == 0);
        take(pc, 2, 2, &wc, 1);
        MUST(memory[4096] == 0x77);
    }
    rx.sg_list = &t;
    rx.next = &rx;
    MUST(gdrc_qp_fast_post_recv(pb, &rx, &worse) == -EAGAIN && worse == &rx);

    /* A full queue returns -EAGAIN and names the request. */
    wr = write_to(&s, 4096);
    int full = 0;
    for (posted = 0; posted < 500 && !full; posted += !full)
        full = gdrc_qp_fast_post_send(pa, &wr, &bad);
    MUST(full == 0 || (full == -EAGAIN && bad == &wr));
    take(pc, posted, DEPTH, &wc, 1);

    /* An invalid key: the completion reports it, and the cause is recorded. */
    struct gdrc_cause cause;
    wr.wr.rdma.rkey ^= 0x5a5a00;
    MUST(gdrc_qp_fast_post_send(pa, &wr, &bad) == 0);
    do
        take(pc, 1, 1, &wc, 0); /* the receives of the other end are flushed, too */
    while (wc.wr_id == 9);
    MUST(wc.status == GDRC_WC_REM_ACCESS_ERR && wc.wr_id == 7 && wc.vendor_err != 0);
    MUST(gdrc_qp_cause(ctx, a, &cause) == 0 && cause.code == wc.vendor_err &&
         cause.wc_status == wc.status);
    drain(pc);
    MUST(gdrc_qp_fast_put(pa) == 0 && gdrc_qp_fast_put(pb) == 0 && gdrc_cq_fast_put(pc) == 0);
    refused(pa, pc, -EINVAL);
    refused(pb, pc, -EINVAL);
}

/* Address handles are the library's own, so UD requests are not passed on to a provider. */
static void datagrams(void)
{
    gdrc_qp qp = make(GDRC_QPT_UD);
    gdrc_qp_fast *fast;
    gdrc_sge s = piece(0, 8);
    gdrc_send_wr wr = write_to(&s, 0);
    const gdrc_send_wr *bad = NULL;
    struct gdrc_endpoint self;
    memset(&self, 0, sizeof self);
    self.struct_size = sizeof self;
    self.qkey = 0x11;
    MUST(gdrc_endpoint_local(ctx, qp, NULL, &self) == 0);
    MUST(gdrc_qp_connect(ctx, qp, &self, NULL, NULL) == 0 ||
         gdrc_qp_connect(ctx, qp, &self, &self, NULL) == 0);
    MUST(gdrc_qp_fast_get(ctx, qp, &fast) == 0);
    memset(&wr.wr, 0x41, sizeof wr.wr);
    for (int opcode = 0; opcode < 16; opcode++) {
        for (int n = 0; n < 2; n++) {
            wr.opcode = (uint32_t)opcode;
            wr.num_sge = n;
            int rc = gdrc_qp_fast_post_send(fast, &wr, &bad);
            int is_send = opcode == GDRC_WR_SEND || opcode == GDRC_WR_SEND_WITH_IMM;
            /* The soft device reports in a completion that the handle does not exist. */
            MUST((rc == -EINVAL && bad == &wr) || (rc == 0 && is_send && !is_nic));
        }
    }
    MUST(gdrc_qp_destroy(ctx, qp) == -EBUSY && gdrc_qp_fast_put(fast) == 0 &&
         gdrc_qp_destroy(ctx, qp) == 0);
}

static void lives(gdrc_qp qp)
{
    gdrc_qp_fast *one, *two, *none = NULL;
    gdrc_cq_fast *of;
    gdrc_qp gone = make(GDRC_QPT_RC), foreign;
    static gdrc_qp_fast own_qp;
    static gdrc_cq_fast own_cq;

    MUST(gdrc_qp_fast_put(&own_qp) == -EINVAL && gdrc_cq_fast_put(&own_cq) == -EINVAL);
    MUST(gdrc_qp_destroy(ctx, gone) == 0);
    foreign.handle = cq.handle;
    MUST(gdrc_qp_fast_get(ctx, gone, &none) == -EINVAL &&
         gdrc_qp_fast_get(ctx, foreign, &none) == -EINVAL &&
         none == NULL);
    MUST(gdrc_qp_fast_get(NULL, qp, &none) == -EINVAL &&
         gdrc_qp_fast_get(ctx, qp, NULL) == -EINVAL);
    MUST(gdrc_cq_fast_get(ctx, cq, NULL) == -EINVAL && gdrc_qp_fast_put(NULL) == -EINVAL &&
         gdrc_cq_fast_put(NULL) == -EINVAL);

    MUST(gdrc_qp_fast_get(ctx, qp, &one) == 0 && gdrc_qp_fast_get(ctx, qp, &two) == 0 &&
         gdrc_cq_fast_get(ctx, cq, &of) == 0);
    MUST(gdrc_qp_fast_put((gdrc_qp_fast *)((char *)one + 8)) == -EINVAL &&
         gdrc_qp_fast_put(one - 100000) == -EINVAL);
    MUST(gdrc_cq_fast_put((gdrc_cq_fast *)(void *)one) == -EINVAL);
    MUST(gdrc_qp_destroy(ctx, qp) == -EBUSY && gdrc_qp_fast_put(one) == 0 &&
         gdrc_qp_fast_put(one) == -EINVAL);
    gdrc_cq_fast *gone_of;
    MUST(gdrc_cq_fast_get(ctx, cq, &gone_of) == 0 && gdrc_cq_fast_put(gone_of) == 0);
    refused(one, gone_of, -EINVAL);
    MUST(gdrc_qp_destroy(ctx, qp) == -EBUSY && gdrc_cq_destroy(ctx, cq) == -EBUSY);
    MUST(gdrc_qp_fast_put(two) == 0 && gdrc_cq_fast_put(of) == 0 &&
         gdrc_cq_fast_put(of) == -EINVAL);
    MUST(gdrc_qp_destroy(ctx, qp) == 0);

    /* The fast handle of a CQ without queue pairs. */
    gdrc_cq alone;
    MUST(gdrc_cq_create(ctx, 16, &alone, NULL) == 0 && gdrc_cq_fast_get(ctx, alone, &of) == 0);
    MUST(gdrc_cq_destroy(ctx, alone) == -EBUSY && gdrc_cq_fast_put(of) == 0 &&
         gdrc_cq_destroy(ctx, alone) == 0);
}

/* More handles than the first part of the library's table holds: all of them work. */
static void many(gdrc_qp qp, const gdrc_send_wr *wr)
{
    enum { HANDLES = 5000 };
    static gdrc_qp_fast *handles[HANDLES];
    const gdrc_send_wr *bad;
    gdrc_cq_fast *of;
    gdrc_wc wc;
    MUST(gdrc_cq_fast_get(ctx, cq, &of) == 0);
    drain(of); /* completions of earlier tests */
    for (int i = 0; i < HANDLES; i++)
        MUST(gdrc_qp_fast_get(ctx, qp, &handles[i]) == 0);
    for (int i = 0; i < HANDLES; i += 1000) {
        MUST(gdrc_qp_fast_post_send(handles[i], wr, &bad) == 0);
        take(of, 1, 1, &wc, 1);
    }
    for (int i = 0; i < HANDLES; i++)
        MUST(gdrc_qp_fast_put(handles[i]) == 0);
    for (int i = 0; i < HANDLES; i++)
        MUST(gdrc_qp_fast_put(handles[i]) == -EINVAL);
    MUST(gdrc_cq_fast_put(of) == 0);
}

static void child(gdrc_qp qp)
{
    gdrc_qp_fast *fast;
    gdrc_cq_fast *of;
    int status;
    MUST(gdrc_qp_fast_get(ctx, qp, &fast) == 0 && gdrc_cq_fast_get(ctx, cq, &of) == 0);
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0) {
        refused(fast, of, -EOWNERDEAD);
        MUST(gdrc_qp_fast_put(fast) == -EOWNERDEAD && gdrc_cq_fast_put(of) == -EOWNERDEAD);
        /*
         * A child may open contexts and handles of its own; those of its parent stay the parent's.
         */
        gdrc_context *own;
        gdrc_cq cq_own;
        gdrc_cq_fast *own_fast;
        gdrc_wc wc;
        MUST(gdrc_open("loopback", NULL, &own) == 0 && gdrc_cq_create(own, 4, &cq_own, NULL) == 0);
        MUST(gdrc_cq_fast_get(own, cq_own, &own_fast) == 0 && own_fast != of &&
             gdrc_cq_fast_poll(own_fast, 1, &wc) == 0);
        MUST(gdrc_close(own, NULL) == 1 && gdrc_cq_fast_poll(own_fast, 1, &wc) == -EINVAL);
        refused(fast, of, -EOWNERDEAD);
        _exit(0);
    }
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
    gdrc_sge s = piece(0, 8);
    gdrc_send_wr wr = write_to(&s, 4096);
    const gdrc_send_wr *bad = NULL;
    gdrc_wc wc;
    MUST(gdrc_qp_fast_post_send(fast, &wr, &bad) == 0);
    take(of, 1, 1, &wc, 1);
    MUST(gdrc_qp_fast_put(fast) == 0 && gdrc_cq_fast_put(of) == 0);
}

static gdrc_qp_fast *shared;

static void *posts(void *unused)
{
    gdrc_sge s = piece(0, 8);
    gdrc_send_wr wr = write_to(&s, 4096);
    const gdrc_send_wr *bad = NULL;
    for (int done = 0; done < 200;) {
        int rc = gdrc_qp_fast_post_send(shared, &wr, &bad);
        MUST(rc == 0 || rc == -EAGAIN || (rc == -EBUSY && !is_nic));
        done += rc == 0;
    }
    return unused;
}

/*
 * Two threads post by one handle: a NIC accepts both; on the soft device one of them may get EBUSY
 * or EAGAIN.
 */
static void threads(gdrc_qp qp)
{
    gdrc_cq_fast *of;
    pthread_t two[2];
    gdrc_wc wc;
    MUST(gdrc_qp_fast_get(ctx, qp, &shared) == 0 && gdrc_cq_fast_get(ctx, cq, &of) == 0);
    for (int i = 0; i < 2; i++)
        MUST(pthread_create(&two[i], NULL, posts, NULL) == 0);
    /* Meanwhile attempts to destroy the queue pair must fail. */
    for (int i = 0; i < 50; i++)
        MUST(gdrc_qp_destroy(ctx, qp) == -EBUSY);
    take(of, 400, DEPTH, &wc, 1);
    for (int i = 0; i < 2; i++)
        MUST(pthread_join(two[i], NULL) == 0);
    MUST(gdrc_qp_fast_put(shared) == 0 && gdrc_cq_fast_put(of) == 0);
}

/* A thread before this one: of several engines this one then has the second. */
static void *thread_before(void *arg)
{
    gdrc_cq first;
    MUST(gdrc_cq_create(ctx, 4, &first, NULL) == 0 && gdrc_cq_destroy(ctx, first) == 0);
    return arg;
}

int main(int argc, char **argv)
{
    pthread_t before;
    struct gdrc_config config;
    if (argc < 2)
        return 2;
    memset(&config, 0, sizeof config);
    config.struct_size = sizeof config;
    config.engines = argc > 2 ? (uint32_t)atoi(argv[2]) : 1;
    is_nic = !strncmp(argv[1], "verbs:", 6);
    MUST(gdrc_open(argv[1], &config, &ctx) == 0);
    MUST(pthread_create(&before, NULL, thread_before, NULL) == 0);
    MUST(pthread_join(before, NULL) == 0);
    memset(&region, 0, sizeof region);
    region.struct_size = sizeof region;
    /*
     * A NIC frees a slot before its completion is polled, and drops completions for which its CQ
     * has no room.
     */
    MUST(gdrc_pd_alloc(ctx, &pd) == 0 && gdrc_cq_create(ctx, 1024, &cq, NULL) == 0);
    uint32_t access = GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_WRITE;
    MUST(gdrc_mr_reg(ctx, pd, memory, sizeof memory, access, &mr, &region) == 0);

    const uint32_t types[] = {GDRC_QPT_RC, GDRC_QPT_UC};
    for (int i = 0; i < 2; i++) {
        gdrc_qp a = make(types[i]), b = make(types[i]);
        join(a, b);
        child(a);
        threads(a);
        if (types[i] == GDRC_QPT_RC)
            traffic(a, b);
        lives(a);
        MUST(gdrc_qp_destroy(ctx, b) == 0);
    }
    datagrams();
    gdrc_qp last = make(GDRC_QPT_RC);
    gdrc_qp other = make(GDRC_QPT_RC);
    join(last, other);
    gdrc_sge s = piece(0, 8);
    gdrc_send_wr wr = write_to(&s, 4096);
    many(last, &wr);
    MUST(gdrc_qp_destroy(ctx, other) == 0);

    /* Closing the context counts an object with a fast handle as leaked, and ends the handle. */
    gdrc_qp_fast *fast;
    gdrc_cq_fast *of;
    gdrc_leaks leaks;
    memset(&leaks, 0, sizeof leaks);
    leaks.struct_size = sizeof leaks;
    MUST(gdrc_qp_fast_get(ctx, last, &fast) == 0 && gdrc_cq_fast_get(ctx, cq, &of) == 0);
    MUST(gdrc_close(ctx, &leaks) == 4 && leaks.qp == 1 && leaks.cq == 1 && leaks.mr == 1 &&
         leaks.pd == 1);
    refused(fast, of, -EINVAL);
    MUST(gdrc_qp_fast_put(fast) == -EINVAL && gdrc_cq_fast_put(of) == -EINVAL);
    printf("ok\n");
    return 0;
}

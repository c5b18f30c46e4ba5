// Handles of objects as programs see them, on a device of several engines: the lowest free numbers
// of the process, of each kind, whichever thread makes them. Prints "ok".
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rc_pair.h"

#define THREADS 4
#define KINDS 7

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static char memory[4096];

// One object of each kind, made by one thread.
struct objects {
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    struct ibv_mw *mw;
    struct ibv_ah *ah;
    struct ibv_pd *pd;
};

static void make(struct objects *o) {
    union ibv_gid gid;
    CHECK(ibv_query_gid(ctx, 1, 0, &gid) == 0);
    CHECK((o->pd = ibv_alloc_pd(ctx)));
    CHECK((o->cq = ibv_create_cq(ctx, 16, NULL, NULL, 0)));
    struct ibv_srq_init_attr shared = {.attr = {.max_wr = 8, .max_sge = 1}};
    CHECK((o->srq = ibv_create_srq(o->pd, &shared)));
    o->qp = new_qp(o->pd, o->cq, IBV_QPT_RC, 4);
    CHECK((o->mr = ibv_reg_mr(o->pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)));
    CHECK((o->mw = ibv_alloc_mw(o->pd, IBV_MW_TYPE_2)));
    struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid}};
    CHECK((o->ah = ibv_create_ah(o->pd, &to)));
}

static void end(struct objects *o) {
    CHECK(ibv_destroy_ah(o->ah) == 0 && ibv_dealloc_mw(o->mw) == 0 && ibv_dereg_mr(o->mr) == 0);
    CHECK(ibv_destroy_qp(o->qp) == 0 && ibv_destroy_srq(o->srq) == 0);
    CHECK(ibv_destroy_cq(o->cq) == 0 && ibv_dealloc_pd(o->pd) == 0);
}

static void handles(const struct objects *o, uint32_t of[KINDS]) {
    uint32_t all[KINDS] = {o->pd->handle, o->cq->handle, o->srq->handle, o->qp->handle,
                           o->mr->handle, o->mw->handle, o->ah->handle};
    memcpy(of, all, sizeof all);
}

static void *worker(void *o) {
    make(o);
    return NULL;
}

// Makes the objects of `n` sets, each by a thread of its own.
static void make_by_threads(struct objects *sets, int n) {
    pthread_t threads[THREADS];
    for (int i = 0; i < n; i++)
        CHECK(pthread_create(&threads[i], NULL, worker, &sets[i]) == 0);
    for (int i = 0; i < n; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

// Each kind's handles are 0 to n - 1, except that there is one domain more, whose handle is 0.
static void expect_lowest(const struct objects *sets, int n) {
    for (int kind = 0; kind < KINDS; kind++) {
        uint32_t seen = kind == 0, all = (1u << (n + (kind == 0))) - 1;
        for (int i = 0; i < n; i++) {
            uint32_t of[KINDS];
            handles(&sets[i], of);
            CHECK(of[kind] < 31 && !(seen & 1u << of[kind]));
            seen |= 1u << of[kind];
        }
        CHECK(seen == all);
    }
}

// Another name of an object has that object's handle, by which it is found.
static void expect_names(struct objects *o) {
    struct ibv_parent_domain_init_attr parent = {.pd = o->pd};
    struct ibv_pd *other = ibv_alloc_parent_domain(ctx, &parent);
    CHECK(other && other->handle == o->pd->handle && ibv_dealloc_pd(other) == 0);
    CHECK((other = ibv_import_pd(ctx, o->pd->handle)) && other->handle == o->pd->handle);
    struct ibv_mr *mr = ibv_import_mr(other, o->mr->handle);
    CHECK(mr && mr->handle == o->mr->handle && mr->rkey == o->mr->rkey);
    ibv_unimport_mr(mr);
    ibv_unimport_pd(other);
    CHECK(!ibv_import_pd(ctx, 1000) && !ibv_import_mr(o->pd, 1000));
}

// In a child of fork numbers go on, and the child's objects have them.
static void expect_child(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        ctx = open_device();
        struct objects more;
        make(&more);
        uint32_t of[KINDS];
        handles(&more, of);
        for (int kind = 0; kind < KINDS; kind++)
            CHECK(of[kind] == THREADS + (kind == 0));
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

int main(void) {
    ctx = open_device();
    CHECK((pd = ibv_alloc_pd(ctx)) && pd->handle == 0);
    struct objects sets[THREADS];
    make_by_threads(sets, THREADS);
    expect_lowest(sets, THREADS);
    for (int i = 0; i < THREADS; i++)
        expect_names(&sets[i]);
    expect_child();
    // The lowest free numbers are given again.
    uint32_t were[KINDS], are[KINDS];
    handles(&sets[1], were);
    end(&sets[1]);
    make_by_threads(&sets[1], 1);
    handles(&sets[1], are);
    CHECK(memcmp(were, are, sizeof were) == 0);
    // What is left when its device closes is free.
    CHECK(ibv_close_device(ctx) == 0);
    ctx = open_device();
    CHECK((pd = ibv_alloc_pd(ctx)) && pd->handle == 0);
    make_by_threads(sets, THREADS);
    expect_lowest(sets, THREADS);
    puts("ok");
    return 0;
}

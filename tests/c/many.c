// The limits of a server: as many objects as ibv_query_device promises, on a device of one engine.
// Prints "ok", and with an argument how long it took and what memory.
#include <sys/resource.h>
#include <time.h>

#include "rc_pair.h"

#define DOMAINS 32768
#define REGIONS (1 << 20)
#define HANDLES 65536

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static char memory[4096];
static const char *verbose;

static void said(const char *what, int n) {
    struct timespec t;
    struct rusage u;
    clock_gettime(CLOCK_MONOTONIC, &t);
    getrusage(RUSAGE_SELF, &u);
    if (verbose)
        printf("%d %s: at %ld.%03ld s, %ld MiB\n", n, what, t.tv_sec % 1000,
               t.tv_nsec / 1000000, u.ru_maxrss >> 10);
}

static void domains(void) {
    static struct ibv_pd *all[DOMAINS];
    for (int i = 1; i < DOMAINS; i++)
        CHECK((all[i] = ibv_alloc_pd(ctx)) && all[i]->handle == (uint32_t)i);
    CHECK(!ibv_alloc_pd(ctx) && errno == ENOMEM);
    said("domains", DOMAINS);
    for (int i = 1; i < DOMAINS; i++)
        CHECK(ibv_dealloc_pd(all[i]) == 0);
}

static void address_handles(void) {
    static struct ibv_ah *all[HANDLES];
    struct ibv_ah_attr a = {.is_global = 1, .port_num = 1};
    CHECK(ibv_query_gid(ctx, 1, 0, &a.grh.dgid) == 0);
    for (int i = 0; i < HANDLES; i++)
        CHECK((all[i] = ibv_create_ah(pd, &a)));
    CHECK(!ibv_create_ah(pd, &a) && errno == ENOMEM);
    said("address handles", HANDLES);
    for (int i = 0; i < HANDLES; i++)
        CHECK(ibv_destroy_ah(all[i]) == 0);
}

// Regions and windows share their table. Some are written through.
static void regions(struct ibv_qp *qp, struct ibv_mr *from, int n) {
    struct ibv_mr **all = calloc(n, sizeof *all);
    struct ibv_mw **windows = calloc(HANDLES, sizeof *windows);
    CHECK(all && windows);
    for (int i = 0; i < HANDLES; i++)
        CHECK((windows[i] = ibv_alloc_mw(pd, IBV_MW_TYPE_2)));
    for (int i = 0; i < n; i++)
        CHECK((all[i] = ibv_reg_mr(pd, memory + i % 4088, 8, REMOTE)));
    CHECK(!ibv_reg_mr(pd, memory, 8, REMOTE) && errno == ENOMEM);
    said("regions, and 65536 windows", n);
    for (int i = 0; i < n; i += n / 1000 + 1) {
        uint64_t at = (uintptr_t)memory + i % 4088;
        CHECK(write_to(qp, from, 8, at, all[i]->rkey).status == IBV_WC_SUCCESS);
    }
    for (int i = 0; i < n; i++)
        CHECK(ibv_dereg_mr(all[i]) == 0);
    for (int i = 0; i < HANDLES; i++)
        CHECK(ibv_dealloc_mw(windows[i]) == 0);
    free(all);
    free(windows);
}

static void queue_pairs(struct ibv_cq *cq, int n) {
    struct ibv_qp **all = calloc(n, sizeof *all);
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    CHECK(all);
    for (int i = 0; i < n; i++)
        CHECK((all[i] = ibv_create_qp(pd, &init)));
    said("queue pairs", n);
    for (int i = 0; i < n; i++)
        CHECK(ibv_destroy_qp(all[i]) == 0);
    free(all);
}

int main(int argc, char **argv) {
    verbose = argc > 1 ? argv[1] : NULL;
    ctx = open_device();
    struct ibv_device_attr d;
    CHECK(ibv_query_device(ctx, &d) == 0);
    CHECK(d.max_mr == REGIONS && d.max_mw == REGIONS && d.max_pd == DOMAINS);
    CHECK(d.max_ah == HANDLES);
    CHECK((pd = ibv_alloc_pd(ctx)));
    struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    struct ibv_mr *from = ibv_reg_mr(pd, memory, 8, IBV_ACCESS_LOCAL_WRITE);
    CHECK(cq && qp && from);
    connect_qp(qp, qp->qp_num, 14);
    said("of each", 1);
    domains();
    address_handles();
    // One region is there already.
    regions(qp, from, REGIONS - HANDLES - 1);
    // One queue pair is there, too.
    queue_pairs(cq, d.max_qp - 1);
    puts("ok");
    return 0;
}

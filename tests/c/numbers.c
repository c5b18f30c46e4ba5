/*
 * numbers DEVICE COUNT PAIRS [PEER]: creates and destroys COUNT queue pairs that are never
 * connected, one after another, then PAIRS pairs that exchange a message, with one end on the
 * device PEER if it is given. None may fail for lack of a number. Prints "ok" and the times. C11.
 */
#include <gdrcore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MUST(x)                                                                           \
    do {                                                                                  \
        int e_ = (x);                                                                     \
        if (e_ < 0) {                                                                     \
            fprintf(stderr, "numbers.c:%d: %s: %s (made %lu, %lu pairs)\n", __LINE__, #x, \
                    gdrc_strerror(e_), made, pairs);                                      \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

static unsigned long made, pairs;
static char memory[128];

/* The objects that the queue pairs of one device need. */
struct side {
    gdrc_context *ctx;
    gdrc_pd pd;
    gdrc_cq cq;
    gdrc_mr mr;
    struct gdrc_mr_attr region;
};

static void open_side(struct side *s, const char *device)
{
    s->region.struct_size = sizeof s->region;
    MUST(gdrc_open(device, NULL, &s->ctx));
    MUST(gdrc_pd_alloc(s->ctx, &s->pd));
    MUST(gdrc_cq_create(s->ctx, 16, &s->cq, NULL));
    MUST(gdrc_mr_reg(s->ctx, s->pd, memory, sizeof memory,
                     GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_WRITE, &s->mr, &s->region));
}

static gdrc_qp make(const struct side *s, uint32_t type)
{
    struct gdrc_qp_init init = {
        .struct_size = sizeof init,
        .pd = s->pd,
        .send_cq = s->cq,
        .recv_cq = s->cq,
        .qp_type = type,
    };
    gdrc_qp qp;
    init.cap.max_send_wr = init.cap.max_recv_wr = 1;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    MUST(gdrc_qp_create(s->ctx, &init, &qp, NULL));
    return qp;
}

/* Two queue pairs; one writes to the other's memory. */
static void talk(struct side *const side[2])
{
    gdrc_qp qp[2];
    struct gdrc_endpoint end[2] = {{.struct_size = sizeof end[0]}, {.struct_size = sizeof end[1]}};
    gdrc_wc done;
    int n;
    for (int i = 0; i < 2; i++) {
        qp[i] = make(side[i], GDRC_QPT_RC);
        MUST(gdrc_endpoint_local(side[i]->ctx, qp[i], &side[i]->mr, &end[i]));
    }
    MUST(gdrc_qp_connect(side[0]->ctx, qp[0], &end[0], &end[1], NULL));
    MUST(gdrc_qp_connect(side[1]->ctx, qp[1], &end[1], &end[0], NULL));
    gdrc_sge piece = {.addr = (uintptr_t)memory, .length = 64, .lkey = side[0]->region.lkey};
    gdrc_send_wr write = {
        .sg_list = &piece,
        .num_sge = 1,
        .opcode = GDRC_WR_RDMA_WRITE,
        .send_flags = GDRC_SEND_SIGNALED,
    };
    write.wr.rdma.remote_addr = end[1].addr + 64;
    write.wr.rdma.rkey = end[1].rkey;
    memset(memory, (int)pairs, 64);
    MUST(gdrc_post_send(side[0]->ctx, qp[0], &write, NULL));
    while ((n = gdrc_poll_cq(side[0]->ctx, side[0]->cq, 1, &done)) == 0)
        MUST(gdrc_progress(side[1]->ctx));
    MUST(n);
    if (done.status != GDRC_WC_SUCCESS || memcmp(memory, memory + 64, 64) != 0) {
        fprintf(stderr, "pair %lu: %s\n", pairs, gdrc_wc_status_str(done.status));
        exit(1);
    }
    MUST(gdrc_qp_destroy(side[0]->ctx, qp[0]));
    MUST(gdrc_qp_destroy(side[1]->ctx, qp[1]));
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    if (argc != 4 && argc != 5) {
        fprintf(stderr, "usage: numbers DEVICE COUNT PAIRS [PEER]\n");
        return 2;
    }
    unsigned long count = strtoul(argv[2], NULL, 10), talks = strtoul(argv[3], NULL, 10);
    static struct side own, other;
    struct side *const side[2] = {&own, argc == 5 ? &other : &own};
    open_side(&own, argv[1]);
    if (argc == 5)
        open_side(&other, argv[4]);
    static const uint32_t types[3] = {GDRC_QPT_RC, GDRC_QPT_UC, GDRC_QPT_UD};
    double begin = seconds();
    for (; made < count; made++)
        MUST(gdrc_qp_destroy(own.ctx, make(&own, types[made % 3])));
    double between = seconds();
    for (; pairs < talks; pairs++)
        talk(side);
    double end = seconds();
    uint64_t values[256];
    unsigned long long early = 0;
    int counters = gdrc_counters(own.ctx, values, 256);
    MUST(counters);
    for (int i = 0; i < counters; i++)
        if (strcmp(gdrc_counter_name((uint32_t)i), "qpn_reused_early") == 0)
            early = values[i];
    printf("ok: %lu queue pairs in %.2f s; %lu connected pairs in %.2f s, %llu numbers used again "
           "before their time\n",
           made, between - begin, pairs, end - between, early);
    return gdrc_close(own.ctx, NULL) < 0 || (argc == 5 && gdrc_close(other.ctx, NULL) < 0);
}

/*
 * flush_and_words DEVICE: ATOMIC WRITE and FLUSH by the C API, in lists with other requests, by
 * checked calls and by fast handles: every byte and each opcode, bad requests, a full queue, a
 * reset. Prints "ok"; or "lacks" and the reasons, if the device has neither.
 */
#include <string.h>

#define HALF 8192
#include "halves.h"

enum { DEPTH = 16, RIGHTS = GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_WRITE };

static gdrc_qp qps[2];
static struct gdrc_endpoint ends[2];

static void connect_both(void)
{
    memset(ends, 0, sizeof ends);
    for (int i = 0; i < 2; i++) {
        ends[i].struct_size = sizeof ends[i];
        MUST(gdrc_endpoint_local(ctx, qps[i], NULL, &ends[i]) == 0);
    }
    for (int i = 0; i < 2; i++)
        MUST(gdrc_qp_connect(ctx, qps[i], &ends[i], &ends[!i], NULL) == 0);
}

static gdrc_send_wr flush(uint32_t placement, uint32_t level, uint64_t at, uint64_t length)
{
    gdrc_send_wr wr = request(GDRC_WR_FLUSH, NULL, 0, at);
    wr.wr.flush.remote_addr = region.iova + HALF + at;
    wr.wr.flush.rkey = region.rkey;
    wr.wr.flush.placement = placement;
    wr.wr.flush.length = length;
    wr.wr.flush.level = level;
    return wr;
}

static int post(gdrc_send_wr *wr, const gdrc_send_wr **bad)
{
    return gdrc_post_send(ctx, qps[0], wr, bad);
}

static void fill(unsigned seed)
{
    for (unsigned i = 0; i < HALF; i++)
        bytes[i] = (unsigned char)(seed * 101 + i * 7 + (i >> 8));
    memset(bytes + HALF, 0xee, HALF);
}

/* Whether the second half has these bytes of the first half, and nothing beside them. */
static void moved(unsigned at, unsigned from, unsigned length)
{
    MUST(memcmp(bytes + HALF + at, bytes + from, length) == 0);
    memset(bytes + HALF + at, 0xee, length);
}

static void untouched(void)
{
    for (unsigned i = 0; i < HALF; i++)
        MUST(bytes[HALF + i] == 0xee);
}

/* Lists in which requests of both ways of libibverbs take turns. */
static void of_lists(void)
{
    gdrc_sge word = piece(8, 8), long_one = piece(64, 5000), halves[2];
    gdrc_send_wr wr[12];
    const gdrc_send_wr *bad = NULL;
    fill(1);
    halves[0] = piece(16, 3);
    halves[1] = piece(19, 5);
    for (int k = 0; k < 12; k += 3) {
        uint64_t at = (uint64_t)k / 3 * 2000;
        long_one.length = 1900;
        wr[k] = request(GDRC_WR_RDMA_WRITE, &long_one, 1, at);
        wr[k + 1] = k % 2 ? request(GDRC_WR_ATOMIC_WRITE, halves, 2, at + 1912)
                          : request(GDRC_WR_ATOMIC_WRITE, &word, 1, at + 1912);
        wr[k + 2] = k % 2 ? flush(GDRC_FLUSH_GLOBAL, GDRC_FLUSH_RANGE, at, 1920)
                          : flush(GDRC_FLUSH_GLOBAL, GDRC_FLUSH_MR, at, 0);
    }
    for (int k = 0; k < 11; k++)
        wr[k].next = &wr[k + 1];
    MUST(post(wr, &bad) == 0);
    for (int k = 0; k < 12; k += 3) {
        succeeded(wr[k].wr_id, GDRC_WC_OP_RDMA_WRITE);
        succeeded(wr[k + 1].wr_id, GDRC_WC_OP_ATOMIC_WRITE);
        succeeded(wr[k + 2].wr_id, GDRC_WC_OP_FLUSH);
    }
    for (int k = 0; k < 12; k += 3) {
        unsigned at = (unsigned)k / 3 * 2000;
        moved(at, 64, 1900);
        moved(at + 1912, k % 2 ? 16 : 8, 8);
    }
    untouched();
}

/* The bytes of an ATOMIC WRITE are the program's again at return. */
static void of_fast_handles(void)
{
    gdrc_qp_fast *fast;
    gdrc_sge word = piece(0, 8);
    gdrc_send_wr wr = request(GDRC_WR_ATOMIC_WRITE, &word, 1, 24);
    const gdrc_send_wr *bad = NULL;
    fill(2);
    unsigned char want[8];
    memcpy(want, bytes, 8);
    MUST(gdrc_qp_fast_get(ctx, qps[0], &fast) == 0);
    MUST(gdrc_qp_fast_post_send(fast, &wr, &bad) == 0);
    memset(bytes, 0, 8);
    succeeded(24, GDRC_WC_OP_ATOMIC_WRITE);
    MUST(memcmp(bytes + HALF + 24, want, 8) == 0);
    /* One that is not signalled has no completion; inline is what it is anyway. */
    wr.send_flags = GDRC_SEND_INLINE;
    wr.wr.rdma.remote_addr += 8;
    memcpy(bytes, want, 8);
    MUST(gdrc_qp_fast_post_send(fast, &wr, &bad) == 0);
    wr = flush(GDRC_FLUSH_GLOBAL, GDRC_FLUSH_RANGE, 32, 0);
    wr.send_flags |= GDRC_SEND_FENCE;
    MUST(gdrc_qp_fast_post_send(fast, &wr, &bad) == 0);
    succeeded(32, GDRC_WC_OP_FLUSH);
    MUST(memcmp(bytes + HALF + 32, want, 8) == 0);
    MUST(gdrc_qp_fast_put(fast) == 0);
}

/* What the post refuses, with what is before it posted. */
static void of_bad_requests(void)
{
    gdrc_sge word = piece(0, 8), seven = piece(0, 7);
    gdrc_send_wr good = request(GDRC_WR_ATOMIC_WRITE, &word, 1, 0);
    gdrc_send_wr wrong[] = {
        request(GDRC_WR_ATOMIC_WRITE, &seven, 1, 0),
        request(GDRC_WR_ATOMIC_WRITE, NULL, 0, 0),
        request(GDRC_WR_ATOMIC_WRITE, NULL, 1, 0),
        flush(0, GDRC_FLUSH_RANGE, 0, 8),
        flush(4, GDRC_FLUSH_RANGE, 0, 8),
        flush(0x101, GDRC_FLUSH_RANGE, 0, 8),
        flush(GDRC_FLUSH_GLOBAL, 2, 0, 8),
        flush(GDRC_FLUSH_GLOBAL, 0x100, 0, 8),
    };
    fill(3);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const gdrc_send_wr *bad = NULL;
        good.next = &wrong[i];
        MUST(post(&good, &bad) == -EINVAL && bad == &wrong[i]);
        MUST(strlen(why()) > 0);
        succeeded(0, GDRC_WC_OP_ATOMIC_WRITE);
        moved(0, 0, 8);
        untouched();
    }
}

/* Until the queue is full: the first request that was not posted is posted next. */
static void of_a_full_queue(uint32_t depth)
{
    gdrc_send_wr *wr = calloc(2 * depth, sizeof *wr);
    const gdrc_send_wr *at = wr;
    uint32_t ended = 0;
    MUST(wr);
    for (uint32_t k = 0; k < 2 * depth; k++) {
        wr[k] = flush(GDRC_FLUSH_GLOBAL, GDRC_FLUSH_RANGE, 0, 8);
        wr[k].wr_id = k;
        wr[k].next = k + 1 < 2 * depth ? &wr[k + 1] : NULL;
    }
    int rc = gdrc_post_send(ctx, qps[0], at, &at);
    MUST(rc == -EAGAIN && at > wr && at <= wr + depth);
    while (ended < 2 * depth) {
        succeeded(ended++, GDRC_WC_OP_FLUSH);
        if (rc == -EAGAIN) {
            rc = gdrc_post_send(ctx, qps[0], at, &at);
            MUST(rc == 0 || rc == -EAGAIN);
        }
    }
    MUST(rc == 0);
    free(wr);
}

/*
 * A FLUSH of a type that the region does not permit, or the peer's queue pair where the device does
 * not know the type, ends the queue pair; a reset revives it.
 */
static void of_refusals_by_the_peer(void)
{
    gdrc_sge word = piece(0, 8);
    gdrc_send_wr wr = flush(GDRC_FLUSH_PERSISTENT, GDRC_FLUSH_RANGE, 0, 8);
    const gdrc_send_wr *bad = NULL;
    MUST(post(&wr, &bad) == 0);
    uint32_t status = next_wc(ctx, cq).status;
    MUST(status == GDRC_WC_REM_ACCESS_ERR || status == GDRC_WC_REM_INV_REQ_ERR);
    for (int i = 0; i < 2; i++)
        reset_qp(ctx, qps[i], cq);
    connect_both();
    fill(4);
    wr = request(GDRC_WR_ATOMIC_WRITE, &word, 1, 80);
    MUST(post(&wr, &bad) == 0);
    succeeded(80, GDRC_WC_OP_ATOMIC_WRITE);
    moved(80, 0, 8);
    untouched();
}

/* What a device without both says. */
static int lacks(void)
{
    gdrc_sge word = piece(0, 8);
    gdrc_send_wr wr[2];
    struct gdrc_mr_attr of = { .struct_size = sizeof of };
    gdrc_mr no;
    wr[0] = request(GDRC_WR_ATOMIC_WRITE, &word, 1, 0);
    wr[1] = flush(GDRC_FLUSH_GLOBAL, GDRC_FLUSH_RANGE, 0, 8);
    puts("lacks");
    for (int k = 0; k < 2; k++) {
        const gdrc_send_wr *bad = NULL;
        MUST(post(&wr[k], &bad) == -EOPNOTSUPP && bad == &wr[k]);
        puts(why());
    }
    MUST(gdrc_mr_reg(ctx, pd, bytes, sizeof bytes, RIGHTS | GDRC_ACCESS_FLUSH_GLOBAL, &no, &of) ==
         -EOPNOTSUPP);
    puts(why());
    return 0;
}

int main(int argc, char **argv)
{
    struct gdrc_qp_init init;
    MUST(argc == 2 && gdrc_open(argv[1], NULL, &ctx) == 0);
    MUST(gdrc_pd_alloc(ctx, &pd) == 0 && gdrc_cq_create(ctx, 256, &cq, NULL) == 0);
    region.struct_size = sizeof region;
    int rc = gdrc_mr_reg(ctx, pd, bytes, sizeof bytes, RIGHTS | GDRC_ACCESS_FLUSH_GLOBAL, &mr,
                         &region);
    int has = rc != -EOPNOTSUPP;
    MUST(rc == 0 ||
         (!has && gdrc_mr_reg(ctx, pd, bytes, sizeof bytes, RIGHTS, &mr, &region) == 0));
    memset(&init, 0, sizeof init);
    init.struct_size = sizeof init;
    init.qp_type = GDRC_QPT_RC;
    init.pd = pd;
    init.send_cq = init.recv_cq = cq;
    init.cap.max_send_wr = DEPTH;
    init.cap.max_recv_wr = init.cap.max_recv_sge = 1;
    init.cap.max_send_sge = 2;
    for (int i = 0; i < 2; i++)
        MUST(gdrc_qp_create(ctx, &init, &qps[i], NULL) == 0);
    connect_both();
    if (!has)
        return lacks();
    /* Devices with both have on-demand paging, too. */
    struct gdrc_mr_attr paged = { .struct_size = sizeof paged };
    gdrc_mr on_demand;
    MUST(gdrc_mr_reg(ctx, pd, bytes, sizeof bytes, RIGHTS | GDRC_ACCESS_ON_DEMAND, &on_demand,
                     &paged) == 0 &&
         gdrc_mr_dereg(ctx, on_demand) == 0);
    of_lists();
    of_fast_handles();
    of_bad_requests();
    of_a_full_queue(init.cap.max_send_wr);
    of_refusals_by_the_peer();
    for (int i = 0; i < 2; i++)
        MUST(gdrc_qp_destroy(ctx, qps[i]) == 0);
    MUST(gdrc_mr_dereg(ctx, mr) == 0 && gdrc_cq_destroy(ctx, cq) == 0);
    MUST(gdrc_pd_dealloc(ctx, pd) == 0 && gdrc_close(ctx, NULL) == 0);
    puts("ok");
    return 0;
}

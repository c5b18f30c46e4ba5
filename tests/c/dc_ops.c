/*
 * dc_ops DEVICE: each operation of DC by the C API, within a device of any kind: to two targets in
 * one list, by checked calls and by fast handles; completions, wrong requests, errors, resets. With
 * "lacks" behind it: the device has no DC; prints why. Prints "ok".
 */
#include <string.h>

#define HALF 16384
#include "halves.h"

enum { DEPTH = 16, RIGHTS = GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_WRITE |
                                          GDRC_ACCESS_REMOTE_READ | GDRC_ACCESS_REMOTE_ATOMIC };
#define KEY_A 0x1111ull
#define KEY_B 0x2222333344445555ull

static gdrc_cq recv_cq;
static gdrc_srq srq;
static gdrc_ah ah;
static gdrc_qp dci, dct_a, dct_b;
static struct gdrc_endpoint of_dci, of_a, of_b;

static int made(uint32_t type, uint64_t key, gdrc_qp *out)
{
    struct gdrc_qp_init init;
    memset(&init, 0, sizeof init);
    init.struct_size = sizeof init;
    init.qp_type = type;
    init.pd = pd;
    if (type == GDRC_QPT_DCI) {
        init.send_cq = cq;
        init.cap.max_send_wr = DEPTH;
        init.cap.max_send_sge = 2;
        init.cap.max_inline_data = 64;
    } else {
        init.recv_cq = recv_cq;
        init.srq = srq;
        init.dc_key = key;
    }
    return gdrc_qp_create(ctx, &init, out, NULL);
}

static void started(gdrc_qp qp, struct gdrc_endpoint *end)
{
    memset(end, 0, sizeof *end);
    end->struct_size = sizeof *end;
    MUST(gdrc_endpoint_local(ctx, qp, NULL, end) == 0);
    MUST(gdrc_qp_connect(ctx, qp, end, NULL, NULL) == 0);
    MUST(gdrc_endpoint_local(ctx, qp, NULL, end) == 0 && end->qpn != 0);
}

/* A request to a target; `at` counts in the second half. */
static gdrc_send_wr request_to(uint32_t opcode, gdrc_sge *list, int n, uint64_t at, int to_b)
{
    gdrc_send_wr wr = request(opcode, list, n, at);
    wr.ext.dc.ah = ah;
    wr.ext.dc.dctn = to_b ? of_b.qpn : of_a.qpn;
    wr.ext.dc.dc_key = to_b ? KEY_B : KEY_A;
    return wr;
}

static int post(gdrc_send_wr *wr)
{
    const gdrc_send_wr *bad = NULL;
    int rc = gdrc_post_send(ctx, dci, wr, &bad);
    MUST(rc == 0 || bad == wr);
    return rc;
}

static void succeeded_of_dci(uint64_t id, uint32_t opcode)
{
    MUST(succeeded(id, opcode).qp_num == of_dci.qpn);
}

static gdrc_wc received(uint32_t dctn, uint32_t opcode, uint32_t length)
{
    gdrc_wc wc = next_wc(ctx, recv_cq);
    MUST(wc.status == GDRC_WC_SUCCESS && wc.opcode == opcode && wc.byte_len == length);
    MUST(wc.qp_num == dctn && wc.src_qp == of_dci.qpn);
    return wc;
}

static void receive(uint64_t id, unsigned at, uint32_t length)
{
    gdrc_sge s = piece(HALF + at, length);
    gdrc_recv_wr wr = { .wr_id = id, .sg_list = &s, .num_sge = 1 };
    const gdrc_recv_wr *bad;
    MUST(gdrc_post_srq_recv(ctx, srq, &wr, &bad) == 0);
}

static void fill(unsigned seed)
{
    for (unsigned i = 0; i < HALF; i++)
        bytes[i] = (unsigned char)(seed * 89 + i * 13 + (i >> 8));
    memset(bytes + HALF, 0xee, HALF);
}

static int same(unsigned at, unsigned from, unsigned length)
{
    return memcmp(bytes + HALF + at, bytes + from, length) == 0;
}

static void of_operations(void)
{
    gdrc_sge two[2] = { piece(0, 100), piece(100, 4900) }, one = piece(0, 8), all = piece(0, HALF);
    gdrc_send_wr wr[8];
    const gdrc_send_wr *bad;

    /* One list to both targets. */
    fill(1);
    receive(1, 0, 6000);
    receive(2, 6000, 6000);
    receive(3, 0, 0);
    wr[0] = request_to(GDRC_WR_SEND, two, 2, 0, 0);
    wr[1] = request_to(GDRC_WR_SEND_WITH_IMM, two, 2, 1, 1);
    wr[1].imm_data = 0x01020304;
    wr[2] = request_to(GDRC_WR_RDMA_WRITE, two, 2, 12000 - 5000, 0);
    wr[2].wr.rdma.remote_addr = region.iova + HALF + 11000;
    wr[3] = request_to(GDRC_WR_RDMA_WRITE_WITH_IMM, &one, 1, 16000, 1);
    wr[3].imm_data = 7;
    for (int i = 0; i < 3; i++)
        wr[i].next = &wr[i + 1];
    MUST(gdrc_post_send(ctx, dci, wr, &bad) == 0);
    succeeded_of_dci(wr[0].wr_id, GDRC_WC_OP_SEND);
    succeeded_of_dci(wr[1].wr_id, GDRC_WC_OP_SEND);
    succeeded_of_dci(wr[2].wr_id, GDRC_WC_OP_RDMA_WRITE);
    succeeded_of_dci(wr[3].wr_id, GDRC_WC_OP_RDMA_WRITE);
    MUST(received(of_a.qpn, GDRC_WC_OP_RECV, 5000).wr_id == 1);
    gdrc_wc wc = received(of_b.qpn, GDRC_WC_OP_RECV, 5000);
    MUST(wc.wr_id == 2 && wc.imm_data == 0x01020304);
    MUST(received(of_b.qpn, GDRC_WC_OP_RECV_RDMA_WITH_IMM, 8).imm_data == 7);
    MUST(same(0, 0, 5000) && same(6000, 0, 5000) && same(11000, 0, 5000) && same(16000, 0, 8));
    for (unsigned i = 5000; i < 6000; i++)
        MUST(bytes[HALF + i] == 0xee);

    /* Every byte of a long WRITE, and back by a READ. */
    fill(2);
    wr[0] = request_to(GDRC_WR_RDMA_WRITE, &all, 1, 0, 0);
    MUST(post(wr) == 0);
    succeeded_of_dci(0, GDRC_WC_OP_RDMA_WRITE);
    MUST(same(0, 0, HALF));
    memset(bytes, 0, HALF);
    wr[0] = request_to(GDRC_WR_RDMA_READ, &all, 1, 0, 1);
    MUST(post(wr) == 0);
    succeeded_of_dci(0, GDRC_WC_OP_RDMA_READ);
    MUST(same(0, 0, HALF));

    /* Inline data, whose memory is free at return; a request without bytes. */
    unsigned char text[] = "inline data";
    gdrc_sge in[2] = { { .addr = (uintptr_t)text, .length = 6 },
                       { .addr = (uintptr_t)text + 6, .length = 5 } };
    for (int n = 1; n < 3; n++) {
        memset(bytes + HALF, 0, 64);
        wr[0] = request_to(GDRC_WR_RDMA_WRITE, in, n, 32, n & 1);
        wr[0].send_flags |= GDRC_SEND_INLINE;
        MUST(post(wr) == 0);
        succeeded_of_dci(32, GDRC_WC_OP_RDMA_WRITE);
        MUST(memcmp(bytes + HALF + 32, "inline data", n == 1 ? 6 : 11) == 0);
        MUST(bytes[HALF + 32 + (n == 1 ? 6 : 11)] == 0);
    }
    wr[0] = request_to(GDRC_WR_RDMA_WRITE, NULL, 0, 0, 0);
    MUST(post(wr) == 0);
    succeeded_of_dci(0, GDRC_WC_OP_RDMA_WRITE);

    /* Atomics. */
    uint64_t word = 40, seen;
    memcpy(bytes + HALF + 64, &word, 8);
    wr[0] = request_to(GDRC_WR_ATOMIC_FETCH_AND_ADD, &one, 1, 64, 0);
    wr[0].wr.atomic.remote_addr = region.iova + HALF + 64;
    wr[0].wr.atomic.rkey = region.rkey;
    wr[0].wr.atomic.compare_add = 2;
    MUST(post(wr) == 0);
    succeeded_of_dci(64, GDRC_WC_OP_FETCH_ADD);
    memcpy(&seen, bytes, 8);
    memcpy(&word, bytes + HALF + 64, 8);
    MUST(seen == 40 && word == 42);
    wr[0] = request_to(GDRC_WR_ATOMIC_CMP_AND_SWP, &one, 1, 64, 1);
    wr[0].wr.atomic.remote_addr = region.iova + HALF + 64;
    wr[0].wr.atomic.rkey = region.rkey;
    wr[0].wr.atomic.compare_add = 42;
    wr[0].wr.atomic.swap = 7;
    MUST(post(wr) == 0);
    succeeded_of_dci(64, GDRC_WC_OP_COMP_SWAP);
    memcpy(&seen, bytes, 8);
    memcpy(&word, bytes + HALF + 64, 8);
    MUST(seen == 42 && word == 7);
}

static void of_fast_handles(void)
{
    gdrc_qp_fast *fast;
    gdrc_sge one = piece(0, 64);
    gdrc_send_wr wr = request_to(GDRC_WR_RDMA_WRITE, &one, 1, 128, 1);
    const gdrc_send_wr *bad;
    fill(3);
    MUST(gdrc_qp_fast_get(ctx, dci, &fast) == 0);
    for (int i = 0; i < 4 * DEPTH; i++) {
        wr.ext.dc.dctn = i % 2 ? of_a.qpn : of_b.qpn;
        wr.ext.dc.dc_key = i % 2 ? KEY_A : KEY_B;
        MUST(gdrc_qp_fast_post_send(fast, &wr, &bad) == 0);
        succeeded_of_dci(128, GDRC_WC_OP_RDMA_WRITE);
    }
    MUST(same(128, 0, 64) && gdrc_qp_fast_put(fast) == 0);
}

/* Until the queue is full: the first request that was not posted is posted next. */
static void of_a_full_queue(void)
{
    struct gdrc_qp_attr attr = { .struct_size = sizeof attr };
    gdrc_sge one = piece(0, 8);
    gdrc_send_wr wr[4 * DEPTH];
    const gdrc_send_wr *at = wr;
    MUST(gdrc_qp_query(ctx, dci, &attr, NULL) == 0 && attr.cap.max_send_wr < 4 * DEPTH);
    for (int k = 0; k < 4 * DEPTH; k++) {
        wr[k] = request_to(GDRC_WR_RDMA_WRITE, &one, 1, 8u * k, k % 3 == 0);
        wr[k].next = k + 1 < 4 * DEPTH ? &wr[k + 1] : NULL;
    }
    int rc = gdrc_post_send(ctx, dci, at, &at);
    MUST(rc == -EAGAIN && at > wr && at <= wr + attr.cap.max_send_wr);
    for (int k = 0; k < 4 * DEPTH; k++) {
        succeeded_of_dci(8u * k, GDRC_WC_OP_RDMA_WRITE);
        if (rc == -EAGAIN) {
            rc = gdrc_post_send(ctx, dci, at, &at);
            MUST(rc == 0 || rc == -EAGAIN);
        }
    }
    MUST(rc == 0);
}

static void of_wrong_requests(void)
{
    gdrc_sge one = piece(0, 8), s = piece(0, 8);
    gdrc_send_wr wr = request_to(GDRC_WR_RDMA_WRITE, &one, 3, 0, 0);
    gdrc_recv_wr receives = { .sg_list = &s, .num_sge = 1 };
    const gdrc_recv_wr *bad;
    MUST(post(&wr) == -EINVAL);
    wr.num_sge = 1;
    wr.opcode = 40;
    MUST(post(&wr) == -EINVAL);
    MUST(gdrc_post_recv(ctx, dci, &receives, &bad) == -EINVAL);
    MUST(gdrc_post_recv(ctx, dct_a, &receives, &bad) == -EINVAL);
    const gdrc_send_wr *none;
    wr.opcode = GDRC_WR_RDMA_WRITE;
    MUST(gdrc_post_send(ctx, dct_a, &wr, &none) == -EINVAL);
    MUST(gdrc_ah_destroy(ctx, ah) == 0);
    int rc = post(&wr);
    /* The soft device finds out when it sends. */
    MUST(rc == -EINVAL || (rc == 0 && next_wc(ctx, cq).status != GDRC_WC_SUCCESS));
    struct gdrc_ah_attr to = { 0 };
    memcpy(to.dgid, of_a.gid, sizeof to.dgid);
    to.udp_port = (uint16_t)of_a.udp_port;
    MUST(gdrc_ah_create(ctx, pd, &to, &ah) == 0);
    reset_qp(ctx, dci, cq);
    started(dci, &of_dci);
}

/* A wrong key ends the initiator; a reset revives it, with requests behind the failed one. */
static void of_errors(void)
{
    gdrc_sge one = piece(0, 64);
    gdrc_send_wr wr = request_to(GDRC_WR_RDMA_WRITE, &one, 1, 0, 0);
    fill(4);
    for (int round = 0; round < 3; round++) {
        memset(bytes + HALF, 0xee, 64);
        wr.ext.dc.dc_key = KEY_A + 1;
        MUST(post(&wr) == 0);
        gdrc_wc wc = next_wc(ctx, cq);
        MUST(wc.status == GDRC_WC_REM_ACCESS_ERR && wc.qp_num == of_dci.qpn);
        MUST(bytes[HALF] == 0xee);
        wr.ext.dc.dc_key = KEY_A;
        for (int k = 0; k < 3; k++)
            MUST(post(&wr) == 0);
        for (int k = 0; k < 3; k++)
            MUST(next_wc(ctx, cq).status == GDRC_WC_WR_FLUSH_ERR);
        reset_qp(ctx, dci, cq);
        started(dci, &of_dci);
        MUST(post(&wr) == 0);
        succeeded_of_dci(0, GDRC_WC_OP_RDMA_WRITE);
        MUST(same(0, 0, 64));
    }
    /* A target that is gone. */
    reset_qp(ctx, dct_b, cq);
    started(dct_b, &of_b);
    wr = request_to(GDRC_WR_RDMA_WRITE, &one, 1, 256, 1);
    MUST(post(&wr) == 0);
    succeeded_of_dci(256, GDRC_WC_OP_RDMA_WRITE);
    MUST(same(256, 0, 64));
}

static int lacks(void)
{
    struct gdrc_srq_attr attr = { .struct_size = sizeof attr, .max_wr = 16, .max_sge = 1 };
    MUST(made(GDRC_QPT_DCI, 0, &dci) == -EOPNOTSUPP);
    puts(why());
    MUST(gdrc_srq_create(ctx, pd, &attr, &srq) == 0);
    MUST(made(GDRC_QPT_DCT, KEY_A, &dct_a) == -EOPNOTSUPP);
    puts(why());
    puts("ok");
    return 0;
}

int main(int argc, char **argv)
{
    struct gdrc_srq_attr attr = { .struct_size = sizeof attr, .max_wr = 16, .max_sge = 1 };
    MUST(argc >= 2 && gdrc_open(argv[1], NULL, &ctx) == 0);
    MUST(gdrc_pd_alloc(ctx, &pd) == 0 && gdrc_cq_create(ctx, 64, &cq, NULL) == 0);
    MUST(gdrc_cq_create(ctx, 64, &recv_cq, NULL) == 0);
    if (argc > 2)
        return lacks();
    MUST(gdrc_srq_create(ctx, pd, &attr, &srq) == 0);
    region.struct_size = sizeof region;
    MUST(gdrc_mr_reg(ctx, pd, bytes, sizeof bytes, RIGHTS, &mr, &region) == 0);
    MUST(made(GDRC_QPT_DCT, KEY_A, &dct_a) == 0 && made(GDRC_QPT_DCT, KEY_B, &dct_b) == 0);
    MUST(made(GDRC_QPT_DCI, 0, &dci) == 0);
    started(dct_a, &of_a);
    started(dct_b, &of_b);
    started(dci, &of_dci);
    MUST(of_a.qpn != of_b.qpn);
    struct gdrc_ah_attr to = { 0 };
    memcpy(to.dgid, of_a.gid, sizeof to.dgid);
    to.udp_port = (uint16_t)of_a.udp_port;
    MUST(gdrc_ah_create(ctx, pd, &to, &ah) == 0);
    of_operations();
    of_fast_handles();
    of_a_full_queue();
    of_wrong_requests();
    of_errors();
    MUST(gdrc_srq_destroy(ctx, srq) == -EBUSY);
    MUST(gdrc_qp_destroy(ctx, dci) == 0 && gdrc_qp_destroy(ctx, dct_a) == 0);
    MUST(gdrc_qp_destroy(ctx, dct_b) == 0 && gdrc_srq_destroy(ctx, srq) == 0);
    MUST(gdrc_ah_destroy(ctx, ah) == 0 && gdrc_mr_dereg(ctx, mr) == 0);
    MUST(gdrc_cq_destroy(ctx, cq) == 0 && gdrc_cq_destroy(ctx, recv_cq) == 0);
    MUST(gdrc_pd_dealloc(ctx, pd) == 0 && gdrc_close(ctx, NULL) == 0);
    puts("ok");
    return 0;
}

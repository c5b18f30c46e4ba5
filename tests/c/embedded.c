// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The small configuration of docs/using/ABI.md ("Memory"), in static buffers of less than 256 KiB.
 *
 * embedded DEVICE DEVICE: messages of 1 to 20,000 bytes by SEND, WRITE and READ between two queue
 * pairs of a "loopback" context, and between two contexts at the devices; every byte is checked.
 * Prints the bytes of each context.
 */
#include <string.h>

#include "checked.h"
#include "embedded.h"

#define ROOM (256u << 10)
#define DATA 20000u

static _Alignas(GDRC_CONTEXT_ALIGN) unsigned char rooms[3][ROOM];
static unsigned char data[2][DATA];

static struct end {
    gdrc_context *ctx;
    gdrc_pd pd;
    gdrc_cq cq;
    gdrc_qp qp;
    gdrc_mr mr;
    gdrc_mr_attr attr;
    struct gdrc_endpoint at;
} ends[2];

/* A context in a static buffer, and its objects. */
static void open_context(unsigned char *room, const char *device, struct end *e)
{
    struct gdrc_config config;
    size_t bytes = 0;
    small_config(&config);
    MUST(gdrc_context_size(device, &config, &bytes) == 0);
    printf("%s: %zu bytes\n", device, bytes);
    MUST(bytes < ROOM);
    MUST(gdrc_context_init(room, bytes, device, &config, &e->ctx) == 0);
    MUST(gdrc_pd_alloc(e->ctx, &e->pd) == 0);
    MUST(gdrc_cq_create(e->ctx, 16, &e->cq, NULL) == 0);
}

static void make_qp(struct end *e, unsigned char *memory)
{
    struct gdrc_qp_init init;
    memset(&init, 0, sizeof init);
    init.struct_size = sizeof init;
    init.qp_type = GDRC_QPT_RC;
    init.pd = e->pd;
    init.send_cq = init.recv_cq = e->cq;
    init.cap = (struct gdrc_qp_cap){
        .max_send_wr = 4,
        .max_recv_wr = 4,
        .max_send_sge = 1,
        .max_recv_sge = 1,
    };
    e->attr.struct_size = sizeof e->attr;
    e->at.struct_size = sizeof e->at;
    MUST(gdrc_qp_create(e->ctx, &init, &e->qp, NULL) == 0);
    MUST(gdrc_mr_reg(e->ctx, e->pd, memory, DATA,
                     GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_READ | GDRC_ACCESS_REMOTE_WRITE,
                     &e->mr, &e->attr) == 0);
    MUST(gdrc_endpoint_local(e->ctx, e->qp, &e->mr, &e->at) == 0);
}

/* Takes completions of both ends until each expected one has come. */
static void take(int sends, int receives)
{
    struct timespec begin;
    gdrc_wc wc;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while (sends > 0 || receives > 0) {
        for (int i = 0; i < 2; i++) {
            int n = gdrc_poll_cq(ends[i].ctx, ends[i].cq, 1, &wc);
            MUST(n >= 0);
            MUST(n == 0 || wc.status == GDRC_WC_SUCCESS);
            if (n > 0 && wc.opcode == GDRC_WC_OP_RECV)
                receives--;
            else if (n > 0)
                sends--;
        }
        must_be_soon(&begin);
    }
}

/* One operation from the first end; READ brings the second end's bytes. */
static void transfer(uint32_t opcode, uint32_t length, unsigned char seed)
{
    struct end *x = &ends[0], *y = &ends[1];
    unsigned char *from = data[opcode == GDRC_WR_RDMA_READ];
    for (uint32_t i = 0; i < length; i++)
        from[i] = (unsigned char)(i * 13 + seed);
    gdrc_sge here = { .addr = x->attr.iova, .length = length, .lkey = x->attr.lkey };
    gdrc_sge there = { .addr = y->attr.iova, .length = length, .lkey = y->attr.lkey };
    if (opcode == GDRC_WR_SEND) {
        gdrc_recv_wr recv = { .sg_list = &there, .num_sge = 1 };
        MUST(gdrc_post_recv(y->ctx, y->qp, &recv, NULL) == 0);
    }
    gdrc_send_wr wr;
    memset(&wr, 0, sizeof wr);
    wr.sg_list = &here;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = GDRC_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = y->attr.iova;
    wr.wr.rdma.rkey = y->attr.rkey;
    MUST(gdrc_post_send(x->ctx, x->qp, &wr, NULL) == 0);
    take(1, opcode == GDRC_WR_SEND);
    MUST(memcmp(data[0], data[1], length) == 0);
}

static void traffic(void)
{
    static const uint32_t opcodes[] = { GDRC_WR_SEND, GDRC_WR_RDMA_WRITE, GDRC_WR_RDMA_READ };
    static const uint32_t lengths[] = { 1, 100, 1024, 1025, 5000, DATA };
    for (int i = 0; i < 2; i++)
        make_qp(&ends[i], data[i]);
    for (int i = 0; i < 2; i++)
        MUST(gdrc_qp_connect(ends[i].ctx, ends[i].qp, &ends[i].at, &ends[!i].at, NULL) == 0);
    unsigned char seed = 0;
    for (int round = 0; round < 5; round++)
        for (size_t o = 0; o < 3; o++)
            for (size_t l = 0; l < 6; l++)
                transfer(opcodes[o], lengths[l], ++seed);
}

int main(int argc, char **argv)
{
    MUST(argc == 3);
    open_context(rooms[0], "loopback", &ends[0]);
    ends[1] = ends[0];
    traffic();
    /* The queue pairs, regions, CQ and PD are left to it. */
    MUST(gdrc_close(ends[0].ctx, NULL) == 6);
    for (int i = 0; i < 2; i++)
        open_context(rooms[1 + i], argv[1 + i], &ends[i]);
    traffic();
    for (int i = 0; i < 2; i++)
        MUST(gdrc_close(ends[i].ctx, NULL) == 4);
    printf("every byte arrived\n");
    return 0;
}

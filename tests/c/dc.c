/*
 * dc DEVICE [DEVICE [udp|shm]]: DC by the C API, within a device or between two of this process:
 * one initiator writes to and reads from 64 targets, then 64 initiators send to one target. Every
 * byte is compared. Prints "ok". The first device captures into the file that DC_CAPTURE names.
 */
#include <errno.h>
#include <gdrcore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "checked.h"

enum { MANY = 64, BYTES = 20000, KEY = 0x5eed };

/* One side: 0 has the initiators, 1 the targets. */
struct side {
    gdrc_context *ctx;
    gdrc_pd pd;
    gdrc_cq cq;
    gdrc_srq srq;
    gdrc_mr mr;
    struct gdrc_mr_attr region;
    unsigned char *memory;
    struct gdrc_endpoint own;
};
static struct side side[2];

static void side_open(struct side *s, const char *device, uint32_t flags)
{
    struct gdrc_config cfg;
    struct gdrc_srq_attr attr = { .struct_size = sizeof attr, .max_wr = 2 * MANY, .max_sge = 1 };
    memset(&cfg, 0, sizeof cfg);
    cfg.struct_size = sizeof cfg;
    cfg.flags = flags;
    cfg.max_qp = 2 * MANY;
    cfg.ring_bytes = 16 << 20;
    cfg.pcap_path = s == side ? getenv("DC_CAPTURE") : NULL;
    if (s == side || device) {
        MUST(gdrc_open(device, &cfg, &s->ctx) == 0);
    } else {
        s->ctx = side[0].ctx;
    }
    MUST(gdrc_pd_alloc(s->ctx, &s->pd) == 0);
    MUST(gdrc_cq_create(s->ctx, 4 * MANY, &s->cq, NULL) == 0);
    MUST(gdrc_srq_create(s->ctx, s->pd, &attr, &s->srq) == 0);
    s->memory = calloc(MANY, BYTES);
    MUST(s->memory);
    s->region.struct_size = sizeof s->region;
    MUST(gdrc_mr_reg(s->ctx, s->pd, s->memory, (uint64_t)MANY * BYTES,
                     GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_WRITE | GDRC_ACCESS_REMOTE_READ,
                     &s->mr, &s->region) == 0);
}

/* A queue pair of a type, ready to use. Its endpoint has its number. */
static gdrc_qp made(struct side *s, uint32_t type, struct gdrc_endpoint *end)
{
    struct gdrc_qp_init init;
    gdrc_qp qp;
    memset(&init, 0, sizeof init);
    init.struct_size = sizeof init;
    init.qp_type = type;
    init.pd = s->pd;
    init.send_cq = s->cq;
    init.recv_cq = s->cq;
    init.srq = s->srq;
    init.dc_key = KEY;
    init.cap.max_send_wr = 2 * MANY;
    init.cap.max_send_sge = 1;
    MUST(gdrc_qp_create(s->ctx, &init, &qp, NULL) == 0);
    memset(end, 0, sizeof *end);
    end->struct_size = sizeof *end;
    MUST(gdrc_endpoint_local(s->ctx, qp, NULL, end) == 0);
    MUST(end->qp_type == type);
    MUST(gdrc_qp_connect(s->ctx, qp, end, NULL, NULL) == 0);
    /* A NIC numbers a target at its way to RTR. */
    MUST(gdrc_endpoint_local(s->ctx, qp, NULL, end) == 0 && end->qpn != 0);
    return qp;
}

static gdrc_wc take(struct side *s)
{
    struct timespec begin;
    gdrc_wc wc;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    for (;;) {
        int n;
        MUST(gdrc_progress(side[0].ctx) >= 0 && gdrc_progress(side[1].ctx) >= 0);
        n = gdrc_poll_cq(s->ctx, s->cq, 1, &wc);
        MUST(n >= 0);
        if (n == 1)
            return wc;
        must_be_soon(&begin);
    }
}

static void fill(unsigned char *at, unsigned seed)
{
    for (unsigned i = 0; i < BYTES; i++)
        at[i] = (unsigned char)(seed * 97 + i * 31 + (i >> 8));
}

/* Posts a request to a target, of the k-th part of either memory. */
static void post(gdrc_qp qp, gdrc_ah ah, uint32_t dctn, uint32_t opcode, unsigned k, uint64_t key)
{
    struct side *a = &side[0];
    gdrc_sge piece = { .addr = a->region.iova + k * BYTES,
                       .length = BYTES,
                       .lkey = a->region.lkey };
    gdrc_send_wr wr;
    const gdrc_send_wr *bad;
    memset(&wr, 0, sizeof wr);
    wr.wr_id = k;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = GDRC_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = side[1].region.iova + k * BYTES;
    wr.wr.rdma.rkey = side[1].region.rkey;
    wr.ext.dc.ah = ah;
    wr.ext.dc.dc_key = key;
    wr.ext.dc.dctn = dctn;
    MUST(gdrc_post_send(a->ctx, qp, &wr, &bad) == 0);
}

static void one_to_many(gdrc_ah ah)
{
    struct gdrc_endpoint to[MANY], own;
    gdrc_qp dct[MANY], dci = made(&side[0], GDRC_QPT_DCI, &own);
    for (unsigned k = 0; k < MANY; k++) {
        dct[k] = made(&side[1], GDRC_QPT_DCT, &to[k]);
        fill(side[0].memory + k * BYTES, k + 1);
        post(dci, ah, to[k].qpn, GDRC_WR_RDMA_WRITE, k, KEY);
    }
    for (unsigned k = 0; k < MANY; k++) {
        gdrc_wc wc = take(&side[0]);
        MUST(wc.status == 0 && wc.wr_id == k && wc.qp_num == own.qpn);
    }
    MUST(memcmp(side[0].memory, side[1].memory, (size_t)MANY * BYTES) == 0);
    memset(side[0].memory, 0, (size_t)MANY * BYTES);
    for (unsigned k = 0; k < MANY; k++)
        post(dci, ah, to[MANY - 1 - k].qpn, GDRC_WR_RDMA_READ, k, KEY);
    for (unsigned k = 0; k < MANY; k++) {
        gdrc_wc wc = take(&side[0]);
        MUST(wc.status == 0 && wc.wr_id == k);
    }
    MUST(memcmp(side[0].memory, side[1].memory, (size_t)MANY * BYTES) == 0);
    /* A key that is not the target's. */
    post(dci, ah, to[0].qpn, GDRC_WR_RDMA_WRITE, 0, KEY + 1);
    MUST(take(&side[0]).status == GDRC_WC_REM_ACCESS_ERR);
    MUST(gdrc_qp_destroy(side[0].ctx, dci) == 0);
    for (unsigned k = 0; k < MANY; k++)
        MUST(gdrc_qp_destroy(side[1].ctx, dct[k]) == 0);
}

static void many_to_one(gdrc_ah ah)
{
    struct gdrc_endpoint to, own[MANY];
    gdrc_qp dci[MANY], dct = made(&side[1], GDRC_QPT_DCT, &to);
    unsigned char *seen[MANY];
    memset(side[1].memory, 0, (size_t)MANY * BYTES);
    for (unsigned k = 0; k < MANY; k++) {
        gdrc_sge piece = { .addr = side[1].region.iova + k * BYTES,
                           .length = BYTES,
                           .lkey = side[1].region.lkey };
        gdrc_recv_wr wr = { .wr_id = 1000 + k, .sg_list = &piece, .num_sge = 1 };
        const gdrc_recv_wr *bad;
        MUST(gdrc_post_srq_recv(side[1].ctx, side[1].srq, &wr, &bad) == 0);
        dci[k] = made(&side[0], GDRC_QPT_DCI, &own[k]);
        fill(side[0].memory + k * BYTES, 100 + k);
        seen[k] = NULL;
    }
    for (unsigned k = 0; k < MANY; k++)
        post(dci[k], ah, to.qpn, GDRC_WR_SEND, k, KEY);
    for (unsigned sent = 0, got = 0; sent < MANY || got < MANY;) {
        gdrc_wc wc = take(sent < MANY ? &side[0] : &side[1]);
        MUST(wc.status == 0);
        if (wc.opcode == GDRC_WC_OP_RECV) {
            unsigned k, at = (unsigned)(wc.wr_id - 1000);
            MUST(wc.qp_num == to.qpn && wc.byte_len == BYTES && at < MANY);
            for (k = 0; k < MANY && own[k].qpn != wc.src_qp; k++)
                ;
            MUST(k < MANY && !seen[k]);
            seen[k] = side[1].memory + at * BYTES;
            got++;
        } else {
            sent++;
        }
    }
    for (unsigned k = 0; k < MANY; k++) {
        MUST(memcmp(seen[k], side[0].memory + k * BYTES, BYTES) == 0);
        MUST(gdrc_qp_destroy(side[0].ctx, dci[k]) == 0);
    }
    MUST(gdrc_qp_destroy(side[1].ctx, dct) == 0);
}

int main(int argc, char **argv)
{
    struct gdrc_ah_attr to;
    struct gdrc_endpoint own;
    gdrc_ah ah;
    gdrc_qp some;
    uint32_t flags = 0;
    MUST(argc >= 2);
    if (argc > 3)
        flags = strcmp(argv[3], "udp") ? GDRC_CONFIG_SHM_ONLY : GDRC_CONFIG_UDP_ONLY;
    side_open(&side[0], argv[1], flags);
    side_open(&side[1], argc > 2 ? argv[2] : NULL, flags);
    /* The address of the targets' device. */
    some = made(&side[1], GDRC_QPT_DCT, &own);
    memset(&to, 0, sizeof to);
    memcpy(to.dgid, own.gid, sizeof to.dgid);
    MUST(gdrc_ah_create(side[0].ctx, side[0].pd, &to, &ah) == 0);
    MUST(gdrc_qp_destroy(side[1].ctx, some) == 0);
    one_to_many(ah);
    many_to_one(ah);
    puts("ok");
    return 0;
}

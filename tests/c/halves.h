/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Programs of the C API that send from the first half of a region into the second one. HALF is the
 * bytes of each.
 */
#ifndef GDRC_TEST_HALVES_H
#define GDRC_TEST_HALVES_H

#include <string.h>

#include "checked.h"

static gdrc_context *ctx;
static gdrc_pd pd;
static gdrc_cq cq;
static gdrc_mr mr;
static struct gdrc_mr_attr region;
static unsigned char bytes[2 * HALF] __attribute__((aligned(8)));

static inline gdrc_sge piece(unsigned at, uint32_t length)
{
    gdrc_sge s = { .addr = region.iova + at, .length = length, .lkey = region.lkey };
    return s;
}

/* A request whose other end is at `at` of the second half. */
static inline gdrc_send_wr request(uint32_t opcode, gdrc_sge *list, int n, uint64_t at)
{
    gdrc_send_wr wr;
    memset(&wr, 0, sizeof wr);
    wr.wr_id = at;
    wr.opcode = opcode;
    wr.send_flags = GDRC_SEND_SIGNALED;
    wr.sg_list = list;
    wr.num_sge = n;
    wr.wr.rdma.remote_addr = region.iova + HALF + at;
    wr.wr.rdma.rkey = region.rkey;
    return wr;
}

/* The next completion, which is good and of this request. */
static inline gdrc_wc succeeded(uint64_t id, uint32_t opcode)
{
    gdrc_wc wc = next_wc(ctx, cq);
    if (wc.status != GDRC_WC_SUCCESS || wc.wr_id != id || wc.opcode != opcode)
        fprintf(stderr, "status %u, id %llu, opcode %u, not id %llu, opcode %u\n", wc.status,
                (unsigned long long)wc.wr_id, wc.opcode, (unsigned long long)id, opcode);
    MUST(wc.status == GDRC_WC_SUCCESS && wc.wr_id == id && wc.opcode == opcode);
    return wc;
}

#endif

// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * left: closes a context on which it leaves SRQs of XRC, each with a CQ, while another context of
 * the device is open. Prints "left", and sleeps until a signal comes.
 */
#include <fcntl.h>
#include <unistd.h>

#include "device.h"

int main(void)
{
    struct ibv_context *ctx = open_device(), *other = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    struct ibv_xrcd_init_attr domain = {
        .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS,
        .fd = -1,
        .oflags = O_CREAT,
    };
    struct ibv_xrcd *xrcd = ibv_open_xrcd(ctx, &domain);
    CHECK(other && pd && xrcd);
    for (int i = 0; i < 16; i++) {
        struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
        struct ibv_srq_init_attr_ex init = {
            .attr = { .max_wr = 4, .max_sge = 1 },
            .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
                         IBV_SRQ_INIT_ATTR_CQ,
            .srq_type = IBV_SRQT_XRC,
            .pd = pd,
            .xrcd = xrcd,
            .cq = cq,
        };
        CHECK(cq && ibv_create_srq_ex(ctx, &init));
    }
    CHECK(ibv_close_device(ctx) == 0);
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("left");
    for (;;)
        pause();
}

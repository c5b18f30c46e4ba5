// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * GPU memory of a program of the C API that --strict looks at. Arguments: "right"; "left": its
 * region is left when the context is closed; "early": it is deregistered with a request on it.
 */
#include "wrong_api/wrong_api.h"

#define LEN 4096

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    begin(16, 64);
    uint64_t gpu;
    CHECK(gdrc_cuda_alloc(0, LEN, GDRC_CUDA_SHAREABLE, &gpu) == 0);
    gdrc_memory m = {
        .struct_size = sizeof m, .kind = GDRC_MEMORY_CUDA, .addr = gpu, .length = LEN};
    gdrc_mr region;
    gdrc_mr_attr attr = {.struct_size = sizeof attr};
    CHECK(gdrc_mr_reg_memory(ctx, pd, &m, REMOTE, &region, &attr) == 0);
    gdrc_sge sge = {gpu, 64, attr.lkey};
    gdrc_recv_wr wr = {.sg_list = &sge, .num_sge = 1};
    const gdrc_recv_wr *bad;
    CHECK(gdrc_post_recv(ctx, b, &wr, &bad) == 0);
    CHECK(post(GDRC_WR_SEND, 0, 64, 0, GDRC_SEND_SIGNALED) == 0);
    poll_good(2);
    CHECK(request(a, keys.lkey, GDRC_WR_RDMA_WRITE, memory, 64, (void *)(uintptr_t)gpu, attr.rkey,
                  GDRC_SEND_SIGNALED) == 0);
    poll_good(1);
    if (strcmp(argv[1], "early") == 0)
        CHECK(gdrc_post_recv(ctx, b, &wr, &bad) == 0);
    if (strcmp(argv[1], "left") != 0) {
        CHECK(gdrc_mr_dereg(ctx, region) == 0);
        CHECK(gdrc_cuda_free(gpu) == 0);
        return end();
    }
    end_pair();
    CHECK(gdrc_cq_destroy(ctx, cq) == 0 && gdrc_mr_dereg(ctx, mr) == 0);
    CHECK(gdrc_close(ctx, NULL) == 2);
    puts("ok");
    return 0;
}

// SPDX-License-Identifier: MIT OR Apache-2.0
/* The program under test: registers memory with the first RDMA device, and says with which. */
#include <infiniband/verbs.h>
#include <stdio.h>

static char memory[4096];

int main(void)
{
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    if (!list || count == 0) {
        fprintf(stderr, "no RDMA device\n");
        return 1;
    }
    struct ibv_context *ctx = ibv_open_device(list[0]);
    struct ibv_pd *pd = ctx ? ibv_alloc_pd(ctx) : NULL;
    struct ibv_mr *mr = pd ? ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE) : NULL;
    if (!mr) {
        perror(ibv_get_device_name(list[0]));
        return 1;
    }
    printf("%s: key %#x\n", ibv_get_device_name(list[0]), mr->lkey);
    int failed = ibv_dereg_mr(mr) || ibv_dealloc_pd(pd) || ibv_close_device(ctx);
    ibv_free_device_list(list);
    return failed;
}

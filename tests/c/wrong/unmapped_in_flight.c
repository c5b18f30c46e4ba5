// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory is unmapped after the post, before the completion is polled. */
#include "wrong.h"

#include <sys/mman.h>

int main(void)
{
    begin(16, 64);
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    struct ibv_mr *second = ibv_reg_mr(pd, page, 4096, IBV_ACCESS_LOCAL_WRITE);
    CHECK(second);
    unsigned signaled = IBV_SEND_SIGNALED;
    CHECK(request(a, second, IBV_WR_RDMA_WRITE, page, 64, 4096, signaled) == 0); /* WRONG */
    CHECK(munmap(page, 4096) == 0);
    poll_good(1);
    CHECK(ibv_dereg_mr(second) == 0);
    return end();
}

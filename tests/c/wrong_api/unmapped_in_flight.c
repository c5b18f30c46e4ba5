// SPDX-License-Identifier: MIT OR Apache-2.0
/* Memory is unmapped after the post, before the completion is polled. */
#include "wrong_api.h"

#include <sys/mman.h>

int main(void)
{
    begin(16, 64);
    char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    gdrc_mr second;
    gdrc_mr_attr of_second;
    reg(page, 4096, GDRC_ACCESS_LOCAL_WRITE, &second, &of_second);
    const uint32_t write = GDRC_WR_RDMA_WRITE, signaled = GDRC_SEND_SIGNALED;
    int rc = request(a, of_second.lkey, write, page, 64, memory, keys.rkey, signaled); /* WRONG */
    CHECK(rc == 0 && munmap(page, 4096) == 0);
    poll_good(1);
    CHECK(gdrc_mr_dereg(ctx, second) == 0);
    return end();
}

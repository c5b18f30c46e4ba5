// SPDX-License-Identifier: MIT OR Apache-2.0
/* Two queue pairs WRITE the same remote bytes at the same time. */
#include "wrong.h"

int main(void)
{
    begin(16, 64);
    unsigned signaled = IBV_SEND_SIGNALED;
    CHECK(request(a, mr, IBV_WR_RDMA_WRITE, memory, 64, 4096, IBV_SEND_SIGNALED) == 0);
    int rc = request(b, mr, IBV_WR_RDMA_WRITE, memory + 64, 64, 4128, signaled); /* WRONG */
    CHECK(rc == 0);
    poll_good(2);
    return end();
}

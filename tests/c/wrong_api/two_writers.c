// SPDX-License-Identifier: MIT OR Apache-2.0
/* Two queue pairs WRITE the same remote bytes at the same time. */
#include "wrong_api.h"

int main(void)
{
    begin(16, 64);
    const uint32_t write = GDRC_WR_RDMA_WRITE, signaled = GDRC_SEND_SIGNALED;
    const char *to = memory + 4128;
    CHECK(post(write, 0, 64, 4096, signaled) == 0);
    int rc = request(b, keys.lkey, write, memory + 64, 64, to, keys.rkey, signaled); /* WRONG */
    CHECK(rc == 0);
    poll_good(2);
    return end();
}

// SPDX-License-Identifier: MIT OR Apache-2.0
/* What a READ fetches is sent on without a fence: the SEND may leave before it is there. */
#include "wrong_api.h"

int main(void)
{
    begin(16, 64);
    receive(b, 12288, 256, 1);
    CHECK(post(GDRC_WR_RDMA_READ, 4096, 64, 8192, 0) == 0);
    CHECK(post(GDRC_WR_SEND, 4096, 64, 0, GDRC_SEND_SIGNALED) == 0); /* WRONG */
    poll_good(2);
    return end();
}

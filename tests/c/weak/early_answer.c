// SPDX-License-Identifier: MIT OR Apache-2.0
/* Takes the word that a READ or an atomic brings as soon as it has changed. */
#include "../wrong/wrong.h"

int main(void)
{
    begin(16, 64);
    volatile uint64_t *counter = (uint64_t *)memory, *answer = (uint64_t *)(memory + 4096);
    for (uint64_t round = 1; round <= 200; round++) {
        struct ibv_sge sge = {(uintptr_t)answer, 8, mr->lkey};
        struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .send_flags = IBV_SEND_SIGNALED},
                           *bad;
        if (round % 2) {
            wr.opcode = IBV_WR_RDMA_READ;
            wr.wr.rdma.remote_addr = (uintptr_t)counter;
            wr.wr.rdma.rkey = mr->rkey;
        } else {
            wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
            wr.wr.atomic.remote_addr = (uintptr_t)counter;
            wr.wr.atomic.rkey = mr->rkey;
        }
        *counter = round;
        *answer = 0;
        CHECK(ibv_post_send(a, &wr, &bad) == 0);
        while (*answer == 0)
            continue;
        CHECK(*answer == round); /* WRONG */
        poll_good(1);
    }
    return end();
}

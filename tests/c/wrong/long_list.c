// SPDX-License-Identifier: MIT OR Apache-2.0
/* A list of more unsignaled requests than there are slots; the rest is posted again and again. */
#include "wrong.h"

#define N 20

int main(void)
{
    begin(16, 64);
    struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
    struct ibv_send_wr all[N], *rest = all;
    for (int i = 0; i < N; i++)
        all[i] = (struct ibv_send_wr){.next = i + 1 < N ? &all[i + 1] : NULL,
                                      .sg_list = &sge,
                                      .num_sge = 1,
                                      .opcode = IBV_WR_RDMA_WRITE,
                                      .wr.rdma = {(uintptr_t)memory + 4096, mr->rkey}};
    int rc = ENOMEM;
    for (int i = 0; i < 10000 && rc == ENOMEM; i++) {
        struct ibv_send_wr *from = rest;
        rc = ibv_post_send(a, from, &rest); /* WRONG */
    }
    CHECK(rc == 0 || rest == &all[16]);
    CHECK(rc == ENOMEM || !getenv("GDRC_STRICT"));
    for (int i = 0; i + 1 < N; i++)
        CHECK(all[i].next == &all[i + 1]);
    return end();
}

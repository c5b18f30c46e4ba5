// SPDX-License-Identifier: MIT OR Apache-2.0
/* The buffer is on the stack of a function that has returned. */
#include "wrong.h"

static struct ibv_mr *stack;

static __attribute__((noinline)) void send_number(int n)
{
    volatile int number[64];
    for (int i = 0; i < 64; i++)
        number[i] = n;
    char *at = (char *)number;
    CHECK(request(a, stack, IBV_WR_SEND, at, sizeof number, 0, IBV_SEND_SIGNALED) == 0); /* WRONG */
}

static __attribute__((noinline)) int work(void)
{
    volatile int other[128];
    for (int i = 0; i < 128; i++)
        other[i] = i * 77;
    return other[5];
}

int main(void)
{
    begin(16, 64);
    char here;
    char *page = (char *)((uintptr_t)&here & ~(uintptr_t)4095);
    CHECK((stack = ibv_reg_mr(pd, page - 8192, 12288, IBV_ACCESS_LOCAL_WRITE)));
    receive(b, 4096, 512, 1);
    send_number(5);
    CHECK(work() == 5 * 77);
    poll_good(2);
    CHECK(ibv_dereg_mr(stack) == 0);
    return end();
}

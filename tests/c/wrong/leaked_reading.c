// SPDX-License-Identifier: MIT OR Apache-2.0
/* A region is never deregistered. The program ends while a thread of it waits in stdio. */
#include "wrong.h"

#include <pthread.h>
#include <unistd.h>

static void *read_for_ever(void *from)
{
    fgetc(from);
    return NULL;
}

int main(void)
{
    int ends[2];
    pthread_t thread;
    begin(16, 64);
    CHECK(pipe(ends) == 0);
    FILE *from = fdopen(ends[0], "r");
    CHECK(from && pthread_create(&thread, NULL, read_for_ever, from) == 0);
    /* It waits when its stream is locked. */
    while (ftrylockfile(from) == 0) {
        funlockfile(from);
        usleep(1000);
    }
    CHECK(ibv_reg_mr(pd, memory, sizeof memory, REMOTE)); /* WRONG */
    end_pair();
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0);
    puts("ok");
    return 0;
}

// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * contexts ROUNDS [wait|fork|child]: opens the first verbs device, sends one datagram to an address
 * without a receiver, and closes the device, ROUNDS times. "wait": then opens it once more, sends,
 * and sleeps until a signal comes. "fork": a child does that instead, without sleeping. "child":
 * the device is open, and a child that uses its own memory alone is ended by SIGTERM.
 */
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rc_pair.h"

static char buffer[64];

static struct ibv_context *send_one(int close)
{
    struct ibv_context *ctx = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
    CHECK(pd && cq && mr);
    struct ibv_qp *qp = new_qp(pd, cq, IBV_QPT_UD, 1);
    take_to_rts(qp, (struct ibv_qp_attr){.port_num = 1, .qkey = 1});
    struct ibv_ah_attr to = { .is_global = 1, .port_num = 1 };
    static const uint8_t nobody[16] = { [10] = 0xff, 0xff, 127, 200, 200, 200 };
    memcpy(to.grh.dgid.raw, nobody, 16);
    to.grh.hop_limit = 64;
    struct ibv_ah *ah = ibv_create_ah(pd, &to);
    CHECK(ah != NULL);
    struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = sizeof buffer, .lkey = mr->lkey };
    struct ibv_send_wr *bad, wr = {
        .sg_list = &sge,
        .num_sge = 1,
        .opcode = IBV_WR_SEND,
        .send_flags = IBV_SEND_SIGNALED,
    };
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = 77;
    wr.wr.ud.remote_qkey = 1;
    CHECK(!ibv_post_send(qp, &wr, &bad));
    CHECK(next_wc(cq).status == IBV_WC_SUCCESS);
    if (!close)
        return ctx;
    CHECK(!ibv_destroy_ah(ah) && !ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) &&
             !ibv_dealloc_pd(pd));
    CHECK(!ibv_close_device(ctx));
    return NULL;
}

int main(int argc, char **argv)
{
    const char *then = argc > 2 ? argv[2] : "";
    int status = 0;
    for (int i = 0; i < atoi(argv[1]); i++)
        send_one(1);
    if (*then && strcmp(then, "fork"))
        send_one(0);
    int runs[2];
    char byte = 0;
    CHECK(pipe(runs) == 0);
    pid_t child = !strcmp(then, "fork") || !strcmp(then, "child") ? fork() : 0;
    if (child == 0 && !strcmp(then, "fork"))
        return send_one(1) != NULL;
    if (child == 0 && !strcmp(then, "child")) {
        memset(buffer, 7, sizeof buffer);
        CHECK(write(runs[1], &byte, 1) == 1);
        for (;;)
            pause();
    }
    close(runs[1]);
    if (child > 0 && !strcmp(then, "child")) {
        CHECK(read(runs[0], &byte, 1) == 1);
        kill(child, SIGTERM);
    }
    if (child > 0)
        CHECK(wait(&status) == child);
    if (strcmp(then, "child"))
        CHECK(status == 0);
    else if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGTERM) {
        fprintf(stderr, "the child ended with wait status 0x%x\n", status);
        return 1;
    }
    printf("ready\n");
    fflush(stdout);
    if (!strcmp(then, "wait"))
        for (;;)
            pause();
    return 0;
}

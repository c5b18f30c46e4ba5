// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * What a traced call takes, and what its three system calls take alone. A queue pair sends to
 * itself: each message is ibv_post_recv, ibv_post_send and polls that find two completions. By
 * hand, with TRACE on the file system of interest:
 *
 *   cc -O2 -o trace_call bench/compare/trace_call.c -libverbs
 *   gdrcore-run --address 127.0.0.1 --trace=TRACE -- ./trace_call FILE
 *
 * FILE, beside TRACE, is written and removed. Prints microseconds: the least and the median.
 */
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 20000, LINE = 190, CALLS = 3 };

static double took[ROUNDS];
static double began;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static int by_time(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print(const char *what, int parts)
{
    qsort(took, ROUNDS, sizeof *took, by_time);
    printf("%-16s %.2f %.2f\n", what, took[0] / parts, took[ROUNDS / 2] / parts);
}

#define TIME(what, parts, code)                                                                    \
    do {                                                                                           \
        for (int i = 0; i < ROUNDS; i++) {                                                         \
            began = now();                                                                         \
            code;                                                                                  \
            took[i] = now() - began;                                                               \
        }                                                                                          \
        print(what, parts);                                                                        \
    } while (0)

static int check(int failed, const char *what)
{
    if (failed) {
        perror(what);
        exit(1);
    }
    return failed;
}

static void connect_to_itself(struct ibv_context *context, struct ibv_qp *qp)
{
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    check(ibv_modify_qp(qp, &attr, mask), "INIT");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024};
    attr.dest_qp_num = qp->qp_num;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    check(ibv_query_gid(context, 1, 0, &attr.ah_attr.grh.dgid), "GID");
    mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    check(ibv_modify_qp(qp, &attr, mask), "RTR");
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7};
    mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
           IBV_QP_MAX_QP_RD_ATOMIC;
    check(ibv_modify_qp(qp, &attr, mask), "RTS");
}

static void message(struct ibv_cq *cq, struct ibv_qp *qp, struct ibv_sge *sge)
{
    struct ibv_recv_wr recv = {.sg_list = sge, .num_sge = 1}, *bad_recv;
    struct ibv_send_wr send = {.sg_list = sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
    struct ibv_wc wc[2];
    send.send_flags = IBV_SEND_SIGNALED;
    check(ibv_post_recv(qp, &recv, &bad_recv), "ibv_post_recv");
    check(ibv_post_send(qp, &send, &bad_send), "ibv_post_send");
    for (int found = 0; found < 2;)
        found += ibv_poll_cq(cq, 2, wc);
}

int main(int argc, char **argv)
{
    static char buffer[LINE];
    check(argc != 2, "usage: trace_call FILE");
    struct ibv_device **list = ibv_get_device_list(NULL);
    check(!list || !list[0], "ibv_get_device_list");
    struct ibv_context *context = ibv_open_device(list[0]);
    check(!context, "ibv_open_device");
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_mr *mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE);
    struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
    init.cap = (struct ibv_qp_cap){1, 1, 1, 1, 0};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    check(!mr || !qp, "ibv_create_qp");
    connect_to_itself(context, qp);
    struct ibv_sge sge = {(uintptr_t)buffer, 8, mr->lkey};

    TIME("traced call", CALLS, message(cq, qp, &sge));
    int fd = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
    check(fd < 0, argv[1]);
    struct stat st;
    struct rlimit limit;
    TIME("fstat", 1, check(fstat(fd, &st), "fstat"));
    TIME("getrlimit", 1, check(getrlimit(RLIMIT_FSIZE, &limit), "getrlimit"));
    TIME("write", 1, check(write(fd, buffer, LINE) != LINE, "write"));
    return unlink(argv[1]);
}

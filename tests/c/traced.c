// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * traced [HOW]: calls for the trace, on two connected queue pairs of one process. Prints their
 * numbers and keys: "qp A B lkey rkey". HOW:
 *   pair      a SEND that the other receives, a WRITE, empty polls, then a WRITE with a wrong key
 *   built     the same SEND by ibv_wr_ calls, received by an extended CQ
 *   exit      a call, then _exit
 *   kill      a call, then SIGKILL
 *   fork      a call in the parent, one in a child, one in the parent
 *   exec      a call, then execs itself with "none"
 *   none      one call
 *   closed    closes all descriptors, opens FILE (the next argument) in their place, and calls
 *   wrong     a list of requests that is a circle, and one whose pieces lie in no memory
 *   wait      a call, then sleeps until a signal comes
 *   turns N   N empty polls of each of two CQs, in turn
 *   cancel    cancels threads that make calls, while another makes some
 *   many N    N calls in each of two threads, then the same number of empty polls
 */
#include "rc_pair.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *a, *b;
static char memory[4096];

/* The exported function, which older headers call, has fewer arguments than that of the context. */
static void query_port(void)
{
    union {
        struct ibv_port_attr attr;
        unsigned char bytes[4 * sizeof(struct ibv_port_attr)];
    } port;
    memset(&port, 0xee, sizeof port);
    /* What lies in the register of a fourth argument must not count. */
    int (*exported)(struct ibv_context *, uint8_t, void *, size_t) = (void *)(ibv_query_port);
    CHECK(exported(ctx, 1, &port, sizeof port) == 0);
    CHECK(port.attr.state == IBV_PORT_ACTIVE);
    for (size_t i = offsetof(struct ibv_port_attr, port_cap_flags2); i < sizeof port; i++)
        CHECK(port.bytes[i] == 0xee);
    CHECK(ibv_query_port(ctx, 1, &port.attr) == 0 && port.attr.port_cap_flags2 != 0xeeee);
}

static void open_all(void)
{
    ctx = open_device();
    CHECK((pd = ibv_alloc_pd(ctx)));
    CHECK((cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)));
    CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory,
                           IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
    a = new_qp(pd, cq, IBV_QPT_RC, 8);
    b = new_qp(pd, cq, IBV_QPT_RC, 8);
    query_port();
    connect_both(a, b);
    printf("qp %#x %#x %#x %#x %#lx\n", a->qp_num, b->qp_num, mr->lkey, mr->rkey,
           (unsigned long)(uintptr_t)memory);
    fflush(stdout);
}

static void post_recv(uint64_t id)
{
    struct ibv_sge sge = {(uintptr_t)memory + 2048, 512, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(b, &wr, &bad) == 0);
}

static void pair(void)
{
    struct ibv_sge sge[2] = {{(uintptr_t)memory, 48, mr->lkey},
                             {(uintptr_t)memory + 64, 16, mr->lkey}};
    struct ibv_send_wr write = {.wr_id = 12,
                                .sg_list = sge,
                                .num_sge = 1,
                                .opcode = IBV_WR_RDMA_WRITE,
                                .send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE,
                                .wr.rdma = {(uintptr_t)memory + 1024, mr->rkey}},
                       send = {.wr_id = 11,
                               .next = &write,
                               .sg_list = sge,
                               .num_sge = 2,
                               .opcode = IBV_WR_SEND_WITH_IMM,
                               .send_flags = IBV_SEND_SIGNALED,
                               .imm_data = htonl(0xabc)},
                       *bad;
    struct ibv_wc wc;
    for (int i = 0; i < 100; i++)
        CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
    post_recv(21);
    CHECK(ibv_post_send(a, &send, &bad) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(next_wc(cq).status == IBV_WC_SUCCESS);
    write.wr.rdma.rkey ^= 0x100;
    write.wr_id = 13;
    CHECK(ibv_post_send(a, &write, &bad) == 0);
    CHECK(next_wc(cq).status == IBV_WC_REM_ACCESS_ERR);
    CHECK(ibv_create_cq(ctx, -1, NULL, NULL, 0) == NULL);
    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0);
}

static void built(void)
{
    struct ibv_cq_init_attr_ex cq_init = {.cqe = 8, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN};
    struct ibv_cq_ex *ex = ibv_create_cq_ex(ctx, &cq_init);
    CHECK(ex);
    struct ibv_qp_init_attr_ex init = {
        .send_cq = ibv_cq_ex_to_cq(ex),
        .recv_cq = ibv_cq_ex_to_cq(ex),
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND};
    struct ibv_qp *qp = ibv_create_qp_ex(ctx, &init);
    CHECK(qp);
    struct ibv_qp_ex *q = ibv_qp_to_qp_ex(qp);
    struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
    CHECK(ibv_modify_qp(b, &reset, IBV_QP_STATE) == 0);
    connect_both(qp, b);
    post_recv(31);
    ibv_wr_start(q);
    q->wr_id = 32;
    q->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send(q);
    ibv_wr_set_sge(q, mr->lkey, (uintptr_t)memory, 40);
    CHECK(ibv_wr_complete(q) == 0);
    struct ibv_poll_cq_attr none = {0};
    int rc;
    while ((rc = ibv_start_poll(ex, &none)) == ENOENT)
        ;
    CHECK(rc == 0 && ex->wr_id == 32 && ibv_wc_read_opcode(ex) == IBV_WC_SEND);
    CHECK(ibv_next_poll(ex) == ENOENT);
    ibv_end_poll(ex);
    CHECK(next_wc(cq).wr_id == 31);
    printf("built %#x\n", qp->qp_num);
}

static void wrong(void)
{
    char *gone = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(gone != MAP_FAILED && munmap(gone, 4096) == 0);
    struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
    struct ibv_send_wr circle = {.next = &circle,
                                 .sg_list = &sge,
                                 .num_sge = 1,
                                 .opcode = IBV_WR_SEND,
                                 .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    CHECK(ibv_post_send(a, &circle, &bad) == ENOMEM);
    struct ibv_send_wr pieces = {
        .wr_id = 77, .sg_list = (void *)gone, .num_sge = 0x7fffffff, .opcode = IBV_WR_SEND};
    CHECK(ibv_post_send(a, &pieces, &bad) != 0);
}

static void *calls(void *n)
{
    for (long i = 0; i < (long)n; i++)
        CHECK(ibv_req_notify_cq(cq, 0) == 0);
    return NULL;
}

static volatile long made;

static void *endless(void *counted)
{
    for (;;) {
        CHECK(ibv_req_notify_cq(cq, 0) == 0);
        made += counted != NULL;
        pthread_testcancel();
    }
    return NULL;
}

static void cancel(void)
{
    pthread_t other, thread[3];
    CHECK(pthread_create(&other, NULL, endless, (void *)&made) == 0);
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < 3; i++)
            CHECK(pthread_create(&thread[i], NULL, endless, NULL) == 0);
        usleep(1000);
        for (int i = 0; i < 3; i++)
            CHECK(pthread_cancel(thread[i]) == 0);
        for (int i = 0; i < 3; i++)
            CHECK(pthread_join(thread[i], NULL) == 0);
        for (long before = made; made == before;)
            usleep(100);
    }
    CHECK(pthread_cancel(other) == 0 && pthread_join(other, NULL) == 0);
}

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "pair";
    if (!strcmp(how, "none"))
        return ibv_fork_init();
    open_all();
    if (!strcmp(how, "pair")) {
        pair();
    } else if (!strcmp(how, "built")) {
        built();
    } else if (!strcmp(how, "exit")) {
        _exit(0);
    } else if (!strcmp(how, "kill")) {
        raise(SIGKILL);
    } else if (!strcmp(how, "wait")) {
        pause();
    } else if (!strcmp(how, "fork")) {
        pid_t child = fork();
        if (child == 0)
            _exit(ibv_get_device_list(NULL) == NULL);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(ibv_req_notify_cq(cq, 0) == 0);
        printf("child %d\n", child);
    } else if (!strcmp(how, "exec")) {
        execl(argv[0], argv[0], "none", NULL);
    } else if (!strcmp(how, "closed")) {
        /* As a daemon does; the device itself does not survive it. */
        for (int fd = 3; fd < 256; fd++)
            close(fd);
        int fd;
        while ((fd = open(argv[2], O_WRONLY | O_CREAT | O_APPEND, 0600)) >= 0 && fd < 200)
            ;
        CHECK(ibv_fork_init() == 0);
        _exit(0);
    } else if (!strcmp(how, "wrong")) {
        wrong();
    } else if (!strcmp(how, "cancel")) {
        cancel();
    } else if (!strcmp(how, "turns")) {
        struct ibv_cq *second = ibv_create_cq(ctx, 64, NULL, NULL, 0);
        struct ibv_wc wc;
        CHECK(second);
        for (long i = strtol(argv[2], NULL, 10); i > 0; i--)
            CHECK(ibv_poll_cq(cq, 1, &wc) == 0 && ibv_poll_cq(second, 1, &wc) == 0);
    } else if (!strcmp(how, "many")) {
        pthread_t other;
        void *n = (void *)strtol(argv[2], NULL, 10);
        struct ibv_wc wc;
        CHECK(pthread_create(&other, NULL, calls, n) == 0);
        calls(n);
        CHECK(pthread_join(other, NULL) == 0);
        for (long i = 0; i < (long)n; i++)
            CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
    }
    printf("ok\n");
    return 0;
}

// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * events COUNT [WORDS...]: sends messages from queue pair a to queue pair b, which takes them from
 * an SRQ, until so many asynchronous events have come. Prints each event, each completion that
 * failed, and then the states of the queue pairs and of the port, as verbs and sysfs tell them.
 * WORDS: "more" sends on behind the events, for which 100 messages must arrive; "full" posts more
 * requests than the CQ has entries, and polls none before the event.
 */
#include "rc_pair.h"

#include <poll.h>

static struct ibv_context *ctx;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_mr *mr;
static struct ibv_qp *a, *b;
static char memory[4096];
static int events, under_way, sent, failed;

static void drain_events(void)
{
    struct pollfd p = {.fd = ctx->async_fd, .events = POLLIN};
    struct ibv_async_event e;
    while (poll(&p, 1, 0) == 1) {
        CHECK(ibv_get_async_event(ctx, &e) == 0);
        printf("event %d", e.event_type);
        switch (e.event_type) {
        case IBV_EVENT_CQ_ERR:
            puts(e.element.cq == cq ? " cq" : " other");
            break;
        case IBV_EVENT_SRQ_ERR:
        case IBV_EVENT_SRQ_LIMIT_REACHED:
            puts(e.element.srq == srq ? " srq" : " other");
            break;
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
        case IBV_EVENT_QP_LAST_WQE_REACHED:
        case IBV_EVENT_COMM_EST:
        case IBV_EVENT_SQ_DRAINED:
        case IBV_EVENT_PATH_MIG:
        case IBV_EVENT_PATH_MIG_ERR:
            puts(e.element.qp == a ? " a" : e.element.qp == b ? " b" : " other");
            break;
        default:
            printf(" port %d\n", e.element.port_num);
        }
        ibv_ack_async_event(&e);
        events++;
    }
}

static void receive(int n)
{
    struct ibv_sge sge = {(uintptr_t)memory + 2048, 64, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = 2, .sg_list = &sge, .num_sge = 1}, *bad;
    while (n-- > 0)
        CHECK(ibv_post_srq_recv(srq, &wr, &bad) == 0);
}

static void message(void)
{
    struct ibv_sge sge = {(uintptr_t)memory, 64, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 1,
                             .sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    CHECK(ibv_post_send(a, &wr, &bad) == 0);
    under_way++;
}

static void take_completions(void)
{
    struct ibv_wc wc;
    int n;
    while ((n = ibv_poll_cq(cq, 1, &wc)) == 1) {
        if (wc.wr_id == 1)
            under_way--;
        if (wc.status == IBV_WC_SUCCESS)
            sent += wc.wr_id == 1;
        else if (!failed++)
            printf("%s %s\n", wc.wr_id == 1 ? "send" : "receive", ibv_wc_status_str(wc.status));
    }
    CHECK(n == 0);
}

static void print_states(void)
{
    struct ibv_port_attr port;
    CHECK(ibv_query_port(ctx, 1, &port) == 0);
    char name[256], line[64] = "";
    snprintf(name, sizeof name, "/sys/class/infiniband/%s/ports/1/state",
             ibv_get_device_name(ctx->device));
    FILE *f = fopen(name, "r");
    CHECK(f && fgets(line, sizeof line, f));
    fclose(f);
    printf("a %d b %d port %d sysfs %s", state_of(a), state_of(b), port.state, line);
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
    int wanted = atoi(argv[1]), more = 0, full = 0;
    for (int i = 2; i < argc; i++) {
        more |= strcmp(argv[i], "more") == 0;
        full |= strcmp(argv[i], "full") == 0;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    ctx = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    CHECK(pd && (mr = ibv_reg_mr(pd, memory, sizeof memory, REMOTE)));
    CHECK((cq = ibv_create_cq(ctx, full ? 4 : 64, NULL, NULL, 0)));
    struct ibv_srq_init_attr shared = {.attr = {.max_wr = 64, .max_sge = 1}};
    CHECK((srq = ibv_create_srq(pd, &shared)));
    struct ibv_qp_init_attr init = {.send_cq = cq,
                                    .recv_cq = cq,
                                    .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 16, .max_send_sge = 1}};
    init.cap.max_recv_wr = init.cap.max_recv_sge = 1;
    CHECK((a = ibv_create_qp(pd, &init)));
    init.srq = srq;
    CHECK((b = ibv_create_qp(pd, &init)));
    connect_both(a, b);

    receive(32);
    for (int i = 0; full && i < 8; i++)
        message();
    while (events < wanted || (more && sent < 100)) {
        if (!full && !under_way && !failed) {
            receive(sent > 0);
            message();
        }
        drain_events();
        if (!full)
            take_completions();
    }
    take_completions();
    print_states();
    CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
    drain_events();
    CHECK(ibv_destroy_srq(srq) == 0 && ibv_destroy_cq(cq) == 0);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dealloc_pd(pd) == 0);
    drain_events();
    CHECK(ibv_close_device(ctx) == 0);
    return 0;
}

// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * ports s|c ADDRESS TIMEOUT: two ends that are connected by rdma_cm and send each other messages
 * until they are killed. Each prints every change of its port's state and every event of port,
 * device and id; the client also every 50th round. The server listens at ADDRESS, the client
 * connects to it. TIMEOUT: the ACK timeout code.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "cm_event.h"

#define PORT 7772

/* The connection may end: its interface is gone, and the retries of a request with it. */
static int may_end;

static struct rdma_event_channel *channel;
/* A listener at all addresses, which loses none of its devices to events. */
static struct rdma_cm_id *anywhere;
static uint64_t words[2];
static struct ibv_mr *mr;

static void post_recv(struct rdma_cm_id *id)
{
    struct ibv_sge sge = {(uintptr_t)&words[0], 8, mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(id->qp, &wr, &bad) == 0);
}

static void post_send(struct rdma_cm_id *id)
{
    struct ibv_sge sge = {(uintptr_t)&words[1], 8, mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge,
                             .num_sge = 1,
                             .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED},
                       *bad;
    CHECK(ibv_post_send(id->qp, &wr, &bad) == 0);
}

static void make_qp(struct rdma_cm_id *id)
{
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
    CHECK(rdma_create_qp(id, NULL, &init) == 0);
    CHECK((mr = ibv_reg_mr(id->pd, words, sizeof words, IBV_ACCESS_LOCAL_WRITE)));
    post_recv(id);
}

/* Prints the port if it has changed, and all events. */
static void look(struct ibv_context *ctx)
{
    static struct ibv_port_attr last;
    static int last_gid = -1;
    struct ibv_async_event a;
    struct rdma_cm_event *e;
    while (ibv_get_async_event(ctx, &a) == 0) {
        const char *type = a.event_type == IBV_EVENT_PORT_ERR       ? "PORT_ERR"
                           : a.event_type == IBV_EVENT_PORT_ACTIVE  ? "PORT_ACTIVE"
                           : a.event_type == IBV_EVENT_GID_CHANGE   ? "GID_CHANGE"
                           : a.event_type == IBV_EVENT_DEVICE_FATAL ? "DEVICE_FATAL"
                                                                    : "another";
        CHECK(a.event_type == IBV_EVENT_DEVICE_FATAL || a.event_type == IBV_EVENT_COMM_EST ||
              a.element.port_num == 1);
        if (a.event_type != IBV_EVENT_COMM_EST)
            printf("event %s\n", type);
        ibv_ack_async_event(&a);
    }
    while (rdma_get_cm_event(channel, &e) == 0) {
        CHECK(e->id != anywhere);
        printf("%s %d\n", rdma_event_str(e->event), e->status);
        may_end |= e->event == RDMA_CM_EVENT_DEVICE_REMOVAL;
        rdma_ack_cm_event(e);
    }
    struct ibv_port_attr now;
    union ibv_gid gid, none = {{0}};
    struct ibv_gid_entry entries[16];
    CHECK(ibv_query_port(ctx, 1, &now) == 0 && ibv_query_gid(ctx, 1, 1, &gid) == 0);
    int has_gid = memcmp(&gid, &none, sizeof gid) != 0;
    if (now.state != last.state || now.active_mtu != last.active_mtu || has_gid != last_gid) {
        printf("state %d, mtu %d, gid %d\n", now.state, 128 << now.active_mtu, has_gid);
        CHECK(now.phys_state == (now.state == IBV_PORT_ACTIVE ? 5 : 3));
        /* It comes back only after this line has been read. */
        if (!has_gid)
            CHECK(ibv_query_gid_table(ctx, entries, 16, 0) == 0 &&
                  ibv_query_gid_ex(ctx, 1, 1, entries, 0) == ENODATA);
        last = now;
        last_gid = has_gid;
    }
    fflush(stdout);
}

static void set_nonblocking(int fd)
{
    CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
}

int main(int argc, char **argv)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
    struct rdma_cm_id *id;
    CHECK(argc == 4 && inet_pton(AF_INET, argv[2], &at.sin_addr) == 1);
    int is_server = argv[1][0] == 's';
    uint8_t timeout = (uint8_t)atoi(argv[3]);
    CHECK((channel = rdma_create_event_channel()));
    CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    if (is_server) {
        CHECK(rdma_bind_addr(id, (struct sockaddr *)&at) == 0 && rdma_listen(id, 4) == 0);
        at.sin_addr.s_addr = 0;
        at.sin_port = htons(PORT + 2);
        CHECK(rdma_create_id(channel, &anywhere, NULL, RDMA_PS_TCP) == 0);
        CHECK(rdma_bind_addr(anywhere, (struct sockaddr *)&at) == 0);
        CHECK(rdma_listen(anywhere, 4) == 0);
        puts("listens");
        fflush(stdout);
        id = take_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    } else {
        CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&at, 2000) == 0);
        take_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
        CHECK(rdma_resolve_route(id, 2000) == 0);
        take_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    }
    CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, 1) == 0);
    make_qp(id);
    CHECK((is_server ? rdma_accept(id, &param) : rdma_connect(id, &param)) == 0);
    take_event(channel, RDMA_CM_EVENT_ESTABLISHED);
    set_nonblocking(id->verbs->async_fd);
    set_nonblocking(channel->fd);
    if (!is_server)
        post_send(id);
    for (long rounds = 0;;) {
        struct ibv_wc wc;
        look(id->verbs);
        int n = ibv_poll_cq(id->recv_cq, 1, &wc);
        CHECK(n >= 0);
        if (n == 1 && wc.status != IBV_WC_SUCCESS)
            CHECK(may_end);
        else if (n == 1) {
            post_recv(id);
            post_send(id);
            if (!is_server && ++rounds % 50 == 0)
                printf("round %ld\n", rounds);
        }
        n = id->send_cq == id->recv_cq ? 0 : ibv_poll_cq(id->send_cq, 1, &wc);
        CHECK(n == 0 || (n == 1 && (may_end || wc.status == IBV_WC_SUCCESS)));
        usleep(500);
    }
}

/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A peer of librdmacm or rsockets that is killed: the survivor's idle rpoll wakes; an idle
 * connection is DISCONNECTED with status 0, as by the peer's kernel, and its receives are flushed;
 * a program that disconnects then hears that nobody answered.
 *
 * dead_peer SERVER CLIENT: the addresses of two devices.
 */
#include "check.h"
#include "patience.h"
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECONDS 60

static struct sockaddr_in at(const char *ip, int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
    CHECK(inet_pton(AF_INET, ip, &a.sin_addr) == 1);
    return a;
}

static struct rdma_cm_event *next(struct rdma_event_channel *c, enum rdma_cm_event_type type)
{
    struct pollfd p = { .fd = c->fd, .events = POLLIN };
    struct rdma_cm_event *e;
    CHECK(poll(&p, 1, patience_ms(SECONDS)) == 1 && !rdma_get_cm_event(c, &e));
    if (e->event != type)
        fprintf(stderr, "%s, not %s\n", rdma_event_str(e->event), rdma_event_str(type));
    CHECK(e->event == type);
    return e;
}

static struct rdma_cm_id *wait_for(struct rdma_event_channel *c, enum rdma_cm_event_type type,
    int status)
{
    struct rdma_cm_event *e = next(c, type);
    struct rdma_cm_id *id = e->id;
    CHECK(e->status == status);
    rdma_ack_cm_event(e);
    return id;
}

static struct rdma_conn_param param(void)
{
    return (struct rdma_conn_param){ .responder_resources = 1, .initiator_depth = 1,
        .retry_count = 7, .rnr_retry_count = 7 };
}

static struct ibv_qp_init_attr queues(void)
{
    return (struct ibv_qp_init_attr){ .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 } };
}

/* The client: connected, it tells so and waits to be killed. */
static void client(struct sockaddr_in server, int tell)
{
    struct rdma_event_channel *c = rdma_create_event_channel();
    struct rdma_cm_id *id;
    struct ibv_qp_init_attr init = queues();
    struct rdma_conn_param p = param();
    CHECK(c && !rdma_create_id(c, &id, NULL, RDMA_PS_TCP));
    CHECK(!rdma_resolve_addr(id, NULL, (struct sockaddr *)&server, 2000));
    wait_for(c, RDMA_CM_EVENT_ADDR_RESOLVED, 0);
    CHECK(!rdma_resolve_route(id, 2000));
    wait_for(c, RDMA_CM_EVENT_ROUTE_RESOLVED, 0);
    CHECK(!rdma_create_qp(id, NULL, &init) && !rdma_connect(id, &p));
    wait_for(c, RDMA_CM_EVENT_ESTABLISHED, 0);
    CHECK(write(tell, "x", 1) == 1);
    pause();
}

/* asks: the server disconnects when the client is dead, before it looks for events. */
static void connection(const char *addresses[2], int port, int asks)
{
    int ready[2], up[2];
    char byte;
    struct sockaddr_in server = at(addresses[0], port);
    CHECK(!pipe(ready) && !pipe(up));
    pid_t child = fork();
    if (!child) {
        CHECK(!setenv("GDRC_ADDRESS", addresses[1], 1) && read(ready[0], &byte, 1) == 1);
        client(server, up[1]);
    }
    CHECK(!setenv("GDRC_ADDRESS", addresses[0], 1));
    struct rdma_event_channel *c = rdma_create_event_channel();
    struct rdma_cm_id *listener;
    CHECK(c && !rdma_create_id(c, &listener, NULL, RDMA_PS_TCP));
    CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&server) && !rdma_listen(listener, 4));
    CHECK(write(ready[1], "x", 1) == 1);
    struct rdma_cm_id *id = wait_for(c, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
    struct ibv_qp_init_attr init = queues();
    struct rdma_conn_param p = param();
    static char bytes[64];
    CHECK(!rdma_create_qp(id, NULL, &init));
    struct ibv_mr *mr = rdma_reg_msgs(id, bytes, sizeof bytes);
    CHECK(mr && !rdma_post_recv(id, NULL, bytes, sizeof bytes, mr) && !rdma_accept(id, &p));
    wait_for(c, RDMA_CM_EVENT_ESTABLISHED, 0);
    CHECK(read(up[0], &byte, 1) == 1 && !kill(child, SIGKILL));
    CHECK(waitpid(child, NULL, 0) == child);
    if (asks)
        CHECK(!rdma_disconnect(id));
    CHECK(wait_for(c, RDMA_CM_EVENT_DISCONNECTED, asks ? -ETIMEDOUT : 0) == id);
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(id->recv_cq, 1, &wc) == 1 && wc.status == IBV_WC_WR_FLUSH_ERR);
    CHECK(!rdma_dereg_mr(mr));
    rdma_destroy_qp(id);
    CHECK(!rdma_destroy_id(id) && !rdma_destroy_id(listener));
    rdma_destroy_event_channel(c);
}

static void socket_of_rdma(const char *addresses[2], int port)
{
    int ready[2];
    char byte;
    struct sockaddr_in server = at(addresses[0], port);
    CHECK(!pipe(ready));
    pid_t child = fork();
    if (!child) {
        CHECK(!setenv("GDRC_ADDRESS", addresses[1], 1) && read(ready[0], &byte, 1) == 1);
        int s = rsocket(AF_INET, SOCK_STREAM, 0);
        CHECK(s >= 0 && !rconnect(s, (struct sockaddr *)&server, sizeof server));
        CHECK(rsend(s, "x", 1, 0) == 1);
        pause();
    }
    CHECK(!setenv("GDRC_ADDRESS", addresses[0], 1));
    int l = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(l >= 0 && !rbind(l, (struct sockaddr *)&server, sizeof server) && !rlisten(l, 4));
    CHECK(write(ready[1], "x", 1) == 1);
    int s = raccept(l, NULL, NULL);
    CHECK(s >= 0 && rrecv(s, &byte, 1, 0) == 1);
    CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
    struct pollfd p = { .fd = s, .events = POLLIN };
    CHECK(rpoll(&p, 1, patience_ms(SECONDS)) == 1 && rrecv(s, &byte, 1, 0) <= 0);
    rclose(s);
    rclose(l);
}

/* Each in a process of its own, whose device begins with it. */
static void alone(void (*part)(const char *[2], int, int), const char *addresses[2], int n)
{
    int status;
    pid_t child = fork();
    if (!child) {
        part(addresses, 20200 + n, n);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void sockets(const char *addresses[2], int port, int n)
{
    (void)n;
    socket_of_rdma(addresses, port);
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    const char *addresses[2] = { argv[1], argv[2] };
    alone(connection, addresses, 0);
    alone(connection, addresses, 1);
    alone(sockets, addresses, 2);
    puts("ok");
    return 0;
}

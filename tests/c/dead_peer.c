/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A peer of librdmacm or rsockets that is killed: the survivor's idle rpoll wakes; an idle
 * connection is DISCONNECTED with status 0, as by the peer's kernel, and its receives are flushed;
 * a program that disconnects then hears that nobody answered.
 *
 * dead_peer SERVER CLIENT [WAY [ROUTER ROUTER]]: the addresses of two devices. With a way, only the
 * client of rsockets ends, by that one, and the server prints what it sees; through two tenants of
 * a router, if these are named.
 */
#include "cm_event.h"
#include "patience.h"
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECONDS 60

static const char *way = "SIGKILL";
static const char *routers[2];

/* The process is one of a device: the server's, or the client's. */
static void be(const char *addresses[2], int which)
{
    CHECK(!setenv("GDRC_ADDRESS", addresses[which], 1));
    if (routers[which])
        CHECK(!setenv("GDRC_ROUTER", routers[which], 1) && !unsetenv("GDRC_ADDRESS"));
}

/* Ends this process, which has a connected socket. */
static void go(int s)
{
    static const struct { const char *name; int number; } signals[] = {
        {"SIGTERM", SIGTERM}, {"SIGKILL", SIGKILL}, {"SIGSEGV", SIGSEGV}};
    struct rlimit none = {0, 0};
    CHECK(!setrlimit(RLIMIT_CORE, &none));
    for (int i = 0; i < 3; i++)
        if (!strcmp(way, signals[i].name)) {
            signal(signals[i].number, SIG_DFL);
            raise(signals[i].number);
        }
    if (!strcmp(way, "close"))
        rclose(s);
    else if (!strcmp(way, "shutdown"))
        rshutdown(s, SHUT_RDWR);
    else if (!strcmp(way, "exit"))
        exit(0);
    else if (!strcmp(way, "quick_exit"))
        quick_exit(0);
    else if (!strcmp(way, "abort"))
        abort();
    else if (!strcmp(way, "execve"))
        execl("/bin/true", "true", NULL);
    else if (!strcmp(way, "child")) {
        pid_t child = fork();
        if (!child)
            exit(0);
        CHECK(waitpid(child, NULL, 0) == child);
        /* The parent goes on: the server looks at what its socket does meanwhile. */
        raise(SIGSTOP);
    } else
        CHECK(!strcmp(way, "_exit"));
    _exit(0);
}

static struct sockaddr_in at(const char *ip, int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons(port) };
    CHECK(inet_pton(AF_INET, ip, &a.sin_addr) == 1);
    return a;
}

static struct rdma_cm_event *next(struct rdma_event_channel *c, enum rdma_cm_event_type type)
{
    struct pollfd p = { .fd = c->fd, .events = POLLIN };
    CHECK(poll(&p, 1, patience_ms(SECONDS)) == 1);
    return next_event(c, type);
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
    int ready[2], told[2], status;
    char byte;
    struct sockaddr_in server = at(addresses[0], port);
    CHECK(!pipe(ready) && !pipe(told));
    pid_t child = fork();
    if (!child) {
        be(addresses, 1);
        CHECK(read(ready[0], &byte, 1) == 1);
        int s = rsocket(AF_INET, SOCK_STREAM, 0);
        CHECK(s >= 0 && !rconnect(s, (struct sockaddr *)&server, sizeof server));
        CHECK(rsend(s, "x", 1, 0) == 1 && read(told[0], &byte, 1) == 1);
        go(s);
    }
    be(addresses, 0);
    int l = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(l >= 0 && !rbind(l, (struct sockaddr *)&server, sizeof server) && !rlisten(l, 4));
    CHECK(write(ready[1], "x", 1) == 1);
    int s = raccept(l, NULL, NULL);
    CHECK(s >= 0 && rrecv(s, &byte, 1, 0) == 1);
    CHECK(write(told[1], "x", 1) == 1 && waitpid(child, &status, WUNTRACED) == child);
    struct pollfd p = { .fd = s, .events = POLLIN };
    int goes_on = WIFSTOPPED(status);
    int woken = rpoll(&p, 1, goes_on ? 200 : patience_ms(SECONDS));
    CHECK(woken == !goes_on);
    int n = woken ? rrecv(s, &byte, 1, 0) : 1;
    CHECK(n <= 0 || goes_on);
    printf("%s\n", goes_on ? "nothing" : n ? strerror(errno) : "the end of the stream");
    if (goes_on)
        CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
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
    CHECK(argc == 3 || argc == 4 || argc == 6);
    const char *addresses[2] = { argv[1], argv[2] };
    if (argc > 3) {
        way = argv[3];
        if (argc == 6)
            routers[0] = argv[4], routers[1] = argv[5];
        socket_of_rdma(addresses, 20202);
        return 0;
    }
    alone(connection, addresses, 0);
    alone(connection, addresses, 1);
    alone(sockets, addresses, 2);
    puts("ok");
    return 0;
}

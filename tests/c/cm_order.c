// Events of rdma_cm on one channel, in the order in which they came: cm_order s|c ADDRESS.
// The server takes none until all of them have come: it waits for the client's last request, which
// comes to a channel of its own. Prints "ok".
#include <arpa/inet.h>
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <string.h>

#include "check.h"
#include "cm_event.h"

#define FIRST_PORT 7771
#define LISTENERS 2
#define ROUNDS 5

static struct rdma_conn_param param = {
    .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};

static struct sockaddr_in at(const char *address, int listener) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(FIRST_PORT + listener)};
    CHECK(inet_pton(AF_INET, address, &a.sin_addr) == 1);
    return a;
}

static void make_qp(struct rdma_cm_id *id) {
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
    CHECK(rdma_create_qp(id, NULL, &init) == 0);
}

static void end(struct rdma_cm_id *id) {
    rdma_destroy_qp(id);
    CHECK(rdma_destroy_id(id) == 0);
}

static void serve(const char *address) {
    struct rdma_event_channel *channels[LISTENERS], *other;
    struct rdma_cm_id *listeners[LISTENERS];
    for (int i = 0; i < LISTENERS; i++) {
        struct sockaddr_in a = at(address, i);
        CHECK((channels[i] = rdma_create_event_channel()));
        CHECK(rdma_create_id(channels[i], &listeners[i], NULL, RDMA_PS_TCP) == 0);
        CHECK(rdma_bind_addr(listeners[i], (struct sockaddr *)&a) == 0);
    }
    CHECK((other = rdma_create_event_channel()));
    for (int i = 0; i < LISTENERS; i++)
        CHECK(rdma_listen(listeners[i], 8) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct rdma_cm_id *a = take_event(channels[0], RDMA_CM_EVENT_CONNECT_REQUEST);
        make_qp(a);
        if (round % 2)
            CHECK(rdma_migrate_id(a, channels[0]) == 0);
        CHECK(rdma_accept(a, &param) == 0);
        struct rdma_cm_id *last = take_event(channels[1], RDMA_CM_EVENT_CONNECT_REQUEST);
        // To itself, or to another channel and back.
        if (round > 1)
            CHECK(rdma_migrate_id(a, round == 2 ? channels[0] : other) == 0);
        if (round > 2)
            CHECK(rdma_migrate_id(a, channels[0]) == 0);
        CHECK(take_event(channels[0], RDMA_CM_EVENT_ESTABLISHED) == a);
        struct rdma_cm_id *b = take_event(channels[0], RDMA_CM_EVENT_CONNECT_REQUEST);
        CHECK(b != a && take_event(channels[0], RDMA_CM_EVENT_DISCONNECTED) == a);
        CHECK(rdma_reject(b, NULL, 0) == 0 && rdma_destroy_id(b) == 0);
        CHECK(rdma_reject(last, NULL, 0) == 0 && rdma_destroy_id(last) == 0);
        end(a);
    }
    for (int i = 0; i < LISTENERS; i++)
        CHECK(rdma_destroy_id(listeners[i]) == 0);
}

// An id that has sent its request to a listener, on a channel of its own.
static struct rdma_cm_id *request(const char *address, int listener) {
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct sockaddr_in a = at(address, listener);
    struct rdma_cm_id *id;
    CHECK(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&a, 2000) == 0);
    take_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(rdma_resolve_route(id, 2000) == 0);
    take_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    make_qp(id);
    CHECK(rdma_connect(id, &param) == 0);
    return id;
}

static void leave(struct rdma_cm_id *id) {
    struct rdma_event_channel *channel = id->channel;
    end(id);
    rdma_destroy_event_channel(channel);
}

static void ask(const char *address) {
    for (int round = 0; round < ROUNDS; round++) {
        struct rdma_cm_id *a = request(address, 0);
        take_event(a->channel, RDMA_CM_EVENT_ESTABLISHED);
        struct rdma_cm_id *b = request(address, 0);
        CHECK(rdma_disconnect(a) == 0);
        struct rdma_cm_id *last = request(address, 1);
        take_event(b->channel, RDMA_CM_EVENT_REJECTED);
        take_event(last->channel, RDMA_CM_EVENT_REJECTED);
        leave(a);
        leave(b);
        leave(last);
    }
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    if (argv[1][0] == 's')
        serve(argv[2]);
    else
        ask(argv[2]);
    puts("ok");
    return 0;
}

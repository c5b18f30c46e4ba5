// What the man pages of librdmacm say of errors, of return values and of what must come before a
// call: each function here is named in tests/data/man-pages.tsv beside the sentences that it
// checks. Argument: the device's address. Prints "ok".
#include <arpa/inet.h>
#include <fcntl.h>
#include <rdma/rdma_verbs.h>
#include <string.h>

#include "cm_event.h"
#include "device.h"

#define IS_MINUS_ONE(call, e) CHECK((errno = 0, (call) == -1) && errno == (e))
#define FAILS(call) CHECK((errno = 0, (call) == -1) && errno != 0)

static struct sockaddr_in own;
static struct rdma_event_channel *channel;

static struct rdma_cm_id *create_id(enum rdma_port_space ps)
{
    struct rdma_cm_id *id;
    CHECK(rdma_create_id(channel, &id, NULL, ps) == 0);
    return id;
}

static struct sockaddr *at(struct sockaddr_in *a, uint16_t port)
{
    *a = own;
    a->sin_port = htons(port);
    return (struct sockaddr *)a;
}

static struct rdma_cm_event *event(enum rdma_cm_event_type wanted)
{
    return next_event(channel, wanted);
}

static void take(enum rdma_cm_event_type wanted)
{
    take_event(channel, wanted);
}

static void no_step_before_the_one_that_it_needs(void)
{
    struct rdma_cm_id *id = create_id(RDMA_PS_TCP);
    struct rdma_conn_param param = {0};
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {1, 1, 1, 1, 0}};
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 1, .max_sge = 1}};
    struct sockaddr_in group = {.sin_family = AF_INET}, a;
    CHECK(inet_pton(AF_INET, "239.1.2.3", &group.sin_addr) == 1);
    FAILS(rdma_create_qp(id, NULL, &init));
    FAILS(rdma_create_srq(id, NULL, &srq));
    // librdmacm itself looks into the device of an id for most calls.
    CHECK(rdma_bind_addr(id, at(&a, 7310)) == 0);
    IS_MINUS_ONE(rdma_connect(id, &param), EINVAL);
    IS_MINUS_ONE(rdma_accept(id, &param), EINVAL);
    FAILS(rdma_reject(id, NULL, 0));
    IS_MINUS_ONE(rdma_disconnect(id), EINVAL);
    FAILS(rdma_join_multicast(id, (struct sockaddr *)&group, NULL));
    struct rdma_cm_join_mc_attr_ex ex = {
        .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
        .join_flags = RDMA_MC_JOIN_FLAG_FULLMEMBER,
        .addr = (struct sockaddr *)&group};
    FAILS(rdma_join_multicast_ex(id, &ex, NULL));
    FAILS(rdma_leave_multicast(id, (struct sockaddr *)&group));
    FAILS(rdma_notify(id, IBV_EVENT_COMM_EST));
    FAILS(rdma_establish(id));
    FAILS(rdma_set_option(id, 9, 9, &param, 4));
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
    int mask;
    FAILS(rdma_init_qp_attr(id, &attr, &mask));
    FAILS(rdma_get_request(id, &id));
    CHECK(rdma_destroy_id(id) == 0);
    // An address of another host, and one that is taken.
    id = create_id(RDMA_PS_TCP);
    struct rdma_cm_id *second = create_id(RDMA_PS_TCP);
    CHECK(inet_pton(AF_INET, "203.0.113.7", &a.sin_addr) == 1);
    a.sin_family = AF_INET;
    a.sin_port = 0;
    FAILS(rdma_bind_addr(id, (struct sockaddr *)&a));
    CHECK(rdma_bind_addr(id, at(&a, 7311)) == 0 && rdma_listen(id, 1) == 0);
    IS_MINUS_ONE(rdma_bind_addr(second, at(&a, 7311)), EADDRINUSE);
    CHECK(rdma_destroy_id(second) == 0 && rdma_destroy_id(id) == 0);
}

static void ports_and_addresses_of_ids(void)
{
    struct rdma_cm_id *id = create_id(RDMA_PS_TCP);
    static const struct sockaddr_in6 zero;
    CHECK(rdma_get_src_port(id) == 0 && rdma_get_dst_port(id) == 0);
    CHECK(memcmp(rdma_get_local_addr(id), &zero, sizeof(struct sockaddr_in)) == 0);
    CHECK(memcmp(rdma_get_peer_addr(id), &zero, sizeof(struct sockaddr_in)) == 0);
    struct sockaddr_in a;
    CHECK(rdma_bind_addr(id, at(&a, 7312)) == 0 && ntohs(rdma_get_src_port(id)) == 7312);
    CHECK(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_addr.s_addr == own.sin_addr.s_addr);
    CHECK(rdma_destroy_id(id) == 0);
    id = create_id(RDMA_PS_TCP);
    // Without a bind, the listen chooses the port.
    if (rdma_listen(id, 1) == 0)
        CHECK(rdma_get_src_port(id) != 0);
    else
        CHECK(errno != 0);
    CHECK(rdma_destroy_id(id) == 0);
}

static void lists_and_words(void)
{
    int n = 0;
    struct ibv_context **list = rdma_get_devices(&n);
    CHECK(list && n >= 1 && list[n] == NULL);
    rdma_free_devices(list);
    CHECK(*rdma_event_str(RDMA_CM_EVENT_ESTABLISHED));
    struct rdma_event_channel *other = rdma_create_event_channel();
    struct rdma_cm_event *e;
    CHECK(other && fcntl(other->fd, F_SETFL, O_NONBLOCK) == 0);
    IS_MINUS_ONE(rdma_get_cm_event(other, &e), EAGAIN);
    struct rdma_cm_id *id = create_id(RDMA_PS_TCP);
    CHECK(rdma_migrate_id(id, other) == 0 && id->channel == other);
    CHECK(rdma_destroy_id(id) == 0);
    rdma_destroy_event_channel(other);
}

struct end {
    struct rdma_cm_id *id;
    struct ibv_mr *mr, *open;
    char memory[128];
};

static void give_qp(struct end *end)
{
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = {4, 4, 1, 1, 0}};
    CHECK(rdma_create_qp(end->id, NULL, &init) == 0);
    CHECK((end->mr = rdma_reg_msgs(end->id, end->memory, 64)));
    CHECK((end->open = rdma_reg_write(end->id, end->memory + 64, 64)));
    struct ibv_mr *read = rdma_reg_read(end->id, end->memory + 64, 64);
    CHECK(read && rdma_dereg_mr(read) == 0);
    IS_MINUS_ONE((errno = 0, rdma_reg_msgs(end->id, (void *)4096, 64) ? 0 : -1), EFAULT);
    CHECK(rdma_post_recv(end->id, NULL, end->memory, 64, end->mr) == 0);
    struct ibv_sge piece = {(uintptr_t)end->memory, 64, end->mr->lkey};
    CHECK(rdma_post_recvv(end->id, NULL, &piece, 1) == 0);
}

/* Posts to one that is not connected are refused. */
static void must_not_send(struct end *e)
{
    struct ibv_sge piece = {(uintptr_t)e->memory, 8, e->mr->lkey};
    const uint64_t to = (uintptr_t)e->memory;
    FAILS(rdma_post_send(e->id, NULL, e->memory, 8, e->mr, 0));
    FAILS(rdma_post_sendv(e->id, NULL, &piece, 1, 0));
    FAILS(rdma_post_read(e->id, NULL, e->memory, 8, e->mr, 0, to, 1));
    FAILS(rdma_post_readv(e->id, NULL, &piece, 1, 0, to, 1));
    FAILS(rdma_post_write(e->id, NULL, e->memory, 8, e->mr, 0, to, 1));
    FAILS(rdma_post_writev(e->id, NULL, &piece, 1, 0, to, 1));
}

static void a_connection_from_its_begin_to_its_end(void)
{
    static struct end client, server;
    struct rdma_cm_id *listener = create_id(RDMA_PS_TCP);
    struct sockaddr_in a;
    CHECK(rdma_bind_addr(listener, at(&a, 7313)) == 0 && rdma_listen(listener, 4) == 0);
    client.id = create_id(RDMA_PS_TCP);
    CHECK(rdma_resolve_addr(client.id, NULL, at(&a, 7313), 2000) == 0);
    take(RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(rdma_resolve_route(client.id, 2000) == 0);
    take(RDMA_CM_EVENT_ROUTE_RESOLVED);
    struct ibv_pd *foreign = ibv_alloc_pd(client.id->verbs);
    CHECK(foreign && ibv_dealloc_pd(foreign) == 0);
    give_qp(&client);
    must_not_send(&client);
    // With a queue pair, the fields for programs without one are ignored.
    struct rdma_conn_param param = {.responder_resources = 1,
                                    .initiator_depth = 1,
                                    .retry_count = 7,
                                    .rnr_retry_count = 7,
                                    .srq = 1,
                                    .qp_num = 0xabcdef};
    CHECK(rdma_connect(client.id, &param) == 0);
    FAILS(rdma_connect(client.id, &param));
    struct rdma_cm_event *request = event(RDMA_CM_EVENT_CONNECT_REQUEST);
    server.id = request->id;
    CHECK(request->param.conn.qp_num == client.id->qp->qp_num);
    give_qp(&server);
    // A retry count is of no effect in an answer.
    struct rdma_conn_param answer = {.responder_resources = 1,
                                     .initiator_depth = 1,
                                     .retry_count = 5,
                                     .rnr_retry_count = 7,
                                     .srq = 1,
                                     .qp_num = 0xabcdef};
    CHECK(rdma_accept(server.id, &answer) == 0 && rdma_ack_cm_event(request) == 0);
    take(RDMA_CM_EVENT_ESTABLISHED);
    take(RDMA_CM_EVENT_ESTABLISHED);
    CHECK(ntohs(rdma_get_dst_port(client.id)) == 7313);
    CHECK(((struct sockaddr_in *)rdma_get_peer_addr(client.id))->sin_addr.s_addr ==
          own.sin_addr.s_addr);
    CHECK(rdma_notify(server.id, IBV_EVENT_COMM_EST) == 0);
    FAILS(rdma_notify(server.id, IBV_EVENT_QP_FATAL));

    struct ibv_wc wc;
    memcpy(client.memory, "a message", 10);
    CHECK(rdma_post_send(client.id, NULL, client.memory, 10, client.mr, 0) == 0);
    CHECK(rdma_get_send_comp(client.id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    CHECK(rdma_get_recv_comp(server.id, &wc) == 1 && wc.byte_len == 10);
    CHECK(rdma_post_write(client.id, NULL, client.memory, 10, client.mr, 0,
                          (uintptr_t)server.memory + 64, server.open->rkey) == 0);
    CHECK(rdma_get_send_comp(client.id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    CHECK(memcmp(server.memory + 64, "a message", 10) == 0);

    CHECK(rdma_disconnect(client.id) == 0);
    take(RDMA_CM_EVENT_DISCONNECTED);
    take(RDMA_CM_EVENT_DISCONNECTED);
    struct end *ends[] = {&client, &server};
    for (int i = 0; i < 2; i++) {
        CHECK(rdma_dereg_mr(ends[i]->mr) == 0 && rdma_dereg_mr(ends[i]->open) == 0);
        rdma_destroy_qp(ends[i]->id);
        CHECK(rdma_destroy_id(ends[i]->id) == 0);
    }
    CHECK(rdma_destroy_id(listener) == 0);
}

static void a_group_is_joined_and_left(void)
{
    struct rdma_cm_id *id = create_id(RDMA_PS_UDP);
    struct sockaddr_in a, group = {.sin_family = AF_INET};
    CHECK(inet_pton(AF_INET, "239.77.0.2", &group.sin_addr) == 1);
    CHECK(rdma_bind_addr(id, at(&a, 7314)) == 0);
    struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_UD, .cap = {1, 1, 1, 1, 0}};
    CHECK(rdma_create_qp(id, NULL, &init) == 0);
    CHECK(rdma_join_multicast(id, (struct sockaddr *)&group, NULL) == 0);
    take(RDMA_CM_EVENT_MULTICAST_JOIN);
    CHECK(rdma_leave_multicast(id, (struct sockaddr *)&group) == 0);
    FAILS(rdma_leave_multicast(id, (struct sockaddr *)&group));
    rdma_destroy_qp(id);
    CHECK(rdma_destroy_id(id) == 0);
}

int main(int argc, char **argv)
{
    CHECK(argc == 2 && (channel = rdma_create_event_channel()));
    own.sin_family = AF_INET;
    CHECK(inet_pton(AF_INET, argv[1], &own.sin_addr) == 1);
    lists_and_words();
    no_step_before_the_one_that_it_needs();
    ports_and_addresses_of_ids();
    a_connection_from_its_begin_to_its_end();
    a_group_is_joined_and_left();
    rdma_destroy_event_channel(channel);
    puts("ok");
    return 0;
}

// Traffic class, hop limit and flow label, of a connection by rdma_cm's TOS and of datagrams by
// their address handles: traffic_class s|c ADDRESS. Each side checks what its queue pairs have; the
// server checks the 40 bytes before each datagram, and answers it. Prints "ok".
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <rdma/rdma_cma.h>
#include <string.h>
#include <unistd.h>

#include "cm_event.h"
#include "rc_pair.h"

#define PORT "7781"
#define TOS 0xb9 // of which the last two bits are the network's
#define QKEY 0x1234
#define GRH 40
#define DATAGRAMS 6
#define SYSTEM 64

// What a datagram was sent with, as its payload.
struct sent {
    uint8_t tclass, hops, number, last;
    uint32_t label;
};

// A UD queue pair with a buffer: the datagram that is sent, and behind it the one that is received.
struct ud {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char *bytes;
};

static void receive(struct ud *u) {
    struct ibv_sge sge = {(uintptr_t)u->bytes + GRH, GRH + sizeof(struct sent), u->mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(u->qp, &wr, &bad) == 0);
}

static struct ud make_ud(struct ibv_pd *pd) {
    struct ud u = {.cq = ibv_create_cq(pd->context, 16, NULL, NULL, 0)};
    CHECK(u.cq && (u.bytes = calloc(1, 4096)));
    u.qp = new_qp(pd, u.cq, IBV_QPT_UD, 4);
    CHECK((u.mr = ibv_reg_mr(pd, u.bytes, 4096, IBV_ACCESS_LOCAL_WRITE)));
    take_to_rts(u.qp, (struct ibv_qp_attr){.port_num = 1, .qkey = QKEY});
    receive(&u);
    return u;
}

static void make_rc(struct rdma_cm_id *id, struct ibv_pd *pd) {
    struct ibv_qp_init_attr init = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}};
    CHECK(rdma_create_qp(id, pd, &init) == 0);
}

// The next completion, of this opcode.
static struct ibv_wc next(struct ud *u, enum ibv_wc_opcode opcode) {
    struct ibv_wc wc = next_wc(u->cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == opcode);
    return wc;
}

static void send_by(struct ud *u, struct ibv_ah *ah, uint32_t qpn, struct sent what) {
    memcpy(u->bytes, &what, sizeof what);
    struct ibv_sge sge = {(uintptr_t)u->bytes, sizeof what, u->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED,
                             .wr.ud = {.ah = ah, .remote_qpn = qpn, .remote_qkey = QKEY}},
                       *bad;
    CHECK(ibv_post_send(u->qp, &wr, &bad) == 0);
    next(u, IBV_WC_SEND);
}

// Checks the 40 bytes of what was received. A router's first datagram of all may lack hop limits.
static void check_header(const struct ud *u, struct sent s) {
    const uint8_t *grh = (uint8_t *)u->bytes + GRH;
    const uint8_t v6 = grh[0] >> 4 == 6;
    uint32_t word;
    memcpy(&word, grh, sizeof word);
    word = ntohl(word);
    uint8_t tclass = v6 ? word >> 20 : grh[21], hops = v6 ? grh[7] : grh[28];
    uint8_t wanted = s.hops <= 1 ? SYSTEM : s.hops;
    printf("%d: class %#x, hop limit %d, flow label %#x\n", s.number, tclass, hops,
           v6 ? word & 0xfffff : 0);
    CHECK((tclass & ~3) == (s.tclass & ~3));
    CHECK(hops == wanted || s.number == 0);
    CHECK(!v6 || !s.label || (word & 0xfffff) == s.label);
}

static struct sent received(const struct ud *u) {
    struct sent s;
    memcpy(&s, u->bytes + 2 * GRH, sizeof s);
    return s;
}

// The class of a connection's packets, as its queue pair has it, and its address vector.
static struct ibv_ah_attr vector_of(struct ibv_qp *qp) {
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(qp, &a, IBV_QP_AV, &init) == 0);
    printf("class of the connection %#x\n", a.ah_attr.grh.traffic_class);
    CHECK((a.ah_attr.grh.traffic_class & ~3) == (TOS & ~3));
    return a.ah_attr;
}

static void serve(struct rdma_event_channel *channel, const struct rdma_addrinfo *at) {
    struct rdma_cm_id *listener;
    CHECK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(listener, at->ai_src_addr) == 0 && rdma_listen(listener, 1) == 0);
    puts("listening");
    struct rdma_cm_id *id = take_event(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
    CHECK(pd);
    struct ud u = make_ud(pd);
    make_rc(id, pd);
    struct ibv_recv_wr empty = {0}, *bad;
    CHECK(ibv_post_recv(id->qp, &empty, &bad) == 0);
    struct rdma_conn_param param = {.private_data = &u.qp->qp_num, .private_data_len = 4,
                                    .retry_count = 7, .rnr_retry_count = 7};
    CHECK(rdma_accept(id, &param) == 0);
    take_event(channel, RDMA_CM_EVENT_ESTABLISHED);
    // Of the request: the answers have it too.
    vector_of(id->qp);
    struct sent s;
    do {
        struct ibv_wc wc = next(&u, IBV_WC_RECV);
        s = received(&u);
        check_header(&u, s);
        struct ibv_ah_attr back;
        struct ibv_grh *grh = (struct ibv_grh *)(u.bytes + GRH);
        CHECK(ibv_init_ah_from_wc(id->verbs, 1, &wc, grh, &back) == 0);
        CHECK((back.grh.traffic_class & ~3) == (s.tclass & ~3));
        struct ibv_ah *ah = ibv_create_ah(pd, &back);
        CHECK(ah);
        receive(&u);
        struct sent answer = s;
        answer.hops = back.grh.hop_limit;
        answer.label = back.grh.flow_label;
        send_by(&u, ah, wc.src_qp, answer);
        CHECK(ibv_destroy_ah(ah) == 0);
    } while (!s.last);
    take_event(channel, RDMA_CM_EVENT_DISCONNECTED);
}

static void ask(struct rdma_event_channel *channel, const struct rdma_addrinfo *to) {
    struct rdma_cm_id *id;
    uint8_t tos = TOS;
    uint32_t peer = 0;
    CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos) == 0);
    CHECK(rdma_resolve_addr(id, NULL, to->ai_dst_addr, 5000) == 0);
    take_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(rdma_resolve_route(id, 5000) == 0);
    take_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
    struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
    CHECK(pd);
    struct ud u = make_ud(pd);
    make_rc(id, pd);
    struct rdma_conn_param param = {.retry_count = 7, .rnr_retry_count = 7};
    CHECK(rdma_connect(id, &param) == 0);
    struct rdma_cm_event *e = next_event(channel, RDMA_CM_EVENT_ESTABLISHED);
    if (e->param.conn.private_data_len >= sizeof peer)
        memcpy(&peer, e->param.conn.private_data, sizeof peer);
    CHECK(rdma_ack_cm_event(e) == 0);
    struct ibv_ah_attr vector = vector_of(id->qp);
    const struct sent all[DATAGRAMS] = {
        {0, 0, 0, 0, 0},         {0x20, 17, 1, 0, 0xabcde}, {0, 1, 2, 0, 0},
        {0x23, 255, 3, 0, 0x1},  {0x68, 0, 4, 0, 0xabcde},  {0x20, 17, 5, 1, 0xabcde}};
    for (int k = 0; k < DATAGRAMS; k++) {
        vector.grh.traffic_class = all[k].tclass;
        vector.grh.hop_limit = all[k].hops;
        vector.grh.flow_label = all[k].label;
        struct ibv_ah *ah = ibv_create_ah(pd, &vector);
        CHECK(ah);
        send_by(&u, ah, peer, all[k]);
        next(&u, IBV_WC_RECV);
        struct sent answer = received(&u);
        CHECK(answer.number == k);
        check_header(&u, answer);
        receive(&u);
        CHECK(ibv_destroy_ah(ah) == 0);
    }
    // A message of the connection, and its ACK.
    struct ibv_send_wr empty = {.opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    CHECK(ibv_post_send(id->qp, &empty, &bad) == 0);
    u.cq = id->send_cq;
    next(&u, IBV_WC_SEND);
    CHECK(rdma_disconnect(id) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    alarm(50);
    setvbuf(stdout, NULL, _IOLBF, 0);
    int server = argv[1][0] == 's';
    struct rdma_addrinfo hints = {.ai_flags = (server ? RAI_PASSIVE : 0) | RAI_NUMERICHOST,
                                  .ai_port_space = RDMA_PS_TCP},
                         *at;
    CHECK(rdma_getaddrinfo(argv[2], PORT, &hints, &at) == 0);
    struct rdma_event_channel *channel = rdma_create_event_channel();
    CHECK(channel);
    (server ? serve : ask)(channel, at);
    puts("ok");
    return 0;
}

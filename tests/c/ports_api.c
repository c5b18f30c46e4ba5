// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * ports_api s|c DEVICE SERVER TIMEOUT ENGINES: as ports.c, by the C API.
 */
#include <arpa/inet.h>
#include <gdrcore.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

#define PORT 7773

static gdrc_context *ctx;
static gdrc_cq cq;
static gdrc_qp qp;
static struct gdrc_mr_attr mr = { .struct_size = sizeof mr };
static uint64_t words[2];
/* The connection may end: its interface is gone, and the retries of a request with it. */
static int may_end;

static void post_recv(void)
{
    struct gdrc_sge sge = { mr.iova, 8, mr.lkey };
    struct gdrc_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 };
    CHECK(gdrc_post_recv(ctx, qp, &wr, NULL) == 0);
}

static void post_send(void)
{
    struct gdrc_sge sge = { mr.iova + 8, 8, mr.lkey };
    struct gdrc_send_wr wr = { .sg_list = &sge,
                               .num_sge = 1,
                               .opcode = GDRC_WR_SEND,
                               .send_flags = GDRC_SEND_SIGNALED };
    CHECK(gdrc_post_send(ctx, qp, &wr, NULL) == 0);
}

/* Prints the port if it has changed, and all events but that of a connection, which is returned. */
static uint32_t look(struct gdrc_cm_event *e)
{
    static struct gdrc_device_attr last;
    struct gdrc_device_attr now = { .struct_size = sizeof now };
    struct gdrc_async_event a;
    uint32_t found = 0;
    while (gdrc_get_async_event(ctx, &a) == 1) {
        if (a.event != GDRC_EVENT_COMM_EST) {
            CHECK(a.handle == 0);
            printf("event %s\n", gdrc_event_str(a.event));
            if (a.event == GDRC_EVENT_GID_CHANGE) {
                static int gid = 1;
                printf("gid %d\n", gid = !gid);
            }
        }
    }
    e->struct_size = sizeof *e;
    while (!found && gdrc_cm_get_event(ctx, e) == 1) {
        may_end |= e->event == GDRC_CM_EVENT_DEVICE_REMOVAL;
        if (e->event == GDRC_CM_EVENT_ADDR_CHANGE || e->event == GDRC_CM_EVENT_DEVICE_REMOVAL)
            printf("%s %d\n", gdrc_cm_event_str(e->event), e->status);
        else if (!may_end || e->event != GDRC_CM_EVENT_DISCONNECTED)
            found = e->event;
    }
    CHECK(gdrc_device_query(ctx, &now) == 0);
    if (now.port_state != last.port_state || now.active_mtu != last.active_mtu)
        printf("state %u, mtu %u\n", now.port_state, 128u << now.active_mtu);
    last = now;
    fflush(stdout);
    return found;
}

/* Waits for an event of a connection. */
static struct gdrc_cm_event take(uint32_t type)
{
    struct gdrc_cm_event e;
    uint32_t found;
    while (!(found = look(&e)))
        CHECK(gdrc_wait(ctx, 100) >= 0);
    CHECK(found == type);
    return e;
}

int main(int argc, char **argv)
{
    struct gdrc_config cfg = { .struct_size = sizeof cfg };
    struct gdrc_qp_init init = { .struct_size = sizeof init, .qp_type = GDRC_QPT_RC };
    struct gdrc_cm_conn_param param = { .struct_size = sizeof param };
    struct gdrc_ah_attr to;
    gdrc_cm_id id;
    gdrc_mr key;
    CHECK(argc == 6);
    int is_server = argv[1][0] == 's';
    memset(&to, 0, sizeof to);
    to.dgid[10] = to.dgid[11] = 0xff;
    CHECK(inet_pton(AF_INET, argv[3], to.dgid + 12) == 1);
    param.ack_timeout = (uint32_t)atoi(argv[4]);
    param.retry_count = param.rnr_retry = 7;
    cfg.engines = (uint32_t)atoi(argv[5]);
    /* An outage is as long as the test's commands take. */
    cfg.keepalive_ms = 600000;
    CHECK(gdrc_open(argv[2], &cfg, &ctx) == 0);
    CHECK(gdrc_pd_alloc(ctx, &init.pd) == 0 && gdrc_cq_create(ctx, 16, &cq, NULL) == 0);
    CHECK(gdrc_mr_reg(ctx, init.pd, words, sizeof words, GDRC_ACCESS_LOCAL_WRITE, &key, &mr) == 0);
    init.send_cq = init.recv_cq = cq;
    init.cap.max_send_wr = init.cap.max_recv_wr = 4;
    init.cap.max_send_sge = init.cap.max_recv_sge = 1;
    CHECK(gdrc_qp_create(ctx, &init, &qp, NULL) == 0);
    if (is_server) {
        CHECK(gdrc_cm_listen(ctx, GDRC_PS_TCP, PORT, 0, 0, &id) == PORT);
        puts("listens");
        id = take(GDRC_CM_EVENT_CONNECT_REQUEST).id;
        CHECK(gdrc_cm_accept(ctx, id, qp, &param) == 0);
    } else {
        CHECK(gdrc_cm_connect(ctx, &to, GDRC_PS_TCP, PORT, qp, &param, &id) == 0);
    }
    post_recv();
    take(GDRC_CM_EVENT_ESTABLISHED);
    if (!is_server)
        post_send();
    for (long rounds = 0;; usleep(500)) {
        struct gdrc_cm_event e;
        struct gdrc_wc wc;
        int n = gdrc_poll_cq(ctx, cq, 1, &wc);
        CHECK(n >= 0 && look(&e) == 0);
        if (n == 0)
            continue;
        CHECK(may_end || wc.status == GDRC_WC_SUCCESS);
        if (wc.status != GDRC_WC_SUCCESS || wc.opcode != GDRC_WC_OP_RECV)
            continue;
        post_recv();
        post_send();
        if (!is_server && ++rounds % 50 == 0)
            printf("round %ld\n", rounds);
    }
}

/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * A multicast group of two devices' queue pairs, by the C API: `mcast DEVICE DEVICE GROUP`, the
 * group an IPv4 or IPv6 address. Members receive what is sent to it, from the moment when they
 * join until they leave. Prints "ok", or what the device says to an attach ("refused: ...").
 */
#include <arpa/inet.h>
#include <string.h>

#include "checked.h"

enum { GRH = 40, QKEY = 0x1234, SLOTS = 4, SLOT = 256 };

struct side {
    gdrc_context *ctx;
    gdrc_pd pd;
    gdrc_cq cq;
    gdrc_qp qp;
    gdrc_mr mr;
    gdrc_mr_attr region;
    uint32_t qpn;
    char buffer[SLOTS * SLOT];
};

static void group_gid(const char *text, uint8_t gid[16])
{
    memset(gid, 0, 16);
    if (inet_pton(AF_INET6, text, gid) == 1)
        return;
    gid[10] = gid[11] = 0xff;
    MUST(inet_pton(AF_INET, text, gid + 12) == 1);
}

static void open_side(struct side *s, const char *device)
{
    memset(s, 0, sizeof *s);
    MUST(gdrc_open(device, NULL, &s->ctx) == 0 && gdrc_pd_alloc(s->ctx, &s->pd) == 0);
    MUST(gdrc_cq_create(s->ctx, 16, &s->cq, NULL) == 0);
    s->region.struct_size = sizeof s->region;
    MUST(gdrc_mr_reg(s->ctx, s->pd, s->buffer, sizeof s->buffer, GDRC_ACCESS_LOCAL_WRITE, &s->mr,
                     &s->region) == 0);
    struct gdrc_qp_init init = {
        .struct_size = sizeof init,
        .qp_type = GDRC_QPT_UD,
        .pd = s->pd,
        .send_cq = s->cq,
        .recv_cq = s->cq,
        .cap = {.max_send_wr = 4, .max_recv_wr = SLOTS, .max_send_sge = 1, .max_recv_sge = 1}};
    MUST(gdrc_qp_create(s->ctx, &init, &s->qp, &s->qpn) == 0);
    struct gdrc_qp_attr a = {
        .struct_size = sizeof a, .qp_state = GDRC_QPS_INIT, .port_num = 1, .qkey = QKEY};
    MUST(gdrc_qp_modify(s->ctx, s->qp, &a,
                        GDRC_QP_STATE | GDRC_QP_PKEY_INDEX | GDRC_QP_PORT | GDRC_QP_QKEY) == 0);
    a.qp_state = GDRC_QPS_RTR;
    MUST(gdrc_qp_modify(s->ctx, s->qp, &a, GDRC_QP_STATE) == 0);
    a.qp_state = GDRC_QPS_RTS;
    MUST(gdrc_qp_modify(s->ctx, s->qp, &a, GDRC_QP_STATE | GDRC_QP_SQ_PSN) == 0);
}

static void close_side(struct side *s)
{
    MUST(gdrc_qp_destroy(s->ctx, s->qp) == 0 && gdrc_mr_dereg(s->ctx, s->mr) == 0);
    MUST(gdrc_cq_destroy(s->ctx, s->cq) == 0 && gdrc_pd_dealloc(s->ctx, s->pd) == 0);
    MUST(gdrc_close(s->ctx, NULL) == 0);
}

static void receive(struct side *s, uint64_t slot)
{
    struct gdrc_sge sge = {(uintptr_t)s->buffer + slot * SLOT, SLOT, s->region.lkey};
    gdrc_recv_wr wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1};
    MUST(gdrc_post_recv(s->ctx, s->qp, &wr, NULL) == 0);
}

static void send_text(struct side *s, gdrc_ah ah, uint32_t qpn, const char *text)
{
    uint32_t len = strlen(text);
    memcpy(s->buffer, text, len);
    struct gdrc_sge sge = {(uintptr_t)s->buffer, len, s->region.lkey};
    gdrc_send_wr wr = {.sg_list = &sge,
                       .num_sge = 1,
                       .opcode = GDRC_WR_SEND,
                       .send_flags = GDRC_SEND_SIGNALED,
                       .wr.ud = {ah, qpn, QKEY}};
    MUST(gdrc_post_send(s->ctx, s->qp, &wr, NULL) == 0);
    MUST(next_wc(s->ctx, s->cq).status == GDRC_WC_SUCCESS);
}

/* The next message of a member: in this slot, these bytes, of that sender. */
static void must_receive(struct side *s, uint64_t slot, const char *text, const struct side *from)
{
    gdrc_wc wc = next_wc(s->ctx, s->cq);
    MUST(wc.status == GDRC_WC_SUCCESS && wc.wr_id == slot && wc.src_qp == from->qpn);
    MUST(wc.byte_len == GRH + strlen(text));
    MUST(memcmp(s->buffer + slot * SLOT + GRH, text, strlen(text)) == 0);
}

int main(int argc, char **argv)
{
    static struct side sender, member;
    uint8_t gid[16];
    gdrc_ah group, one;
    MUST(argc == 4);
    group_gid(argv[3], gid);
    open_side(&sender, argv[1]);
    open_side(&member, argv[2]);
    int rc = gdrc_qp_attach_mcast(member.ctx, member.qp, gid);
    if (rc == -EOPNOTSUPP) {
        printf("refused: %s\n", why());
        MUST(gdrc_qp_detach_mcast(member.ctx, member.qp, gid) == -EINVAL ||
             gdrc_qp_detach_mcast(member.ctx, member.qp, gid) == -EOPNOTSUPP);
        close_side(&member);
        close_side(&sender);
        return 0;
    }
    MUST(rc == 0 && gdrc_qp_attach_mcast(member.ctx, member.qp, gid) == 0);
    for (uint64_t slot = 0; slot < SLOTS; slot++)
        receive(&member, slot);

    /* The sender needs no membership. */
    struct gdrc_ah_attr to = {.hop_limit = 1};
    memcpy(to.dgid, gid, sizeof to.dgid);
    MUST(gdrc_ah_create(sender.ctx, sender.pd, &to, &group) == 0);
    send_text(&sender, group, GDRC_QPN_MULTICAST, "to all of you");
    must_receive(&member, 0, "to all of you", &sender);

    /* Who has left receives what is sent to it alone, and that is next. */
    MUST(gdrc_qp_detach_mcast(member.ctx, member.qp, gid) == 0);
    MUST(gdrc_qp_detach_mcast(member.ctx, member.qp, gid) == -EINVAL);
    send_text(&sender, group, GDRC_QPN_MULTICAST, "to nobody");
    struct gdrc_endpoint e = {.struct_size = sizeof e};
    MUST(gdrc_endpoint_local(member.ctx, member.qp, NULL, &e) == 0);
    memcpy(to.dgid, e.gid, sizeof to.dgid);
    MUST(gdrc_ah_create(sender.ctx, sender.pd, &to, &one) == 0);
    send_text(&sender, one, member.qpn, "to you alone");
    must_receive(&member, 1, "to you alone", &sender);

    MUST(gdrc_qp_attach_mcast(member.ctx, member.qp, gid) == 0);
    send_text(&sender, group, GDRC_QPN_MULTICAST, "again");
    must_receive(&member, 2, "again", &sender);

    MUST(gdrc_qp_destroy(member.ctx, member.qp) == -EBUSY);
    MUST(gdrc_qp_detach_mcast(member.ctx, member.qp, gid) == 0);
    MUST(gdrc_ah_destroy(sender.ctx, one) == 0 && gdrc_ah_destroy(sender.ctx, group) == 0);
    close_side(&member);
    close_side(&sender);
    puts("ok");
    return 0;
}

// Verbs that the drop-in must refuse. Before each call the program prints to standard error the
// line that GDRC_VERBOSE=1 must print: "want VERB: WORDS". tests/tests/dropin_verbose.rs compares.
// Exit code 0: every call was refused with the errno of its line.
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"

static int made;

static void want(const char *words) {
    fprintf(stderr, "want %s\n", words);
    errno = 0;
}

static void refused(int is, int wanted, int line) {
    if (!is || errno != wanted) {
        fprintf(stderr, "refusals.c:%d: refused %d, errno %d, not %d\n", line, is, errno, wanted);
        exit(1);
    }
    made++;
}

// A call that returns a pointer, and one that returns a number.
#define POINTER(words, call, e) (want(words), refused(!(call), e, __LINE__))
#define NUMBER(words, call, e) (want(words), refused((call) != 0, e, __LINE__))
#define INIT_MASK (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define RTR_MASK                                                                    \
    (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | \
     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)

static struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type) {
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = type};
    init.cap = (struct ibv_qp_cap){
        .max_send_wr = 4,
        .max_recv_wr = 4,
        .max_send_sge = 1,
        .max_recv_sge = 1,
        .max_inline_data = 32,
    };
    return ibv_create_qp(pd, &init);
}

static void objects(struct ibv_context *ctx, struct ibv_pd *pd, struct ibv_cq *cq) {
    static char buf[4096];
    POINTER("ibv_open_device: device: NULL: EINVAL", ibv_open_device(NULL), EINVAL);
    POINTER("ibv_create_cq: cqe 0: 1 to 4194304: EINVAL", ibv_create_cq(ctx, 0, NULL, NULL, 0),
            EINVAL);
    POINTER("ibv_create_cq: cqe -1: negative: EINVAL", ibv_create_cq(ctx, -1, NULL, NULL, 0),
            EINVAL);
    // As many as CPUs.
    char words[100];
    snprintf(words, sizeof words,
             "ibv_create_cq: comp_vector 99: the device has %d, from 0 on: EINVAL",
             ctx->num_comp_vectors);
    POINTER(words, ibv_create_cq(ctx, 8, NULL, NULL, 99), EINVAL);
    NUMBER("ibv_resize_cq: cqe -2: negative: EINVAL", ibv_resize_cq(cq, -2), EINVAL);
    POINTER("ibv_reg_mr: the pointer to the pd is NULL: EINVAL", (ibv_reg_mr)(NULL, buf, 64, 0),
            EINVAL);
    POINTER(
        "ibv_reg_mr: access REMOTE_WRITE: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE: EINVAL",
        (ibv_reg_mr)(pd, buf, 64, IBV_ACCESS_REMOTE_WRITE), EINVAL);
    POINTER("ibv_reg_mr: access 0x400: a region takes no 0x400: EINVAL",
            (ibv_reg_mr)(pd, buf, 64, 1024), EINVAL);
    POINTER("ibv_reg_mr_iova2: length 0x10: from iova 0xffffffffffffffff on it leaves the address "
            "space: EINVAL",
            ibv_reg_mr_iova2(pd, buf, 16, UINT64_MAX, 0), EINVAL);
    POINTER("ibv_alloc_mw: mw_type 7: 1 or 2: EINVAL", ibv_alloc_mw(pd, 7), EINVAL);
    struct ibv_srq_init_attr none = {.attr = {.max_wr = 0, .max_sge = 1}};
    POINTER("ibv_create_srq: max_wr 0: 1 to 65536: EINVAL", ibv_create_srq(pd, &none), EINVAL);
    struct ibv_srq_init_attr some = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq *srq = ibv_create_srq(pd, &some);
    CHECK(srq);
    struct ibv_srq_attr limit = {.srq_limit = 99};
    NUMBER("ibv_modify_srq: limit 99: the SRQ holds 4 requests: EINVAL",
           ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), EINVAL);
    NUMBER("ibv_modify_srq: max_wr 0: 1 to 65536: EINVAL",
           ibv_modify_srq(srq, &limit, IBV_SRQ_MAX_WR), EINVAL);
    NUMBER("ibv_modify_srq: srq_attr_mask 0x4: IBV_SRQ_MAX_WR (1) and IBV_SRQ_LIMIT (2): EINVAL",
           ibv_modify_srq(srq, &limit, 4), EINVAL);
    limit.max_wr = 64;
    NUMBER("ibv_modify_srq: max_wr 64: less than the limit, which is 99: EINVAL",
           ibv_modify_srq(srq, &limit, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT), EINVAL);
    NUMBER("ibv_dealloc_pd: pd: 1 objects are in it: EBUSY", ibv_dealloc_pd(pd), EBUSY);
    CHECK(ibv_destroy_srq(srq) == 0);
    union ibv_gid gid;
    uint16_t pkey;
    struct ibv_port_attr port;
    NUMBER("ibv_query_gid: sgid_index 16: the table has 16 entries (0 to 15): EINVAL",
           ibv_query_gid(ctx, 1, 16, &gid), EINVAL);
    struct ibv_gid_entry entry;
    NUMBER("ibv_query_gid_ex: sgid_index 9: the entry is unused (0 to 3 are in use): ENODATA",
           ibv_query_gid_ex(ctx, 1, 9, &entry, 0), ENODATA);
    NUMBER("ibv_query_gid: port_num 2: the device has one port, 1: EINVAL",
           ibv_query_gid(ctx, 2, 0, &gid), EINVAL);
    NUMBER("ibv_query_pkey: index 1: the P_Key table has one entry, 0: EINVAL",
           ibv_query_pkey(ctx, 1, 1, &pkey), EINVAL);
    NUMBER("ibv_query_port: port_num 2: the device has one port, 1: EINVAL",
           ibv_query_port(ctx, 2, &port), EINVAL);
    struct ibv_ah_attr local = {.dlid = 1, .port_num = 1};
    POINTER("ibv_create_ah: is_global 0: RoCE needs a GRH, so set is_global to 1, grh.dgid and "
            "grh.sgid_index (LIDs: GDRC_LID=1): EINVAL",
            ibv_create_ah(pd, &local), EINVAL);
    struct ibv_ah_attr nowhere = {.is_global = 1, .port_num = 1};
    POINTER("ibv_create_ah: dgid ::: neither a host's address nor a group's: EINVAL",
            ibv_create_ah(pd, &nowhere), EINVAL);
}

static void queue_pairs(struct ibv_context *ctx, struct ibv_pd *pd, struct ibv_cq *cq) {
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RAW_PACKET};
    POINTER("ibv_create_qp: qp_type 8: the device has RC (2), UC (3), UD (4) and XRC (9 and 10): "
            "EOPNOTSUPP",
            ibv_create_qp(pd, &init), EOPNOTSUPP);
    init.qp_type = IBV_QPT_RC;
    init.cap.max_send_wr = 1000000;
    POINTER("ibv_create_qp: max_send_wr 1000000: at most 65536: EINVAL", ibv_create_qp(pd, &init),
            EINVAL);
    init.cap.max_send_wr = 1;
    init.cap.max_recv_sge = 1000;
    POINTER("ibv_create_qp: max_recv_sge 1000: at most 32: EINVAL", ibv_create_qp(pd, &init),
            EINVAL);
    init.cap.max_recv_sge = 1;
    init.cap.max_inline_data = 1 << 20;
    POINTER("ibv_create_qp: max_inline_data 1048576: at most 1024: EINVAL",
            ibv_create_qp(pd, &init), EINVAL);
    init.send_cq = NULL;
    POINTER("ibv_create_qp: the pointer to the cq is NULL: EINVAL", ibv_create_qp(pd, &init),
            EINVAL);
    struct ibv_qp_init_attr_ex ex = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
    POINTER("ibv_create_qp_ex: comp_mask 0x0: it lacks IBV_QP_INIT_ATTR_PD: EINVAL",
            ((struct verbs_context *)((char *)ctx - offsetof(struct verbs_context, context)))
                ->create_qp_ex(ctx, &ex),
            EINVAL);

    struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC);
    CHECK(qp);
    struct ibv_qp_attr a = {.qp_state = IBV_QPS_RTS};
    NUMBER(
        "ibv_modify_qp: RESET to RTS: qp_state RTS: RC has no transition to it from RESET: EINVAL",
        ibv_modify_qp(qp, &a, IBV_QP_STATE), EINVAL);
    a.qp_state = IBV_QPS_INIT;
    a.port_num = 1;
    NUMBER("ibv_modify_qp: RESET to INIT: attr_mask lacks ACCESS_FLAGS, PKEY_INDEX, which RC needs "
           "here: EINVAL",
           ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PORT), EINVAL);
    a.port_num = 3;
    NUMBER("ibv_modify_qp: RESET to INIT: port_num 3: the device has one port, 1: EINVAL",
           ibv_modify_qp(qp, &a, INIT_MASK), EINVAL);
    a.port_num = 1;
    a.pkey_index = 5;
    NUMBER("ibv_modify_qp: RESET to INIT: pkey_index 5: at most 0: EINVAL",
           ibv_modify_qp(qp, &a, INIT_MASK), EINVAL);
    a.pkey_index = 0;
    NUMBER(
        "ibv_modify_qp: RESET to INIT: attr_mask has TIMEOUT, which RC does not take here: EINVAL",
        ibv_modify_qp(qp, &a, INIT_MASK | IBV_QP_TIMEOUT), EINVAL);
    a.cur_qp_state = IBV_QPS_RTR;
    NUMBER("ibv_modify_qp: RESET to INIT: cur_qp_state RTR: the QP is in RESET: EINVAL",
           ibv_modify_qp(qp, &a, INIT_MASK | IBV_QP_CUR_STATE), EINVAL);
    CHECK(ibv_modify_qp(qp, &a, INIT_MASK) == 0);

    struct ibv_send_wr send = {.opcode = IBV_WR_SEND}, *bad_send;
    NUMBER("ibv_post_send: qp: it is in INIT, and sends are taken from RTS on: EINVAL",
           ibv_post_send(qp, &send, &bad_send), EINVAL);
    struct ibv_sge piece = {0};
    struct ibv_recv_wr recv = {.sg_list = &piece, .num_sge = 2}, *bad_recv;
    NUMBER("ibv_post_recv: wr->num_sge 2: 0 to 1: EINVAL", ibv_post_recv(qp, &recv, &bad_recv),
           EINVAL);

    a = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = 17,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 12,
    };
    a.ah_attr = (struct ibv_ah_attr){.is_global = 1, .port_num = 1, .grh = {.sgid_index = 1}};
    CHECK(ibv_query_gid(ctx, 1, 1, &a.ah_attr.grh.dgid) == 0);
    a.ah_attr.is_global = 0;
    NUMBER("ibv_modify_qp: INIT to RTR: is_global 0: RoCE needs a GRH, so set is_global to 1, "
           "grh.dgid and grh.sgid_index (LIDs: GDRC_LID=1): EINVAL",
           ibv_modify_qp(qp, &a, RTR_MASK), EINVAL);
    a.ah_attr.is_global = 1;
    a.ah_attr.grh.sgid_index = 17;
    NUMBER("ibv_modify_qp: INIT to RTR: sgid_index 17: the table has 16 entries (0 to 15): EINVAL",
           ibv_modify_qp(qp, &a, RTR_MASK), EINVAL);
    a.ah_attr.grh.sgid_index = 7;
    NUMBER("ibv_modify_qp: INIT to RTR: sgid_index 7: the entry is unused (0 to 3 are in use): "
           "ENODATA",
           ibv_modify_qp(qp, &a, RTR_MASK), ENODATA);
    a.ah_attr.grh.sgid_index = 1;
    a.path_mtu = 9;
    want("ibv_modify_qp: INIT to RTR: path_mtu 9: a code from 1 (256 bytes) to ");
    refused(ibv_modify_qp(qp, &a, RTR_MASK) != 0, EINVAL, __LINE__);
    a.path_mtu = IBV_MTU_1024;
    a.dest_qp_num = 0xffffff;
    NUMBER("ibv_modify_qp: INIT to RTR: dest_qp_num 16777215: at most 16777214: EINVAL",
           ibv_modify_qp(qp, &a, RTR_MASK), EINVAL);
    a.dest_qp_num = 17;
    a.max_dest_rd_atomic = 255;
    NUMBER("ibv_modify_qp: INIT to RTR: max_dest_rd_atomic 255: at most 32: EINVAL",
           ibv_modify_qp(qp, &a, RTR_MASK), EINVAL);
    a.max_dest_rd_atomic = 1;
    a.min_rnr_timer = 32;
    NUMBER("ibv_modify_qp: INIT to RTR: min_rnr_timer 32: at most 31: EINVAL",
           ibv_modify_qp(qp, &a, RTR_MASK), EINVAL);
    a.min_rnr_timer = 12;
    union ibv_gid good = a.ah_attr.grh.dgid;
    a.ah_attr.grh.dgid = (union ibv_gid){{0}};
    NUMBER("ibv_modify_qp: INIT to RTR: dgid ::: no address of one host: EINVAL",
           ibv_modify_qp(qp, &a, RTR_MASK), EINVAL);
    a.ah_attr.grh.dgid = good;
    NUMBER("ibv_modify_qp: INIT to RTR: attr_mask lacks AV, PATH_MTU, which RC needs here: EINVAL",
           ibv_modify_qp(qp, &a, RTR_MASK & ~(IBV_QP_AV | IBV_QP_PATH_MTU)), EINVAL);
    CHECK(ibv_modify_qp(qp, &a, RTR_MASK) == 0);
    NUMBER("ibv_attach_mcast: qp: of type RC, and only UD joins groups: EINVAL",
           ibv_attach_mcast(qp, &good, 0), EINVAL);
    NUMBER("ibv_destroy_cq: cq: 2 queues use it: EBUSY", ibv_destroy_cq(cq), EBUSY);
    CHECK(ibv_destroy_qp(qp) == 0);
}

int main(void) {
    struct ibv_context *ctx = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
    CHECK(pd && cq);
    objects(ctx, pd, cq);
    queue_pairs(ctx, pd, cq);
    // A full queue and an empty CQ are no refusals.
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(ctx) == 0);
    printf("%d refusals\n", made);
    return 0;
}

// SPDX-License-Identifier: MIT OR Apache-2.0
/* The exercises of the lab, solved. skeleton.c has the tasks. */
#include "lab.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>

/* Whether the leading bits of two GIDs are the same. */
static bool same_bits(const uint8_t *a, const uint8_t *b, unsigned bits)
{
    return !memcmp(a, b, bits / 8); /* 104 and 128 are whole bytes */
}

int exercise_1_find_gid(struct lab *lab)
{
    /* Text to address. AI_NUMERICHOST: no name server is asked. */
    struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *found = NULL;
    int err = getaddrinfo(lab->ip, NULL, &hints, &found);
    if (err) {
        gx_error("Give an IPv4 or IPv6 address: 'ip address' shows this machine's.", "'%s': %s",
                 lab->ip, gai_strerror(err));
        return -EINVAL;
    }

    /* Address to GID. A GID is an IPv6 address; an IPv4 address a.b.c.d becomes ::ffff:a.b.c.d. */
    if (found->ai_family == AF_INET6) {
        memcpy(lab->gid, &((const struct sockaddr_in6 *)found->ai_addr)->sin6_addr, 16);
    } else {
        lab->gid[10] = lab->gid[11] = 0xff;
        memcpy(lab->gid + 12, &((const struct sockaddr_in *)found->ai_addr)->sin_addr, 4);
    }
    freeaddrinfo(found);

    /*
     * GID to place in the table: search for the entry that has it. On a NIC: ibv_query_gid(port,
     * index).
     */
    struct lab_gid entry;
    for (unsigned n = 0; (err = lab_gid_table(n, &entry)) == 0; n++) {
        if (same_bits(entry.gid, lab->gid, entry.bits)) {
            strcpy(lab->interface, entry.interface);
            lab->gid_index = entry.index;
            return 0;
        }
    }
    gx_error("'ip address' shows the addresses that it has.", "no interface of this machine has %s",
             lab->ip);
    return err == -ENOENT ? -EADDRNOTAVAIL : err;
}

int exercise_2_create_qp(struct lab *lab, int which)
{
    struct gdrc_qp_init init = { .struct_size = sizeof init };
    init.qp_type = GDRC_QPT_RC;         /* reliable, connected: the type that has all operations */
    init.pd = lab->dev.pd;
    init.send_cq = lab->send_cq; /* queue pairs may share completion queues: wr_id and qp_num of */
    init.recv_cq = lab->recv_cq;        /* completion identify the request */
    init.cap.max_send_wr = 4;
    init.cap.max_recv_wr = 4;
    init.cap.max_send_sge = 1;
    init.cap.max_recv_sge = 1;
    return lab_check(lab, gdrc_qp_create(lab->dev.ctx, &init, &lab->qp[which], &lab->qpn[which]),
                     "gdrc_qp_create");
}

int exercise_3_connect(struct lab *lab, int which)
{
    const struct gdrc_endpoint *local = &lab->local[which], *remote = &lab->remote[which];
    gdrc_qp qp = lab->qp[which];
    struct gdrc_qp_attr attr;

    /*
     * RESET to INIT: the port, and what the peer may do to our memory through this queue pair.
     * Receives may be posted now.
     */
    memset(&attr, 0, sizeof attr);
    attr.struct_size = sizeof attr;
    attr.qp_state = GDRC_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = which == MEMORY ? GDRC_ACCESS_REMOTE_WRITE | GDRC_ACCESS_REMOTE_READ : 0;
    int err =
        gdrc_qp_modify(lab->dev.ctx, qp, &attr,
                       GDRC_QP_STATE | GDRC_QP_PKEY_INDEX | GDRC_QP_PORT | GDRC_QP_ACCESS_FLAGS);
    if (err)
        return lab_check(lab, err, "to INIT: gdrc_qp_modify");

    /*
     * INIT to RTR, ready to receive: the peer's address, and the first packet sequence number that
     * it will send.
     */
    memset(&attr, 0, sizeof attr);
    attr.struct_size = sizeof attr;
    attr.qp_state = GDRC_QPS_RTR;
    memcpy(attr.ah.dgid, remote->gid, sizeof attr.ah.dgid);
    attr.ah.udp_port = (uint16_t)remote->udp_port;
    attr.ah.scope_id = local->scope_id;
    attr.path_mtu = remote->mtu < local->mtu ? remote->mtu : local->mtu;
    attr.dest_qp_num = remote->qpn;
    attr.rq_psn = remote->psn;
    attr.max_dest_rd_atomic =
        (uint8_t)local->max_rd_atomic; /* READs of the peer that we answer at a time */
    attr.min_rnr_timer = 12;           /* "no receive posted: try again in 0.64 ms" */
    err = gdrc_qp_modify(lab->dev.ctx, qp, &attr,
                         GDRC_QP_STATE | GDRC_QP_AV | GDRC_QP_PATH_MTU | GDRC_QP_DEST_QPN |
                             GDRC_QP_RQ_PSN | GDRC_QP_MAX_DEST_RD_ATOMIC | GDRC_QP_MIN_RNR_TIMER);
    if (err)
        return lab_check(lab, err, "to RTR: gdrc_qp_modify");

    /* RTR to RTS, ready to send: our own first number, timeouts and retries. */
    memset(&attr, 0, sizeof attr);
    attr.struct_size = sizeof attr;
    attr.qp_state = GDRC_QPS_RTS;
    attr.sq_psn = local->psn;
    attr.timeout = 14; /* 4.096 us * 2^14 = 67 ms without an ACK: all again, */
    attr.retry_cnt = 7;                                         /* at most 7 times */
    attr.rnr_retry = 7; /* "not ready" is no failure: 7 means for ever */
    attr.max_rd_atomic =
        (uint8_t)remote->max_rd_atomic; /* READs of ours that the peer answers at a time */
    err = gdrc_qp_modify(lab->dev.ctx, qp, &attr,
                         GDRC_QP_STATE | GDRC_QP_SQ_PSN | GDRC_QP_TIMEOUT | GDRC_QP_RETRY_CNT |
                             GDRC_QP_RNR_RETRY | GDRC_QP_MAX_QP_RD_ATOMIC);
    return lab_check(lab, err, "to RTS: gdrc_qp_modify");
}

/* Posts one signalled request and waits for its completion. */
static int post_and_wait(struct lab *lab, int which, const gdrc_send_wr *request)
{
    gdrc_wc wc;
    int err = lab_check(lab, gdrc_post_send(lab->dev.ctx, lab->qp[which], request, NULL),
                        "gdrc_post_send");
    return err ? err : lab_wait(lab, request->wr_id, &wc);
}

int exercise_4_send(struct lab *lab, const char *text, bool with_imm)
{
    size_t length = strlen(text);
    memcpy(lab->text_out, text, length);
    gdrc_sge piece = {
        .addr = lab->text_out_attr.iova,
        .length = (uint32_t)length,
        .lkey = lab->text_out_attr.lkey,
    };
    gdrc_send_wr request = {
        .wr_id = WR_SEND,
        .sg_list = &piece,
        .num_sge = 1,
        .opcode = GDRC_WR_SEND,
        .send_flags = GDRC_SEND_SIGNALED,
    };
    if (with_imm) {
        /*
         * Four bytes with a header of their own, which arrive in the completion instead of the
         * buffer.
         */
        request.opcode = GDRC_WR_SEND_WITH_IMM;
        request.imm_data = htonl(lab->imm);
    }
    return post_and_wait(lab, MESSAGES, &request);
}

int exercise_5_write(struct lab *lab)
{
    gdrc_sge piece = {
        .addr = lab->block_attr.iova,
        .length = (uint32_t)lab->block_bytes,
        .lkey = lab->block_attr.lkey,
    };
    gdrc_send_wr request = {
        .wr_id = WR_WRITE,
        .sg_list = &piece,
        .num_sge = 1,
        .opcode = GDRC_WR_RDMA_WRITE,
        .send_flags = GDRC_SEND_SIGNALED,
    };
    request.wr.rdma.remote_addr = lab->remote[MEMORY].addr;
    request.wr.rdma.rkey = lab->remote[MEMORY].rkey;
    return post_and_wait(lab, MEMORY, &request);
}

int exercise_6_read(struct lab *lab)
{
    /* As the WRITE, but the piece is the destination: its region needs LOCAL_WRITE. */
    gdrc_sge piece = {
        .addr = lab->block_attr.iova,
        .length = (uint32_t)lab->block_bytes,
        .lkey = lab->block_attr.lkey,
    };
    gdrc_send_wr request = {
        .wr_id = WR_READ,
        .sg_list = &piece,
        .num_sge = 1,
        .opcode = GDRC_WR_RDMA_READ,
        .send_flags = GDRC_SEND_SIGNALED,
    };
    request.wr.rdma.remote_addr = lab->remote[MEMORY].addr;
    request.wr.rdma.rkey = lab->remote[MEMORY].rkey;
    return post_and_wait(lab, MEMORY, &request);
}

// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The exercises of the lab, for you to do. Each function stands for one step; lab.c calls them in
 * this order. As long as one is not done the program stops there and says so, so you can build and
 * run after each:
 *
 *   make && build/bin/lab/skeleton -a 127.0.0.1                the server
 *   build/bin/lab/skeleton -a 127.0.0.2 127.0.0.1              the client, in another terminal
 *
 * Either side may also be build/bin/lab/solution: so the other side is right while you look for a
 * fault in yours.
 *
 * All calls are described in include/gdrcore.h. They return 0, or a negative errno; lab_check()
 * says which one, and why. Structs that begin with struct_size: set all fields to 0, then
 * struct_size to sizeof.
 */
#include "lab.h"

/*
 * Exercise 1: find the GID by IP.
 *
 * Wanted: lab->gid, lab->interface and lab->gid_index, for the address in lab->ip.
 *   a. Turn the text into an address: getaddrinfo(3) with AI_NUMERICHOST, or inet_pton(3).
 *   b. Turn the address into a GID, 16 bytes: an IPv6 address as it is, the IPv4 address a.b.c.d as
 *      ::ffff:a.b.c.d, that is ten bytes 00, two bytes ff, and the four bytes of the address.
 *   c. Walk the GID table (lab_gid_table(0, ...), lab_gid_table(1, ...), ...) until an entry's
 *      first `bits` bits are those of your GID; its interface and index are what you want. Behind
 *      the last entry: -EADDRNOTAVAIL, the address is not ours.
 */
int exercise_1_find_gid(struct lab *lab)
{
    (void)lab;
    return lab_todo(1, __func__);
}

/*
 * Exercise 2: create a queue pair.
 *
 * Wanted: lab->qp[which] and lab->qpn[which], from gdrc_qp_create(). It is called twice, for
 * MESSAGES and for MEMORY. Fill in a struct gdrc_qp_init:
 *   qp_type            GDRC_QPT_RC: reliable and connected, the type that has all operations
 *   pd                 lab->dev.pd, where the memory is registered, too
 *   send_cq, recv_cq   lab->send_cq and lab->recv_cq: where completions of each direction come out
 *   cap                4 send and 4 receive requests, one piece (sge) each
 */
int exercise_2_create_qp(struct lab *lab, int which)
{
    (void)lab, (void)which;
    return lab_todo(2, __func__);
}

/*
 * Exercise 3: connect a queue pair.
 *
 * A new queue pair is in state RESET. gdrc_qp_modify() takes it to INIT, to RTR (ready to receive)
 * and to RTS (ready to send): three calls, each with the attributes of that step and a mask that
 * names them. lab->local[which] and lab->remote[which] are what both sides told each other.
 *
 *   to     attributes of struct gdrc_qp_attr              and their bits, besides GDRC_QP_STATE
 *   INIT   port_num 1, pkey_index 0                       GDRC_QP_PORT, GDRC_QP_PKEY_INDEX
 *          qp_access_flags: for MEMORY REMOTE_WRITE and   GDRC_QP_ACCESS_FLAGS
 *            REMOTE_READ, else 0
 *   RTR    ah.dgid, ah.udp_port: the peer's; ah.scope_id: GDRC_QP_AV
 *            ours
 *          path_mtu: the smaller of both sides' mtu       GDRC_QP_PATH_MTU
 *          dest_qp_num, rq_psn: the peer's qpn and psn    GDRC_QP_DEST_QPN, GDRC_QP_RQ_PSN
 *          max_dest_rd_atomic: our max_rd_atomic          GDRC_QP_MAX_DEST_RD_ATOMIC
 *          min_rnr_timer 12 (0.64 ms)                     GDRC_QP_MIN_RNR_TIMER
 *   RTS    sq_psn: our psn                                GDRC_QP_SQ_PSN
 *          timeout 14 (67 ms), retry_cnt 7, rnr_retry 7   GDRC_QP_TIMEOUT, _RETRY_CNT, _RNR_RETRY
 *          max_rd_atomic: the peer's max_rd_atomic        GDRC_QP_MAX_QP_RD_ATOMIC
 *
 * (gdrc_qp_connect() does all of this in one call. Do it by hand once.)
 */
int exercise_3_connect(struct lab *lab, int which)
{
    (void)lab, (void)which;
    return lab_todo(3, __func__);
}

/*
 * Exercise 4: SEND a text, with immediate data if `with_imm`.
 *
 *   a. Copy the text to lab->text_out: the device reads registered memory only.
 *   b. Fill in a gdrc_sge: addr, length and lkey of that memory (lab->text_out_attr has iova and
 *      lkey).
 *   c. Fill in a gdrc_send_wr: wr_id WR_SEND, the piece, opcode GDRC_WR_SEND, flag
 *      GDRC_SEND_SIGNALED (else a success makes no completion). With immediate data:
 *      GDRC_WR_SEND_WITH_IMM, and imm_data = htonl(lab->imm): it travels as it is.
 *   d. gdrc_post_send() on lab->qp[MESSAGES], then lab_wait() for WR_SEND.
 */
int exercise_4_send(struct lab *lab, const char *text, bool with_imm)
{
    (void)lab, (void)text, (void)with_imm;
    return lab_todo(4, __func__);
}

/*
 * Exercise 5: WRITE our block into the peer's.
 *
 * As the SEND, over lab->qp[MEMORY], with GDRC_WR_RDMA_WRITE and WR_WRITE, from lab->block
 * (lab->block_attr), all lab->block_bytes of it; and since the peer's program does nothing, the
 * request says where to: wr.rdma.remote_addr and wr.rdma.rkey, as lab->remote[MEMORY] has them.
 * Wait for the completion: only it says that the bytes are there.
 */
int exercise_5_write(struct lab *lab)
{
    (void)lab;
    return lab_todo(5, __func__);
}

/*
 * Exercise 6: READ the peer's block into ours.
 *
 * No more hints: it differs from the WRITE in two words. Then try what happens with a wrong rkey,
 * with a length that is one byte too long, and without GDRC_ACCESS_REMOTE_READ on the peer's queue
 * pair: read what both sides say.
 */
int exercise_6_read(struct lab *lab)
{
    (void)lab;
    return lab_todo(6, __func__);
}

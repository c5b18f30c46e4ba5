// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The lab's program. One source, two builds:
 *
 *   lab.c        the steps that are given, and the order of all steps: read it first
 *   skeleton.c   the six exercises, with what you need to know, and room for your code
 *   solution.c   the six exercises, done
 *
 * What it does, between a server and a client:
 *
 *   client                                          server
 *     SEND a text, with or without immediate data --> a receive request completes: prints it
 *     WRITE a block                               --> notices nothing
 *     SEND "the block is there"                   --> a receive request completes: checks the
 *                                                     block,
 *     a receive request completes                 <-- puts its own in place, SEND "your turn"
 *     READ the block                              --> notices nothing
 *     checks it
 *
 * Messages (SEND) go over one queue pair, access to memory (WRITE, READ) over another: the first
 * gives the peer no right to touch anything, the second does, and only where the peer was told the
 * key of one block.
 */
#ifndef LAB_H
#define LAB_H

#include "../common/gx.h"

#include <net/if.h>

#define LAB_TEXT_MAX 1024u

/* Which queue pair. */
enum { MESSAGES = 0, MEMORY = 1, QPS = 2 };

/* The value of wr_id. The device returns it in the completion, which so identifies the request. */
enum { WR_RECV = 1, WR_SEND = 2, WR_WRITE = 3, WR_READ = 4 };

struct lab {
    /* Chosen by options. */
    const char *ip;             /* our address, as text */
    const char *server;         /* the server's address; NULL: we are the server */
    const char *text;           /* what the client sends */
    bool has_imm, wrong_key;
    uint32_t imm;
    size_t block_bytes;

    /* Exercise 1: our GID, the interface that has it, and its index there. */
    uint8_t gid[16];
    char interface[IF_NAMESIZE];
    unsigned gid_index;

    /*
     * Step 2: dev.ctx is the open device, dev.pd the protection domain, dev.attr what the device
     * can do.
     */
    struct gx_dev dev;

    /* Step 3: registered memory. */
    char text_in[LAB_TEXT_MAX], text_out[LAB_TEXT_MAX];
    gdrc_mr text_in_mr, text_out_mr, block_mr;
    struct gdrc_mr_attr text_in_attr, text_out_attr, block_attr;
    uint8_t *block;

    /* Exercise 2: two completion queues (made in lab.c) and two queue pairs. */
    gdrc_cq send_cq, recv_cq;
    gdrc_qp qp[QPS];
    uint32_t qpn[QPS];

    /*
     * Step 4: what both sides sent each other, per queue pair. remote[MEMORY] also names the peer's
     * block.
     */
    struct gdrc_endpoint local[QPS], remote[QPS];
    struct gx_conn conn;
};

/* The exercises. Each returns 0, or a negative errno: lab_todo()'s where it is not done yet. */
int exercise_1_find_gid(struct lab *lab);
int exercise_2_create_qp(struct lab *lab, int which);
int exercise_3_connect(struct lab *lab, int which);
int exercise_4_send(struct lab *lab, const char *text, bool with_imm);
int exercise_5_write(struct lab *lab);
int exercise_6_read(struct lab *lab);

/* For the exercises. */

/* An entry of this machine's GID table. */
struct lab_gid {
    char interface[IF_NAMESIZE];
    unsigned index;             /* counts the addresses of this interface, IPv4 first */
    uint8_t gid[16];
    /* Leading bits of a GID that must be equal: 128, but 104 for 127.0.0.1, whose /8 is ours. */
    unsigned bits;
};
/*
 * The nth entry, over all interfaces. Returns 0, -ENOENT behind the last one, or the system's
 * error.
 */
int lab_gid_table(unsigned n, struct lab_gid *out);

/*
 * Waits until the request with this wr_id has completed, and returns its completion. Prints a
 * failure.
 */
int lab_wait(struct lab *lab, uint64_t wr_id, gdrc_wc *wc);
/* Prints a call's error, and returns it; returns 0 or a count unchanged. */
int lab_check(struct lab *lab, int result, const char *call);
/* Prints which exercise is next, and returns -ENOSYS. */
int lab_todo(int exercise, const char *function);

#endif

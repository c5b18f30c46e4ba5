// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A hostile client of rdma_copy_file: copy_liar PORT FROM TO LIE. Connects as the real client does,
 * sends one slot of records with a fault, and prints the server's answer.
 */
#include "rdma_copy/copy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define SIZE 4096u

static uint8_t slot[SIZE];
static uint32_t used;

static void put(unsigned type, uint64_t a, uint64_t b, const void *bytes, size_t length)
{
    struct record r = {
        .type = (uint16_t)type,
        .mode = 0644,
        .length = (uint32_t)length,
        .a = a,
        .b = b,
    };
    record_put(slot + used, &r);
    memcpy(slot + used + RECORD_BYTES, bytes, length);
    used += RECORD_BYTES + (uint32_t)length;
}

static void put_path(unsigned type, uint64_t a, uint64_t b, const char *path)
{
    put(type, a, b, path, strlen(path));
}

/*
 * Fills the slot with the fault of this name. Returns the flags for the greeting, or -1: there is
 * no such fault.
 */
static int lie(const char *name)
{
    static const uint8_t offer[] = { 0, 0, 0, 0, '.', '.', '/', 'x' }, done[8];
    int flags = 0;
    if (!strcmp(name, "hole-too-long")) {
        put_path(REC_FILE, 10, 0, "liar");
        put(REC_HOLE, UINT64_MAX, 0, "", 0);
    } else if (!strcmp(name, "hole-without-size")) {
        put_path(REC_FILE, COPY_SIZE_UNKNOWN, 0, "liar");
        put(REC_HOLE, 1ull << 60, 0, "", 0);
    } else if (!strcmp(name, "end-too-early")) {
        put_path(REC_FILE, 10, 0, "liar");
        put(REC_DATA, 0, 0, "12345", 5);
        put(REC_END, gx_crc32c(0, "12345", 5), 5, "", 0);
    } else if (!strcmp(name, "end-with-another-size")) {
        put_path(REC_FILE, COPY_SIZE_UNKNOWN, 0, "liar");
        put(REC_DATA, 0, 0, "12345", 5);
        put(REC_END, gx_crc32c(0, "12345", 5), 6, "", 0);
    } else if (!strcmp(name, "wrong-checksum")) {
        flags = COPY_UPDATE | COPY_RESUME;
        put_path(REC_FILE, 5, 0, "liar");
        put(REC_DATA, 0, 0, "12345", 5);
        put(REC_END, 1, 5, "", 0);
    } else if (!strcmp(name, "resume-unasked")) {
        put_path(REC_FILE, 10, 0, "liar");
        put(REC_RESUME, 5, 1, "", 0);
    } else if (!strcmp(name, "resume-beyond-the-end")) {
        flags = COPY_UPDATE | COPY_RESUME;
        put_path(REC_FILE, 10, 0, "liar");
        put(REC_RESUME, 1ull << 63, 1, "", 0);
    } else if (!strcmp(name, "keep-unasked")) {
        put_path(REC_KEEP, 3, 0, "there");
    } else if (!strcmp(name, "keep-what-is-not-there")) {
        flags = COPY_UPDATE;
        put_path(REC_KEEP, 4, 0, "there");
    } else if (!strcmp(name, "keep-outside")) {
        flags = COPY_UPDATE;
        put_path(REC_KEEP, 3, 0, "../from/data");
    } else if (!strcmp(name, "keep-a-link")) {
        flags = COPY_UPDATE;
        put_path(REC_KEEP, 3, 0, "link");
    } else if (!strcmp(name, "offer-outside")) {
        flags = COPY_CHECKSUM;
        put(REC_OFFER, 3, 0, offer, sizeof offer);
    } else if (!strcmp(name, "offer-without-path")) {
        flags = COPY_CHECKSUM;
        put(REC_OFFER, 3, 0, "ab", 2);
    } else if (!strcmp(name, "offer-unasked")) {
        put(REC_OFFER, 3, 0, "abcdefg", 7);
    } else if (!strcmp(name, "drop-nothing")) {
        put(REC_DROP, 0, 0, "", 0);
    } else if (!strcmp(name, "done-with-other-counts")) {
        put(REC_DONE, 0, 1, done, sizeof done);
    } else if (!strcmp(name, "done-cut")) {
        put(REC_DONE, 0, 0, done, 7);
    } else if (!strcmp(name, "unknown-option")) {
        flags = 1 << 20;
    } else if (!strcmp(name, "stop-at-once")) {
        flags = COPY_UPDATE | COPY_RESUME;
        put_path(REC_FILE, 10, 0, "liar");
    } else {
        return -1;
    }
    return flags;
}

int main(int argc, char **argv)
{
    struct gx_dev dev = { 0 };
    struct gx_conn conn = { .fd = -1, .passed_fd = -1 };
    struct gdrc_endpoint remote;
    struct gdrc_mr_attr attr;
    gdrc_cq cq;
    gdrc_qp qp;
    gdrc_mr mr;
    uint8_t hello[20], body[GX_BODY_MAX];
    unsigned type;
    int flags = argc == 5 ? lie(argv[4]) : -1;
    gx_program = "copy_liar";
    if (flags < 0 || gx_dev_open(&dev, argv[2], 0, NULL) ||
        gdrc_cq_create(dev.ctx, 16, &cq, NULL) ||
        gx_mr_register(&dev, slot, sizeof slot, GDRC_ACCESS_LOCAL_WRITE, &mr, &attr) ||
        gx_qp_create(&dev, cq, 4, 4, 1, &qp, NULL) ||
        gx_tcp_connect(&conn, argv[3], (uint16_t)atoi(argv[1]), NULL, GX_TIMEOUT_MS))
        return 2;
    conn.ctx = dev.ctx;
    gx_put32(hello, SIZE);
    gx_put32(hello + 4, 4);
    gx_put64(hello + 8, 0);
    gx_put32(hello + 16, (uint32_t)flags);
    bool good = !gx_conn_send(&conn, COPY_MSG_HELLO, hello, sizeof hello, -1, "hello") &&
                gx_conn_recv(&conn, COPY_MSG_TARGET, body, sizeof body, GX_TIMEOUT_MS, "target") ==
                    TARGET_BYTES &&
                !gx_qp_handshake(&dev, qp, NULL, &conn, 0, &remote) && !gx_ready(&conn);
    if (good && used) {
        gdrc_sge piece = { .addr = attr.iova, .length = used, .lkey = attr.lkey };
        gdrc_send_wr wr = {
            .sg_list = &piece,
            .num_sge = 1,
            .opcode = GDRC_WR_RDMA_WRITE_WITH_IMM,
            .imm_data = htonl(used),
        };
        wr.wr.rdma.remote_addr = remote.addr;
        wr.wr.rdma.rkey = remote.rkey;
        good = !gdrc_post_send(dev.ctx, qp, &wr, NULL) &&
               (strcmp(argv[4], "stop-at-once") ||
                !gx_conn_send(&conn, COPY_MSG_STOP, NULL, 0, -1, "stop"));
    }
    /* Waits for the server's first message. */
    for (uint64_t end = gx_now_ns() + 20000000000u; good && gx_now_ns() < end;) {
        gx_conn_pump(&conn);
        int n = gx_conn_take(&conn, &type, body, sizeof body);
        if (n == -EAGAIN) {
            struct pollfd p = { .fd = conn.fd, .events = POLLIN };
            gx_sleep(dev.ctx, &cq, &p, 1, 100);
            continue;
        }
        printf("the server says %u: ", n < 0 ? 0 : type);
        gx_print_bytes(stdout, body, n < 0 ? 0 : (size_t)n, sizeof body);
        putchar('\n');
        break;
    }
    gx_conn_close(&conn);
    gdrc_qp_destroy(dev.ctx, qp);
    gdrc_mr_dereg(dev.ctx, mr);
    gdrc_cq_destroy(dev.ctx, cq);
    gx_dev_close(&dev);
    return good ? 0 : 1;
}

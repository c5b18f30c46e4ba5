// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * rdma: one message from one process to another, and nothing else. Read this first.
 *
 *   rdma -d soft:127.0.0.1                       waits for a message and prints it
 *   rdma -d soft:127.0.0.2 127.0.0.1 "hello"     sends it
 *
 * What every RDMA program does, in this order:
 *   1. open a device, allocate a protection domain     gx_dev_open: gdrc_open, gdrc_pd_alloc
 *   2. register the memory that the device may touch   gdrc_mr_reg
 *   3. make a completion queue and a queue pair        gdrc_cq_create, gdrc_qp_create
 *   4. tell the other side about it by other means     gx_qp_handshake: gdrc_endpoint_local, TCP
 *   5. connect                                         gdrc_qp_connect
 *   6. post work requests, poll for their completions  gdrc_post_recv, gdrc_post_send, gdrc_poll_cq
 */
#include "../common/gx.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define PORT 18517
#define MESSAGE_MAX 4096

static void usage(FILE *to)
{
    fprintf(to,
            "usage: rdma [-d DEVICE] [-p PORT]                 receive one message and print it\n"
            "       rdma [-d DEVICE] [-p PORT] HOST [MESSAGE]  send it\n\n"
            "  -d, --device DEVICE   soft:ADDRESS[:PORT], an address of this machine, or a network "
            "interface\n"
            "  -p, --port PORT       TCP port for the introduction (default %d)\n"
            "  -h, --help            this text\n"
            "  -V, --version         the version\n",
            PORT);
}

/* Waits for the sender's connection. */
static int wait_for_sender(struct gx_dev *dev, uint16_t port, struct gx_conn *conn)
{
    int listener = gx_tcp_listen(dev->address, port), err = listener;
    if (listener >= 0) {
        printf("waiting on %s port %u\n", dev->address, port);
        fflush(stdout);
        struct pollfd p = { .fd = listener, .events = POLLIN };
        while ((err = gx_accept(listener, conn, dev->ctx)) == -EAGAIN &&
               (err = gx_sleep(dev->ctx, NULL, &p, 1, 1000)) >= 0)
            ;
        close(listener);
    }
    return err;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        { "device", required_argument, NULL, 'd' },
        { "port", required_argument, NULL, 'p' },
        GX_COMMON_OPTIONS,
    };
    static char buffer[MESSAGE_MAX];
    const char *device = NULL;
    uint64_t port = PORT;
    gx_program = "rdma";
    for (int c; (c = gx_getopt(argc, argv, "d:p:hV", longs)) != -1;) {
        if (c == 'd')
            device = optarg;
        else if (c == 'h')
            return usage(stdout), GX_EXIT_OK;
        else if (c != 'p' || gx_parse_number(optarg, "--port", 1, 65535, &port))
            return gx_note("try 'rdma --help'"), GX_EXIT_USAGE;
    }
    const char *host = optind < argc ? argv[optind++] : NULL,
               *text = optind < argc ? argv[optind++] : "hello";
    if (optind < argc || strlen(text) >= MESSAGE_MAX)
        return gx_error("Put a message of several words in quotes; it has at most 4095 bytes.",
                        "bad arguments"),
               GX_EXIT_USAGE;
    gx_catch_signals();

    struct gx_conn conn = { .fd = -1, .passed_fd = -1 };
    struct gdrc_endpoint remote;
    struct gdrc_mr_attr attr;
    gdrc_cq cq = { 0 };
    gdrc_qp qp = { 0 };
    gdrc_mr mr = { 0 };
    gdrc_wc wc;

    /* 1. The device: a RoCEv2 NIC made of software, at one of this machine's addresses. */
    struct gx_dev dev;
    if (gx_dev_open(&dev, device, 0, NULL))
        return GX_EXIT_FAILED;

    /*
     * 2. The memory. LOCAL_WRITE: the device may store received data. The peer has no access of its
     *    own.
     */
    int err = gx_mr_register(&dev, buffer, sizeof buffer, GDRC_ACCESS_LOCAL_WRITE, &mr, &attr);

    /* 3. Completions of both queues come out of one CQ. */
    if (!err)
        err = gdrc_cq_create(dev.ctx, 16, &cq, NULL);
    if (!err)
        err = gx_qp_create(&dev, cq, 1, 1, 1, &qp, NULL);

    /* 4. and 5. Introduce ourselves over TCP, and connect. */
    conn.ctx = dev.ctx;
    if (!err)
        err = host ? gx_tcp_connect(&conn, host, (uint16_t)port, NULL, GX_TIMEOUT_MS)
                   : wait_for_sender(&dev, (uint16_t)port, &conn);
    if (!err)
        err = gx_qp_handshake(&dev, qp, NULL, &conn, 0, &remote);

    /*
     * 6. The receiver posts its buffer before it reports that it is ready: no message comes without
     *    a buffer for it.
     */
    gdrc_sge piece = { .addr = attr.iova, .length = sizeof buffer, .lkey = attr.lkey };
    gdrc_recv_wr recv = { .wr_id = 1, .sg_list = &piece, .num_sge = 1 };
    if (!err && !host)
        err = gdrc_post_recv(dev.ctx, qp, &recv, NULL);
    if (!err)
        err = gx_ready(&conn);
    if (!err && host) {
        strcpy(buffer, text);
        piece.length = (uint32_t)strlen(text);
        gdrc_send_wr send = {
            .wr_id = 2,
            .sg_list = &piece,
            .num_sge = 1,
            .opcode = GDRC_WR_SEND,
            .send_flags = GDRC_SEND_SIGNALED,
        };
        err = gdrc_post_send(dev.ctx, qp, &send, NULL);
    }

    /*
     * The sender's completion means that the message is in the receiver's memory; the receiver's,
     * that it may read it.
     */
    if (!err)
        err = gx_wait_completion(&dev, cq, qp, &wc, &conn, GX_TIMEOUT_MS, host ? "SEND" : "RECV");
    if (!err && host)
        printf("sent %zu bytes\n", strlen(text));
    if (!err && !host) {
        printf("received %u bytes: ", wc.byte_len);
        gx_print_bytes(stdout, buffer, wc.byte_len, MESSAGE_MAX);
        putchar('\n');
    }

    /*
     * The side that exits first must not drop the other's last acknowledgement: wait for each
     * other.
     */
    if (!err)
        err = gx_ready(&conn);
    if (qp.handle)
        gdrc_qp_destroy(dev.ctx, qp);
    if (cq.handle)
        gdrc_cq_destroy(dev.ctx, cq);
    if (mr.handle)
        gdrc_mr_dereg(dev.ctx, mr);
    gx_conn_close(&conn);
    gx_dev_close(&dev);
    return gx_exit_code(err);
}

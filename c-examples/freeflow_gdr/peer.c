// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * peer: reads by RDMA what a client wrote into a router's buffer, shows and checks it, and writes
 * an answer by RDMA. Neither router nor client copies a byte meanwhile.
 */
#include "note.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct peer {
    struct gx_dev dev;
    struct gx_conn router;
    struct gx_mem mem;
    const char *kind;
    gdrc_cq cq;
    gdrc_qp qp;
    gdrc_mr mr;
    struct gdrc_mr_attr attr;
    struct gdrc_endpoint remote;
};

static void usage(FILE *to)
{
    fprintf(to,
            "usage: peer [options] ROUTER-ADDRESS\n"
            "Reads the router's buffer by RDMA, checks it, and writes an answer by RDMA.\n\n"
            "  -d, --device DEVICE     soft:ADDRESS[:PORT], an address of this machine, or a "
            "network interface\n"
            "                          (default: the address from which the router is reached)\n"
            "  -g, --gid-index N       which of the interface's addresses (default 0)\n"
            "  -p, --port PORT         the router's TCP port (default %d)\n"
            "  -m, --message TEXT      the answer\n"
            "  -f, --file FILE         answer with this file instead\n"
            "  -o, --output FILE       save what was read\n"
            "  -M, --memory KIND       our own buffer: host, or cuda[:BDF] (default host)\n"
            "  -t, --timeout SECONDS   wait so long for the router's readiness (default 60)\n"
            "  -h, --help              this text\n"
            "  -V, --version           the version\n",
            FF_PORT);
}

/* One RDMA READ or WRITE of a part of the buffer, done when it returns. */
static int transfer(struct peer *p, uint32_t opcode, size_t offset, size_t length, const char *what)
{
    gdrc_sge piece = {
        .addr = p->attr.iova + offset,
        .length = (uint32_t)length,
        .lkey = p->attr.lkey,
    };
    gdrc_send_wr wr;
    gdrc_wc wc;
    memset(&wr, 0, sizeof wr);
    wr.wr_id = opcode;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = GDRC_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = p->remote.addr + offset;
    wr.wr.rdma.rkey = p->remote.rkey;
    int err = gdrc_post_send(p->dev.ctx, p->qp, &wr, NULL);
    if (err) {
        gx_explain_call(&p->dev, err, what);
        return err;
    }
    return gx_wait_completion(&p->dev, p->cq, p->qp, &wc, &p->router, 6 * GX_TIMEOUT_MS, what);
}

static int connect_to_router(struct peer *p, const char *address, uint16_t port, const char *device,
                             unsigned gid_index, int patience_ms)
{
    char own[80];
    int err = device ? gx_dev_address(device, gid_index, own, sizeof own) : 0;
    if (!err)
        err = gx_tcp_connect(&p->router, address, port, device ? own : NULL, GX_TIMEOUT_MS);
    if (!err && !device)
        err = gx_conn_local_address(&p->router, own, sizeof own);
    if (err)
        return err;
    gx_step("connected to the router at %s", p->router.peer);
    err = gx_dev_open(&p->dev, device ? device : own, device ? gid_index : 0, NULL);
    if (err)
        return err;
    gx_step("device %s is open", p->dev.name);
    p->router.ctx = p->dev.ctx;
    err = gdrc_cq_create(p->dev.ctx, 16, &p->cq, NULL);
    if (err) {
        gx_explain_call(&p->dev, err, "creating a CQ");
        return err;
    }
    err = gx_qp_create(&p->dev, p->cq, 4, 4, 1, &p->qp, NULL);
    if (err)
        return err;
    /* The router turns to us once its client has written. */
    int n = gx_conn_recv(&p->router, FF_MSG_HELLO, NULL, 0, patience_ms,
                         "readiness (is a client there?)");
    err = n < 0 ? n : gx_qp_handshake(&p->dev, p->qp, NULL, &p->router, 5, &p->remote);
    return err ? err : gx_ready(&p->router);
}

static int read_note(struct peer *p, struct note *note)
{
    uint8_t header[NOTE_HEADER_BYTES];
    if (p->remote.length < NOTE_HEADER_BYTES || p->remote.length > FF_SIZE_MAX) {
        gx_error("Router and peer must be of the same version.",
                 "the router offers a buffer of %llu bytes", (unsigned long long)p->remote.length);
        return -EPROTO;
    }
    struct gdrc_memory memory;
    int err = gx_mem_alloc(&p->mem, p->kind, (size_t)p->remote.length, false);
    gx_mem_describe(&p->mem, &memory);
    if (!err)
        err = gx_mem_register(&p->dev, &memory, GDRC_ACCESS_LOCAL_WRITE, &p->mr, &p->attr);
    if (!err)
        err = transfer(p, GDRC_WR_RDMA_READ, 0, NOTE_HEADER_BYTES, "RDMA READ of the header");
    if (!err)
        err = gx_mem_read(&p->mem, 0, header, sizeof header);
    if (err)
        return err;
    /*
     * Trust the length only after it was checked against the buffer; note_check() tells the user
     * what is wrong.
     */
    if (note_parse(header, p->mem.length, note))
        return note_check(&p->mem, note);
    if (note->length)
        err = transfer(p, GDRC_WR_RDMA_READ, NOTE_HEADER_BYTES, (size_t)note->length,
                       "RDMA READ of the payload");
    return err ? err : note_check(&p->mem, note);
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        { "device", required_argument, NULL, 'd' },  { "gid-index", required_argument, NULL, 'g' },
        { "port", required_argument, NULL, 'p' },    { "message", required_argument, NULL, 'm' },
        { "file", required_argument, NULL, 'f' },    { "output", required_argument, NULL, 'o' },
        { "timeout", required_argument, NULL, 't' }, { "memory", required_argument, NULL, 'M' },
        GX_COMMON_OPTIONS,
    };
    const char *device = NULL, *kind = "host", *file = NULL, *output = NULL,
               *text = "Hello from the peer, written by RDMA.";
    uint64_t gid_index = 0, port = FF_PORT, patience_s = 60;
    int bad = 0;
    gx_program = "peer";
    for (int c; (c = gx_getopt(argc, argv, "d:g:p:m:f:o:t:M:hV", longs)) != -1;) {
        switch (c) {
        case 'd': device = optarg; break;
        case 'g': bad |= gx_parse_number(optarg, "--gid-index", 0, 255, &gid_index); break;
        case 'p': bad |= gx_parse_number(optarg, "--port", 1, 65535, &port); break;
        case 'm': text = optarg; break;
        case 'f': file = optarg; break;
        case 'o': output = optarg; break;
        case 't': bad |= gx_parse_number(optarg, "--timeout", 1, 86400, &patience_s); break;
        case 'M': kind = optarg; break;
        case 'h': usage(stdout); return GX_EXIT_OK;
        default: gx_note("try 'peer --help'"); return GX_EXIT_USAGE;
        }
    }
    if (bad)
        return GX_EXIT_USAGE;
    if (optind + 1 != argc) {
        gx_error("For example: peer -d soft:127.0.0.2 127.0.0.1", "give the router's address");
        return GX_EXIT_USAGE;
    }
    gx_catch_signals();

    struct peer p;
    struct note note;
    char writer[41];
    memset(&p, 0, sizeof p);
    p.router.fd = p.router.passed_fd = p.mem.fd = -1;
    p.kind = kind;
    int err = connect_to_router(&p, argv[optind], (uint16_t)port, device, (unsigned)gid_index,
                                (int)patience_s * 1000);
    if (err)
        goto out;
    gx_step("queue pair is connected; the router's buffer: %llu bytes at 0x%llx, rkey 0x%08x",
            (unsigned long long)p.remote.length, (unsigned long long)p.remote.addr, p.remote.rkey);

    err = read_note(&p, &note);
    if (err) {
        gx_conn_send_error(&p.router, "the peer could not read the note");
        goto out;
    }
    gx_step("RDMA READ, checked:");
    note_show(&p.mem, &note);
    if (output && (err = note_save(&p.mem, &note, output)) != 0)
        goto out;
    err = gx_conn_send(&p.router, FF_MSG_READ, NULL, 0, -1, "word of the READ");
    if (err)
        goto out;

    snprintf(writer, sizeof writer, "peer (pid %d)", (int)getpid());
    err = note_write(&p.mem, writer, text, file, &note);
    /* Payload first, header last; one queue pair writes in order. */
    if (!err && note.length)
        err = transfer(&p, GDRC_WR_RDMA_WRITE, NOTE_HEADER_BYTES, (size_t)note.length,
                       "RDMA WRITE of the payload");
    if (!err)
        err = transfer(&p, GDRC_WR_RDMA_WRITE, 0, NOTE_HEADER_BYTES, "RDMA WRITE of the header");
    if (err) {
        gx_conn_send_error(&p.router, "the peer could not write its note");
        goto out;
    }
    gx_step("RDMA WRITE:");
    note_show(&p.mem, &note);
    err = gx_conn_send(&p.router, FF_MSG_WRITTEN, NULL, 0, -1, "word of the WRITE");
    if (!err && (err = gx_conn_recv(&p.router, GX_MSG_DONE, NULL, 0, GX_TIMEOUT_MS, "thanks")) >= 0)
        gx_step("the router has seen it; done");
out:
    if (p.qp.handle)
        gdrc_qp_destroy(p.dev.ctx, p.qp);
    if (p.mr.handle)
        gdrc_mr_dereg(p.dev.ctx, p.mr);
    if (p.cq.handle)
        gdrc_cq_destroy(p.dev.ctx, p.cq);
    gx_mem_free(&p.mem);
    gx_dev_close(&p.dev);
    gx_conn_close(&p.router);
    return gx_exit_code(err);
}

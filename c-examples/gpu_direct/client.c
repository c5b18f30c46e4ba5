// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * gpu_direct client: registers a buffer (of the host or of a GPU), sends its description to the
 * server by TCP, and requests repeatedly that the server writes or reads it. The client itself
 * posts nothing; with DC its buffer is reached by a DC target, without a connection.
 */
#include "gpu_direct_rdma_access.h"
#include "task.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define RESETS_MAX 3

struct options {
    const char *server, *address, *bdf;
    uint64_t type, iterations, size, port, debug;
    bool check;
    enum gda_transport transport;
};

struct session {
    struct gx_conn conn;
    struct gx_mem mem;
    struct gda_device *device;
    struct gda_buffer *buffer;
    struct gda_peer *peer;
};

static void usage(FILE *to)
{
    fprintf(to,
            "usage: client [options] SERVER\n"
            "Lets the server write (-t 0) or read (-t 1) a buffer of this process by RDMA.\n\n"
            "  -t, --type 0|1          0: the server writes, 1: the server reads (default 0)\n"
            "  -a, --address ADDRESS   local address (default: the one from which the server is "
            "reached)\n"
            "  -u, --use-gpu BDF       put the buffer into the memory of this GPU, for example "
            "b7:00.0\n"
            "  -n, --iterations N      number of tasks (default 1000)\n"
            "  -s, --size BYTES        bytes of each task, up to 1G (default 64k)\n"
            "  -p, --port PORT         the server's TCP port (default %d)\n"
            "  -T, --transport dc|rc   dc: the server's few DC initiators serve all clients, rc: a "
            "queue pair\n"
            "                          for each client, needed on a NIC; the same on both sides "
            "(default dc)\n"
            "  -c, --check             check every byte of every task\n"
            "  -D, --debug MASK        1: each task, 2: counters at the end, 4: descriptions "
            "(default 0)\n"
            "  -h, --help              this text\n"
            "  -V, --version           the version\n",
            GD_PORT);
}

/* Sends the buffer's description to the server and takes the server's; RC: connects to it. */
static int introduce(struct session *s, const struct options *o)
{
    char text[GDA_DESC_MAX + 1];
    int n = gda_describe(s->peer, s->buffer, text, sizeof text);
    if (n)
        return n;
    if (o->debug & GD_DEBUG_DESCRIPTIONS)
        gx_note("our description: %s", text);
    n = gx_conn_send(&s->conn, GD_MSG_DESCRIBE, text, strlen(text), -1, "the buffer's description");
    if (n)
        return n;
    n = gx_conn_recv(&s->conn, GD_MSG_DESCRIBE, text, sizeof text - 1, GX_TIMEOUT_MS,
                     "description");
    if (n < 0)
        return n;
    text[n] = 0;
    if (o->debug & GD_DEBUG_DESCRIPTIONS)
        gx_note("the server's description: %s", text);
    n = gda_peer_connect(s->peer, text);
    return n ? n : gx_conn_send(&s->conn, GX_MSG_READY, NULL, 0, -1, "readiness");
}

/*
 * One task: request it, wait for the result. -EAGAIN: it failed on the server. With RC both sides
 * have to connect again, with DC it can be requested again at once.
 */
static int run_task(struct session *s, const struct options *o, uint64_t number)
{
    uint8_t task[GD_TASK_BYTES], result[GD_RESULT_BYTES];
    uint64_t where = 0;
    int err;
    if (o->check && (err = gd_fill(&s->mem, o->size, o->type ? number + 1 : ~number)) != 0)
        return err;
    gx_put32(task, (o->type ? GD_FLAG_READ : 0) | (o->check ? GD_FLAG_CHECK : 0));
    gx_put64(task + 4, o->size);
    gx_put64(task + 12, number + 1);
    gx_put64(task + 20, number);
    err = gx_conn_send(&s->conn, GD_MSG_TASK, task, sizeof task, -1, "a task");
    if (err)
        return err;
    int n =
        gx_conn_recv(&s->conn, GD_MSG_RESULT, result, sizeof result, 6 * GX_TIMEOUT_MS, "result");
    if (n < 0)
        return n;
    if (n != (int)sizeof result || gx_get64(result + 4) != number) {
        gx_error("Build both sides from one source.", "the server answered something else");
        return -EPROTO;
    }
    uint32_t status = gx_get32(result);
    if (status == EBADMSG) {
        gx_error("A bug of the transport: please report it with the counters (-D 2).",
                 "task %" PRIu64 ": the server read wrong bytes", number);
        return -EBADMSG;
    }
    if (status) {
        gx_note("task %" PRIu64 " failed on the server: %s", number,
                strerror((int)(status & 0xfff)));
        return -EAGAIN;
    }
    if (o->check && !o->type) {
        err = gd_verify(&s->mem, o->size, number + 1, &where);
        if (err)
            gx_error("A bug of the transport: please report it with the counters (-D 2).",
                     "task %" PRIu64 ": the server wrote wrong bytes, the first at %" PRIu64,
                     number, where);
    }
    if (!err && o->debug & GD_DEBUG_TASKS)
        gx_note("task %" PRIu64 ": %" PRIu64 " bytes %s", number, o->size,
                o->type ? "read" : "written");
    return err;
}

static int reconnect(struct session *s, const struct options *o)
{
    gx_note("resetting the connection");
    int err = gda_peer_reset(s->peer);
    return err ? err : introduce(s, o);
}

static int run(struct session *s, const struct options *o)
{
    char own[80], kind[32] = "host", rate[32];
    if (o->bdf && snprintf(kind, sizeof kind, "cuda:%s", o->bdf) >= (int)sizeof kind) {
        gx_error("As lspci prints it: b7:00.0 or 0000:b7:00.0.", "'%s' is no PCI address", o->bdf);
        return -EINVAL;
    }
    /* The buffer first, so that a failed allocation does not involve the server. */
    int err = gx_mem_alloc(&s->mem, kind, o->size, false);
    if (!err && o->address)
        err = gx_dev_address(o->address, 0, own, sizeof own);
    if (!err)
        err = gx_tcp_connect(&s->conn, o->server, (uint16_t)o->port, o->address ? own : NULL,
                             GX_TIMEOUT_MS);
    if (!err && !o->address)
        err = gx_conn_local_address(&s->conn, own, sizeof own);
    if (err)
        return err;
    s->device = gda_open(o->address ? o->address : own, o->transport, GDA_INITIATORS);
    if (!s->device)
        return -ENODEV;
    s->conn.ctx = gda_context(s->device);
    struct gdrc_memory memory;
    gx_mem_describe(&s->mem, &memory);
    s->buffer = gda_buffer_register(s->device, &memory);
    s->peer = s->buffer ? gda_peer_create(s->device) : NULL;
    if (!s->peer)
        return -ENOMEM;
    if (s->mem.gpu)
        gx_note("the buffer is in %s memory: %s", s->mem.kind, gda_buffer_route(s->buffer));
    err = introduce(s, o);
    if (err)
        return err;

    uint64_t start = gx_now_ns(), done = 0;
    for (unsigned resets = 0; done < o->iterations;) {
        err = run_task(s, o, done);
        if (err == -EAGAIN && resets++ < RESETS_MAX) {
            err = o->transport == GDA_RC ? reconnect(s, o) : 0;
        } else if (!err) {
            done++;
            resets = 0;
        }
        if (err)
            break;
    }
    uint64_t ns = gx_now_ns() - start;
    if (err == -EAGAIN)
        gx_error("Its own output says why.", "the server failed %d times on one task",
                 RESETS_MAX + 1);
    printf("%" PRIu64 " of %" PRIu64 " tasks, the server %s %" PRIu64
           " bytes each%s: %.3f s, %s, %.1f us per task\n",
           done, o->iterations, o->type ? "read" : "wrote", o->size,
           o->check ? ", every byte checked" : "", (double)ns / 1e9,
           gx_rate(rate, done * o->size, ns), done ? (double)ns / 1e3 / (double)done : 0.0);
    if (o->debug & GD_DEBUG_COUNTERS)
        gd_print_counters(gda_context(s->device));
    if (!err)
        gx_conn_send(&s->conn, GX_MSG_DONE, NULL, 0, -1, NULL);
    return err;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        { "type", required_argument, NULL, 't' },
        { "address", required_argument, NULL, 'a' },
        { "use-gpu", required_argument, NULL, 'u' },
        { "use-cuda", required_argument, NULL, 'u' },
        { "iterations", required_argument, NULL, 'n' },
        { "size", required_argument, NULL, 's' },
        { "port", required_argument, NULL, 'p' },
        { "transport", required_argument, NULL, 'T' },
        { "check", no_argument, NULL, 'c' },
        { "debug", required_argument, NULL, 'D' },
        GX_COMMON_OPTIONS,
    };
    struct options o = { .iterations = 1000, .size = 65536, .port = GD_PORT };
    int bad = 0;
    gx_program = "client";
    for (int c; (c = gx_getopt(argc, argv, "t:a:u:n:s:p:T:cD:hV", longs)) != -1;) {
        switch (c) {
        case 't': bad |= gx_parse_number(optarg, "--type", 0, 1, &o.type); break;
        case 'a': o.address = optarg; break;
        case 'u': o.bdf = optarg; break;
        case 'n':
            bad |= gx_parse_number(optarg, "--iterations", 1, UINT32_MAX, &o.iterations);
            break;
        case 's': bad |= gx_parse_size(optarg, "--size", 1, GD_SIZE_MAX, &o.size); break;
        case 'p': bad |= gx_parse_number(optarg, "--port", 1, 65535, &o.port); break;
        case 'T': bad |= gd_parse_transport(optarg, &o.transport); break;
        case 'c': o.check = true; break;
        case 'D': bad |= gx_parse_number(optarg, "--debug", 0, 15, &o.debug); break;
        case 'h': usage(stdout); return GX_EXIT_OK;
        default: gx_note("try 'client --help'"); return GX_EXIT_USAGE;
        }
    }
    if (bad)
        return GX_EXIT_USAGE;
    if (optind + 1 != argc) {
        gx_error("For example: client -t 0 -a 127.0.0.2 127.0.0.1",
                 "give the server's name or address");
        return GX_EXIT_USAGE;
    }
    o.server = argv[optind];
    gx_catch_signals();

    struct session s;
    memset(&s, 0, sizeof s);
    s.conn.fd = s.conn.passed_fd = s.mem.fd = -1;
    int err = run(&s, &o);
    gda_peer_destroy(s.peer);
    gda_buffer_release(s.buffer);
    gda_close(s.device);
    gx_mem_free(&s.mem);
    gx_conn_close(&s.conn);
    return gx_exit_code(err);
}

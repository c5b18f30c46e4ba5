// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The given steps of the lab, and the order of all of them. lab.h has the overview,
 * docs/using/LAB.md is the page.
 */
#include "lab.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PORT 18520
#define BLOCK_MAX (1u << 30)
/* Time in which the other side must be started, and time limit of a step. */
#define START_MS 60000
#define STEP_MS 10000

int lab_todo(int exercise, const char *function)
{
    gx_error("What to do there is written above it.",
             "exercise %d is yours: %s() in c-examples/lab/skeleton.c", exercise, function);
    return -ENOSYS;
}

int lab_check(struct lab *lab, int result, const char *call)
{
    if (result < 0)
        gx_explain_call(&lab->dev, result, call);
    return result;
}

/* A NIC has a table of GIDs; here the interfaces' addresses form it. */
int lab_gid_table(unsigned n, struct lab_gid *out)
{
    struct ifaddrs *all = NULL;
    struct if_nameindex *names = if_nameindex();
    int err = names && getifaddrs(&all) == 0 ? -ENOENT : -errno;
    for (struct if_nameindex *i = names; err == -ENOENT && all && i->if_name; i++) {
        unsigned index = 0;
        for (int pass = 0; pass < 2; pass++) {
            for (struct ifaddrs *a = all; a && err; a = a->ifa_next) {
                if (strcmp(a->ifa_name, i->if_name) || !a->ifa_addr ||
                    a->ifa_addr->sa_family != (pass ? AF_INET6 : AF_INET))
                    continue;
                if (n-- > 0) {
                    index++;
                    continue;
                }
                memset(out, 0, sizeof *out);
                snprintf(out->interface, sizeof out->interface, "%s", i->if_name);
                out->index = index;
                out->bits = !pass && a->ifa_flags & IFF_LOOPBACK ? 104 : 128;
                if (pass) {
                    memcpy(out->gid, &((const struct sockaddr_in6 *)a->ifa_addr)->sin6_addr, 16);
                } else {
                    out->gid[10] = out->gid[11] = 0xff;
                    memcpy(out->gid + 12, &((const struct sockaddr_in *)a->ifa_addr)->sin_addr, 4);
                }
                err = 0;
            }
        }
    }
    if (all)
        freeifaddrs(all);
    if (names)
        if_freenameindex(names);
    return err;
}

/*
 * Step 2. Open the device. Where a NIC has one device with a table of GIDs, this library makes a
 * NIC of software at one address: the device "soft:192.0.2.1" has that address as its only GID. The
 * protection domain is the fence inside the device: queue pairs reach memory of their own domain
 * only.
 */
static int open_device(struct lab *lab, struct gdrc_config *config)
{
    int err = gx_dev_open(&lab->dev, lab->ip, 0,
                          config); /* gdrc_open, gdrc_device_query, gdrc_pd_alloc */
    if (err)
        return err;
    if (memcmp(lab->dev.attr.gid, lab->gid, sizeof lab->gid)) {
        gx_error("Compare what exercise 1 wrote into lab->gid with the GID that 'devinfo' prints.",
                 "the device has another GID than you found");
        return -EADDRNOTAVAIL;
    }
    gx_step("device %s, UDP port %u, path MTU up to %u", lab->dev.name, lab->dev.attr.udp_port,
            128u << lab->dev.attr.active_mtu);
    return 0;
}

/*
 * Step 3. Register memory: from now on the device may touch these bytes, and requests name them by
 * key. The access flags say who may do what. Give as little as the job needs:
 *   text_in   the device stores what arrives          LOCAL_WRITE
 *   text_out  the device only reads it                none: local reading is always allowed
 *   block     the peer writes and reads it itself     REMOTE_WRITE (which needs LOCAL_WRITE) and
 *                                                     REMOTE_READ
 */
static int register_memory(struct lab *lab, struct gx_mem *block)
{
    int err = gx_mem_alloc(block, "host", lab->block_bytes, false);
    if (err)
        return err;
    lab->block = block->addr;
    uint32_t remote = GDRC_ACCESS_LOCAL_WRITE | GDRC_ACCESS_REMOTE_WRITE | GDRC_ACCESS_REMOTE_READ;
    err = gx_mr_register(&lab->dev, lab->text_in, sizeof lab->text_in, GDRC_ACCESS_LOCAL_WRITE,
                         &lab->text_in_mr, &lab->text_in_attr);
    if (!err)
        err = gx_mr_register(&lab->dev, lab->text_out, sizeof lab->text_out, 0, &lab->text_out_mr,
                             &lab->text_out_attr);
    if (!err)
        err = gx_mr_register(&lab->dev, lab->block, lab->block_bytes, remote, &lab->block_mr,
                             &lab->block_attr);
    if (!err)
        gx_step("memory registered: a block of %zu bytes, rkey 0x%08x", lab->block_bytes,
                lab->block_attr.rkey);
    return err;
}

/*
 * Both sides find each other by TCP: RDMA has no way to ask an unknown peer for its queue pair's
 * number.
 */
static int meet(struct lab *lab, uint16_t port)
{
    if (lab->server)
        return gx_tcp_connect(&lab->conn, lab->server, port, NULL, START_MS);
    int listener = gx_tcp_listen(lab->dev.address, port), err = listener;
    if (listener < 0)
        return err;
    printf("[server] waiting for a client on %s, TCP port %u\n", lab->dev.address, port);
    fflush(stdout);
    uint64_t end = gx_now_ns() + (uint64_t)START_MS * 1000000u;
    struct pollfd p = { .fd = listener, .events = POLLIN };
    while ((err = gx_accept(listener, &lab->conn, lab->dev.ctx)) == -EAGAIN) {
        if (gx_now_ns() > end) {
            gx_error("Start the client in another terminal: the same program with our address "
                     "behind its options.",
                     "no client came");
            err = -ETIMEDOUT;
        } else {
            err = gx_sleep(lab->dev.ctx, NULL, &p, 1, 1000);
        }
        if (err < 0)
            break;
    }
    close(listener);
    return err;
}

/*
 * Step 4. Send each other what the other side cannot know: GID and UDP port, queue pair number,
 * first packet sequence number, MTU, and for the second queue pair the address and key of the
 * block. Anybody who has the key may use it, so a real program sends it over a channel that it
 * trusts.
 */
static int introduce(struct lab *lab)
{
    for (int i = 0; i < QPS; i++) {
        int err = gx_endpoint_send(&lab->dev, lab->qp[i], i == MEMORY ? &lab->block_mr : NULL,
                                   &lab->conn, &lab->local[i]);
        if (err)
            return err;
    }
    for (int i = 0; i < QPS; i++) {
        uint8_t wire[GDRC_ENDPOINT_WIRE_BYTES];
        int n = gx_conn_recv(&lab->conn, GX_MSG_ENDPOINT, wire, sizeof wire, STEP_MS, "endpoint");
        if (n < 0)
            return n;
        lab->remote[i].struct_size = sizeof lab->remote[i];
        /* The bytes come from a peer and may be anything: unpack checks every field. */
        n = n == (int)sizeof wire ? gdrc_endpoint_unpack(wire, &lab->remote[i]) : -EPROTO;
        if (lab_check(lab, n, "gdrc_endpoint_unpack") < 0)
            return n;
    }
    char gid[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, lab->remote[MEMORY].gid, gid, sizeof gid);
    gx_step("the peer: GID %s, queue pairs 0x%06x and 0x%06x, a block of %llu bytes", gid,
            lab->remote[MESSAGES].qpn, lab->remote[MEMORY].qpn,
            (unsigned long long)lab->remote[MEMORY].length);
    if (lab->remote[MEMORY].length != lab->block_bytes) {
        gx_error("Give both sides the same -s.", "the peer's block has another size than ours");
        return -EINVAL;
    }
    return 0;
}

/*
 * Step 5. Memory for the next message. A SEND takes the receiver's oldest receive request and fills
 * its memory; a SEND that finds none is refused ("receiver not ready") and repeated later. So
 * receives are posted before the peer may send.
 */
static int post_receive(struct lab *lab)
{
    gdrc_sge piece = {
        .addr = lab->text_in_attr.iova,
        .length = sizeof lab->text_in,
        .lkey = lab->text_in_attr.lkey,
    };
    gdrc_recv_wr request = { .wr_id = WR_RECV, .sg_list = &piece, .num_sge = 1 };
    return lab_check(lab, gdrc_post_recv(lab->dev.ctx, lab->qp[MESSAGES], &request, NULL),
                     "gdrc_post_recv");
}

/*
 * Waiting. A posted request belongs to the device until its completion comes out of the completion
 * queue: only then may its memory be used again. Polling never sleeps, and it runs the device, too:
 * this NIC works in our thread.
 *
 * Receives complete into a queue of their own, because the peer's answer may arrive before the ACK
 * of the message that it answers.
 */
int lab_wait(struct lab *lab, uint64_t wr_id, gdrc_wc *wc)
{
    uint64_t end = gx_now_ns() + (uint64_t)STEP_MS * 1000000u;
    const gdrc_cq cq = wr_id == WR_RECV ? lab->recv_cq : lab->send_cq;
    bool gone = false;
    for (;;) {
        int n = gdrc_poll_cq(lab->dev.ctx, cq, 1, wc);
        if (n < 0)
            return lab_check(lab, n, "gdrc_poll_cq");
        if (n == 1)
            break;
        if (gone)
            /* Prints what the peer sent before it left. */
            return (n = gx_conn_recv(&lab->conn, GX_MSG_READY, NULL, 0, STEP_MS, "completion")) < 0
                       ? n
                       : -ECONNRESET;
        if (gx_now_ns() > end) {
            gx_error("Was the request posted, and signalled? Is the other side at the same step?",
                     "no completion within %d s", STEP_MS / 1000);
            return -ETIMEDOUT;
        }
        /* Nothing yet: sleep until the completion queue or the TCP connection is ready. */
        struct pollfd p = { .fd = lab->conn.fd, .events = POLLRDHUP };
        n = gx_sleep(lab->dev.ctx, &cq, &p, 1, 100);
        if (n < 0)
            return n;
        gone = (p.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
    }
    /*
     * A failed operation completes as well. Its status is the kind of failure, and the queue pair
     * records the cause.
     */
    if (wc->status != GDRC_WC_SUCCESS) {
        gx_explain_wc(&lab->dev,
                      wc->qp_num == lab->qpn[MEMORY] ? lab->qp[MEMORY] : lab->qp[MESSAGES], wc,
                      "the operation");
        return -EIO;
    }
    if (wc->wr_id != wr_id) {
        gx_error("Set wr_id in the request: the completion returns it.",
                 "a completion of request %llu came, not of %llu", (unsigned long long)wc->wr_id,
                 (unsigned long long)wr_id);
        return -EPROTO;
    }
    return 0;
}

/* Waits for a message, prints it, and posts a receive for the next one. */
static int receive(struct lab *lab)
{
    gdrc_wc wc;
    int err = lab_wait(lab, WR_RECV, &wc);
    if (err)
        return err;
    char imm[40] = "";
    if (wc.wc_flags & GDRC_WC_FLAG_WITH_IMM)
        snprintf(imm, sizeof imm, ", immediate 0x%08x", ntohl(wc.imm_data));
    printf("[%s] received %u bytes%s: ", gx_program, wc.byte_len, imm);
    gx_print_bytes(stdout, lab->text_in, wc.byte_len, LAB_TEXT_MAX);
    putchar('\n');
    fflush(stdout);
    return post_receive(lab);
}

/* Bytes that are easy to check: each side has its own series. */
static uint8_t series(bool server, size_t i) { return (uint8_t)(i * (server ? 7 : 5) + i / 251); }

static void fill_block(struct lab *lab, bool server)
{
    for (size_t i = 0; i < lab->block_bytes; i++)
        lab->block[i] = series(server, i);
}

static int check_block(struct lab *lab, bool server, const char *verb)
{
    for (size_t i = 0; i < lab->block_bytes; i++) {
        if (lab->block[i] != series(server, i)) {
            gx_error("Compare address, length and key of the request with what the peer told.",
                     "%s: byte %zu is 0x%02x, not 0x%02x", verb, i, lab->block[i],
                     series(server, i));
            return -EBADMSG;
        }
    }
    gx_step("%s: all %zu bytes are right", verb, lab->block_bytes);
    return 0;
}

static int serve(struct lab *lab)
{
    int err = receive(lab);                             /* the client's text */
    if (!err)
        err = receive(lab);                             /* "the block is there" */
    if (!err)
        err = check_block(lab, false, "the client's WRITE");
    if (!err) {
        fill_block(lab, true);
        err = exercise_4_send(lab, "your turn", false);
    }
    return err;
}

static int ask(struct lab *lab)
{
    int err = exercise_4_send(lab, lab->text, lab->has_imm);
    if (!err) {
        gx_step("SEND: the server has the text");
        fill_block(lab, false);
        err = exercise_5_write(lab);
    }
    if (!err) {
        gx_step("WRITE: the server's memory has the block");
        /*
         * The server is not notified of a WRITE. The SEND goes over another queue pair, and two
         * queue pairs keep no order between them: it may be posted only because exercise 5 has
         * waited for the WRITE's completion.
         */
        err = exercise_4_send(lab, "the block is there", false);
    }
    if (!err)
        err = receive(lab);                             /* "your turn" */
    if (!err && lab->wrong_key)
        lab->remote[MEMORY].rkey ^= 0x100; /* on demand: a key that the server never gave us */
    if (!err)
        err = exercise_6_read(lab);
    if (!err)
        err = check_block(lab, true, "our READ");
    return err;
}

static void print_counters(struct lab *lab)
{
    uint64_t values[128];
    int n = gdrc_counters(lab->dev.ctx, values, sizeof values / sizeof *values);
    for (int i = 0; i < n; i++)
        if (values[i])
            printf("[%s]   %-20s %llu\n", gx_program, gdrc_counter_name((uint32_t)i),
                   (unsigned long long)values[i]);
}

/*
 * The peer has given up. If our device refused one of the peer's requests, it has recorded the
 * cause.
 */
static void print_own_cause(struct lab *lab)
{
    struct gdrc_cause cause;
    char text[256];
    if (gdrc_last_cause(lab->dev.ctx, &cause) >= 0 && cause.code != GDRC_CAUSE_NONE &&
        gdrc_cause_str(&cause, text, sizeof text) > 0)
        gx_note("our device says: %s", text);
}

/* All steps, in order. */
static int run(struct lab *lab, struct gx_mem *block, uint16_t port, struct gdrc_config *config)
{
    int err = exercise_1_find_gid(lab);
    if (err)
        return err;
    char gid[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, lab->gid, gid, sizeof gid);
    gx_step("%s is GID %s, index %u of %s", lab->ip, gid, lab->gid_index, lab->interface);
    err = open_device(lab, config);
    if (!err)
        err = register_memory(lab, block);
    if (!err)
        err = gdrc_cq_create(lab->dev.ctx, 16, &lab->send_cq, NULL);
    if (!err)
        err = gdrc_cq_create(lab->dev.ctx, 16, &lab->recv_cq, NULL);
    err = lab_check(lab, err, "gdrc_cq_create");
    for (int i = 0; i < QPS && !err; i++)
        err = exercise_2_create_qp(lab, i);
    if (err)
        return err;
    gx_step("queue pairs 0x%06x for messages, 0x%06x for memory", lab->qpn[MESSAGES],
            lab->qpn[MEMORY]);
    lab->conn.ctx = lab->dev.ctx;
    err = meet(lab, port);
    if (!err)
        err = introduce(lab);
    for (int i = 0; i < QPS && !err; i++)
        err = exercise_3_connect(lab, i);
    if (!err) {
        gx_step("both queue pairs are connected");
        err = post_receive(lab);
    }
    /* A barrier: nobody sends before the other side is connected and has a receive posted. */
    if (!err)
        err = gx_ready(&lab->conn);
    if (!err)
        err = lab->server ? ask(lab) : serve(lab);
    /*
     * And a second one: the engine has to run until the peer has the answers to its last requests.
     */
    if (!err)
        err = gx_ready(&lab->conn);
    if (err == -EREMOTEIO)
        print_own_cause(lab);
    if (err)
        gx_conn_send_error(&lab->conn,
                           err == -ENOSYS ? "an exercise is not done yet" : "I had to give up");
    return err;
}

/* In the reverse order of creation: an object that is still in use is not destroyed (-EBUSY). */
static void clean_up(struct lab *lab, struct gx_mem *block)
{
    gdrc_context *ctx = lab->dev.ctx;
    for (int i = 0; i < QPS; i++)
        if (lab->qp[i].handle)
            gdrc_qp_destroy(ctx, lab->qp[i]);
    if (lab->send_cq.handle)
        gdrc_cq_destroy(ctx, lab->send_cq);
    if (lab->recv_cq.handle)
        gdrc_cq_destroy(ctx, lab->recv_cq);
    const gdrc_mr regions[] = { lab->text_in_mr, lab->text_out_mr, lab->block_mr };
    for (size_t i = 0; i < sizeof regions / sizeof *regions; i++)
        if (regions[i].handle)
            gdrc_mr_dereg(ctx, regions[i]);
    gx_conn_close(&lab->conn);
    gx_dev_close(&lab->dev);
    gx_mem_free(block);
}

static void usage(FILE *to)
{
    fprintf(
        to,
        "usage: solution -a IP [options]           the server\n"
        "       solution -a IP [options] SERVER    the client; SERVER is the server's IP\n\n"
        "  -a, --address IP      our own address\n"
        "  -t, --text TEXT       what the client sends (\"hello\")\n"
        "  -i, --immediate N     the client sends it with immediate data\n"
        "  -s, --size BYTES      size of the block, the same on both sides (10000)\n"
        "  -p, --port PORT       TCP port of the introduction (%d)\n"
        "  -w, --write FILE      write every packet of this side into a pcap file\n"
        "  -1, --single          hand packets to the kernel one by one (no segmentation offload)\n"
        "  -k, --wrong-key       the client spoils the key before the READ, to see what comes of "
        "it\n"
        "  -c, --counters        print the device's counters at the end\n"
        "  -h, --help            this text\n"
        "  -V, --version         the version\n",
        PORT);
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        { "address", required_argument, NULL, 'a' },
        { "text", required_argument, NULL, 't' },
        { "immediate", required_argument, NULL, 'i' },
        { "size", required_argument, NULL, 's' },
        { "port", required_argument, NULL, 'p' },
        { "write", required_argument, NULL, 'w' },
        { "single", no_argument, NULL, '1' },
        { "counters", no_argument, NULL, 'c' },
        { "wrong-key", no_argument, NULL, 'k' },
        GX_COMMON_OPTIONS,
    };
    static struct lab lab = { .text = "hello", .conn = { .fd = -1, .passed_fd = -1 } };
    struct gx_mem block = { .fd = -1 };
    /* The lab is about packets: without this, two processes on one host would exchange none. */
    struct gdrc_config config = { .struct_size = sizeof config, .flags = GDRC_CONFIG_UDP_ONLY };
    uint64_t port = PORT, bytes = 10000, imm = 0;
    bool counters = false, good = true;
    gx_program = "lab";
    for (int c; good && (c = gx_getopt(argc, argv, "a:t:i:s:p:w:1kchV", longs)) != -1;) {
        switch (c) {
        case 'a': lab.ip = optarg; break;
        case 't': lab.text = optarg; break;
        case 'i':
            lab.has_imm = true, good = !gx_parse_number(optarg, "--immediate", 0, UINT32_MAX, &imm);
            break;
        case 's': good = !gx_parse_size(optarg, "--size", 1, BLOCK_MAX, &bytes); break;
        case 'p': good = !gx_parse_number(optarg, "--port", 1, 65535, &port); break;
        case 'w': config.pcap_path = optarg; break;
        case '1': config.flags |= GDRC_CONFIG_NO_GSO; break;
        case 'k': lab.wrong_key = true; break;
        case 'c': counters = true; break;
        case 'h': return usage(stdout), GX_EXIT_OK;
        default: good = false;
        }
    }
    if (optind < argc)
        lab.server = argv[optind++];
    if (good && (!lab.ip || optind < argc || strlen(lab.text) >= LAB_TEXT_MAX)) {
        gx_error(lab.ip ? "Options, then at most one address. A text has at most 1023 bytes."
                        : "Say with -a which of this machine's addresses is ours.",
                 "bad arguments");
        good = false;
    }
    if (!good)
        return gx_note("see --help"), GX_EXIT_USAGE;
    lab.block_bytes = (size_t)bytes;
    lab.imm = (uint32_t)imm;
    gx_program = lab.server ? "client" : "server";
    gx_catch_signals();

    int err = run(&lab, &block, (uint16_t)port, &config);
    if (counters && lab.dev.ctx) {
        gx_step("counters that are not 0");
        print_counters(&lab);
    }
    clean_up(&lab, &block);
    return gx_exit_code(err);
}

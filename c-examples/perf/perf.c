// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * perf: latency and bandwidth of SEND, WRITE, READ, atomics, ATOMIC WRITE and FLUSH.
 *
 *   perf -d soft:127.0.0.1                          serves the runs that a client requests
 *   perf -d soft:127.0.0.2 write bw -a 127.0.0.1    measures all sizes against it
 *   perf -d loopback send lat                       both ends in one process, one thread
 *
 * Options have the names of the perftest package where they mean the same.
 */
#include "perf.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define PORT 18519
#define SAMPLES_MAX (1u << 22)
/* Messages before a latency run, which warm the caches and the CPU's clock. */
#define WARM_UP 200u

static void usage(FILE *to)
{
    fprintf(
        to,
        "usage: perf [-d DEVICE]                             serve a client's runs, then exit (-k: "
        "serve for ever)\n"
        "       perf [-d DEVICE] TEST lat|bw [OPTIONS] HOST  measure against it\n"
        "       perf -d loopback TEST lat|bw [OPTIONS]       both ends in this process, on one "
        "context\n"
        "       perf [-d DEVICE] --both-ends TEST lat|bw     the same, each end on a context of "
        "DEVICE\n"
        "TEST is send, write, read, atomic, atomic_write or flush.\n\n"
        "  -d, --device DEVICE      soft:ADDRESS[:PORT], an address of this machine, a network "
        "interface, or loopback\n"
        "  -x, --gid-index N        which of the interface's addresses\n"
        "  -p, --port PORT          TCP port for the introduction (default %d)\n"
        "  -k, --keep               (server) serve one client after another\n"
        "  -c, --connection TYPE    RC (default), UC, UD, XRC or DC; WRITE: not UD; READ, atomics, "
        "ATOMIC WRITE and\n"
        "                           FLUSH: RC, XRC or DC. XRC and DC: each end has targets with "
        "SRQs beside its\n"
        "                           queue pairs; DC is of soft devices only\n"
        "  -s, --size BYTES         message size (lat 2, bw 64k, atomics and ATOMIC WRITE 8, UD at "
        "most the path MTU)\n"
        "  -a, --all                sizes from 2 bytes to 8 MiB\n"
        "  -n, --iters N            messages per queue pair (lat 1000, bw 5000; with -a fewer of "
        "the large ones)\n"
        "  -D, --duration SECONDS   measure so long instead\n"
        "  -t, --tx-depth N         requests under way per queue pair (bw 128, lat 16)\n"
        "  -r, --rx-depth N         receives posted per queue pair (bw 512, lat 16)\n"
        "  -q, --qp N               queue pairs (1; lat: always 1)\n"
        "  -T, --threads N          (bw) threads of each end, each with a CQ and -q queue pairs of "
        "its own on one\n"
        "                           context (1, at most 64); the sum is reported\n"
        "      --engines            each thread has an engine of the context of its own\n"
        "      --contexts           each thread has a context of its own, for comparison\n"
        "  -I, --inline_size BYTES  messages up to here are sent inline (lat 220, bw 0)\n"
        "  -Q, --cq-mod N           one completion for so many requests (bw up to 16, lat up to "
        "8)\n"
        "  -l, --post_list N        requests of one post call (1, at most 64)\n"
        "  -o, --outs N             READs, atomics, ATOMIC WRITEs or FLUSHes outstanding (what the "
        "peer serves)\n"
        "      --mem KIND           our own buffer: host (default), shared (a peer on this host "
        "writes it by\n"
        "                           itself), or cuda[:BDF]; each end chooses\n"
        "  -m, --mtu BYTES          path MTU: 256, 512, 1024, 2048 or 4096 (what the link and the "
        "route carry)\n"
        "  -u, --qp-timeout CODE    ACK timeout of 4.096 us * 2^CODE, 0: none, so that 30 s of "
        "silence end a request (17: 0.54 s)\n"
        "      --retry_count N      retries after such a silence, 0 to 7 (7)\n"
        "  -A, --atomic_type TYPE   FETCH_AND_ADD (default) or CMP_AND_SWAP\n"
        "  -b, --bidirectional      (bw) both ends send; the sum is reported\n"
        "  -e, --events             sleep instead of polling when nothing comes\n"
        "      --no-progress        (write lat) the server watches its memory and never calls the "
        "library to receive: its\n"
        "                           helper thread does\n"
        "  -H, --report-histogram   (lat) print the distribution\n"
        "  -C, --check              check every byte that arrived (messages of 8 bytes and more; "
        "not WRITE latency)\n"
        "      --json               one JSON object instead of a table\n"
        "  -h, --help               this text\n"
        "  -V, --version            the version\n\n"
        "Latency is half of the time there and back, and for READ, atomics, ATOMIC WRITE and "
        "FLUSH the whole of it. MB are 10^6 bytes; those of a FLUSH are only flushed, none is "
        "moved.\n",
        PORT);
}

/*
 * ---- options ------------------------------------------------------------------------------------
 */

static int find_word(const char *text, const char *option, const char *const *words, unsigned count,
                     uint32_t *out)
{
    for (unsigned i = 0; i < count; i++)
        if (!strcasecmp(text, words[i]))
            return *out = i, 0;
    gx_error("See --help.", "%s does not know '%s'", option, text);
    return -EINVAL;
}

static int option(struct options *o, int c, const char *text)
{
    static const char *const types[] = { "RC", "UC", "UD", "XRC", "DC" };
    static const uint32_t of_types[] = {
        GDRC_QPT_RC, GDRC_QPT_UC, GDRC_QPT_UD, GDRC_QPT_XRC_SEND, GDRC_QPT_DCI,
    };
    static const char *const atomics[] = { "FETCH_AND_ADD", "CMP_AND_SWAP" };
    struct plan *p = &o->plan;
    uint64_t n = 0;
    uint32_t *into = NULL, word;
    int err = 0;
    switch (c) {
    case 'd': o->device = text; return 0;
    case 'x': return gx_parse_number(text, "--gid-index", 0, 1000, &o->gid_index);
    case 'p': return gx_parse_number(text, "--port", 1, 65535, &o->port);
    case 'k': o->keep = true; return 0;
    case 'c':
        err = find_word(text, "--connection", types, 5, &word);
        p->qp_type = err ? 0 : of_types[word];
        return err;
    case 's': return gx_parse_size(text, "--size", 1, MAX_SIZE, &o->size);
    case 'a': o->all = true; return 0;
    case 'n': return gx_parse_number(text, "--iters", 1, 1ull << 40, &o->iterations);
    case 'D': return gx_parse_number(text, "--duration", 1, 1000000, &o->duration_s);
    case 't':
        err = gx_parse_number(text, "--tx-depth", 1, MAX_DEPTH, &n), into = &p->tx_depth;
        break;
    case 'r':
        err = gx_parse_number(text, "--rx-depth", 1, MAX_DEPTH, &n), into = &p->rx_depth;
        break;
    case 'T':
        err = gx_parse_number(text, "--threads", 1, MAX_THREADS, &n), into = &p->threads;
        break;
    case 'X': p->apart = APART_CONTEXTS; return 0;
    case 'G': p->apart = APART_ENGINES; return 0;
    case 'B': o->both_ends = true; return 0;
    case 'q': err = gx_parse_number(text, "--qp", 1, MAX_QPS, &n), into = &p->qps; break;
    case 'I':
        err = gx_parse_number(text, "--inline_size", 0, 4096, &n), into = &p->inline_max;
        break;
    case 'Q': err = gx_parse_number(text, "--cq-mod", 1, MAX_DEPTH, &n), into = &p->cq_mod; break;
    case 'l': err = gx_parse_number(text, "--post_list", 1, 64, &n), into = &p->list; break;
    case 'o': err = gx_parse_number(text, "--outs", 1, 128, &n), into = &p->outs; break;
    case 'm':
        err = gx_parse_number(text, "--mtu", 256, 4096, &n);
        if (!err && n & (n - 1)) {
            gx_error("It is 256, 512, 1024, 2048 or 4096.", "--mtu: %s is no path MTU", text);
            return -EINVAL;
        }
        for (p->mtu = GDRC_MTU_256; !err && 128u << p->mtu < n;)
            p->mtu++;
        return err;
    case 'u': err = gx_parse_number(text, "--qp-timeout", 0, 31, &n), into = &p->timeout; break;
    case 'R': err = gx_parse_number(text, "--retry_count", 0, 7, &n), into = &p->retries; break;
    case 'A': return find_word(text, "--atomic_type", atomics, 2, &p->atomic);
    case 'b': p->bidir = 1; return 0;
    case 'e': p->events = 1; return 0;
    case 'N': p->no_progress = 1; return 0;
    case 'H': o->histogram = true; return 0;
    case 'C': p->check = 1; return 0;
    case 'J': o->format = FORMAT_JSON; return 0;
    case 'M': o->memory = text; return 0;
    default: gx_note("try 'perf --help'"); return -EINVAL;
    }
    if (!err)
        *into = (uint32_t)n;
    return err;
}

static int arguments(struct options *o, int argc, char **argv)
{
    static const char *const verbs[VERBS] = { "send", "write", "read", "atomic",
                                              "atomic_write", "flush" };
    static const char *const modes[] = { "lat", "bw" };
    int left = argc - optind;
    if (left >= 2) {
        o->has_test = true;
        if (find_word(argv[optind], "the test", verbs, VERBS, &o->plan.verb) ||
            find_word(argv[optind + 1], "the test", modes, 2, &o->plan.mode))
            return -EINVAL;
        optind += 2, left -= 2;
    }
    if (left > 1 || (left == 1 && !o->has_test)) {
        gx_error("perf TEST lat|bw HOST measures, perf alone serves: see --help.",
                 "unexpected argument '%s'", argv[optind + (left > 1)]);
        return -EINVAL;
    }
    o->host = left ? argv[optind] : NULL;
    return 0;
}

/* Whether every message is a word of 8 bytes. */
static bool is_word(const struct plan *p)
{
    return p->verb == VERB_ATOMIC || p->verb == VERB_ATOMIC_WRITE;
}

/* Fills in defaults, and refuses combinations that do not exist. */
static int complete(struct options *o)
{
    struct plan *p = &o->plan;
    bool lat = p->mode == MODE_LAT, out = p->verb <= VERB_WRITE, word = is_word(p);
    const char *hint = NULL;
    p->qp_type = p->qp_type ? p->qp_type : GDRC_QPT_RC;
    if (!out && !is_reliable(p->qp_type))
        hint = "READ, atomics, ATOMIC WRITE and FLUSH exist on RC, XRC and DC only.";
    else if (p->verb == VERB_WRITE && p->qp_type == GDRC_QPT_UD)
        hint = "WRITE exists on all types but UD.";
    else if (lat && (p->bidir || p->qps > 1 || p->list > 1 || p->threads > 1))
        hint = "Latency is measured with one message on one queue pair at a time: leave out -b, "
               "-q, -l and -T.";
    else if (p->threads > 1 && p->events)
        hint = "Threads that sleep would each need a completion channel: leave out -e or -T.";
    else if (p->check && lat && p->verb == VERB_WRITE)
        hint = "There the last byte is the signal: check with 'send lat' or 'write bw'.";
    else if (p->no_progress && !(lat && p->verb == VERB_WRITE))
        hint = "Only the target of 'write lat' has something to watch in its memory: leave out "
               "--no-progress.";
    else if (word && ((o->size && o->size != 8) || o->all))
        hint = "Atomics and ATOMIC WRITEs have 8 bytes.";
    if (hint) {
        gx_error(hint, "%s %s over %s: these options do not go together", verb_name(p->verb),
                 lat ? "lat" : "bw", type_name(p->qp_type));
        return -EINVAL;
    }
    p->qps = p->qps ? p->qps : 1;
    p->threads = p->threads ? p->threads : 1;
    p->list = p->list ? p->list : 1;
    p->rx_depth = p->verb != VERB_SEND ? 1
                  : p->rx_depth        ? p->rx_depth
                  : lat                ? 16
                  : p->check           ? 64
                                       : 512;
    p->tx_depth = p->tx_depth ? p->tx_depth : lat || p->check ? 16 : 128;
    if (p->list > p->tx_depth)
        p->list = p->tx_depth;
    if (!p->cq_mod)
        p->cq_mod = lat ? p->tx_depth / 2 : p->tx_depth / 8;
    /* A READ's or an atomic's round trip is its completion. */
    if (!p->cq_mod || (lat && !out))
        p->cq_mod = 1;
    if (p->cq_mod > p->tx_depth)
        p->cq_mod = p->tx_depth;
    if (p->inline_max == UINT32_MAX)
        p->inline_max = lat && out ? 220 : 0;
    o->size = word                                ? 8
              : o->size                           ? o->size
              : p->qp_type == GDRC_QPT_UD && !lat ? 4096
              : lat                               ? 2
                                                  : 65536;
    p->max_size = o->all ? (p->qp_type == GDRC_QPT_UD ? 4096 : ALL_SIZES_MAX) : o->size;
    if (!o->iterations)
        o->iterations = lat ? 1000 : 5000;
    return 0;
}

/*
 * ---- the conversation ---------------------------------------------------------------------------
 */

#define PLAN_WORDS 20u
#define PLAN_BYTES (4u * PLAN_WORDS + 16u)

static void plan_pack(const struct plan *p, uint8_t *at)
{
    const uint32_t words[PLAN_WORDS] = { p->verb,       p->mode,       p->qp_type,  p->atomic,
                                         p->qps,        p->tx_depth,   p->rx_depth, p->cq_mod,
                                         p->inline_max, p->mtu,        p->outs,     p->list,
                                         p->bidir,      p->check,      p->events,   p->timeout,
                                         p->retries,    p->no_progress, p->threads, p->apart };
    for (unsigned i = 0; i < PLAN_WORDS; i++)
        gx_put32(at + 4 * i, words[i]);
    gx_put64(at + 4 * PLAN_WORDS, p->max_size);
    gx_put64(at + 4 * PLAN_WORDS + 8, p->token);
}

/* The client is not trusted: every value is bounded here. */
static int plan_unpack(struct plan *p, const uint8_t *at)
{
    uint32_t *const words[PLAN_WORDS] = { &p->verb,       &p->mode,       &p->qp_type,  &p->atomic,
                                          &p->qps,        &p->tx_depth,   &p->rx_depth, &p->cq_mod,
                                          &p->inline_max, &p->mtu,        &p->outs,     &p->list,
                                          &p->bidir,      &p->check,      &p->events,   &p->timeout,
                                          &p->retries,    &p->no_progress, &p->threads,
                                          &p->apart };
    for (unsigned i = 0; i < PLAN_WORDS; i++)
        *words[i] = gx_get32(at + 4 * i);
    p->max_size = gx_get64(at + 4 * PLAN_WORDS);
    p->token = gx_get64(at + 4 * PLAN_WORDS + 8);
    bool type = (p->qp_type >= GDRC_QPT_RC && p->qp_type <= GDRC_QPT_UD) || has_targets(p->qp_type);
    bool good = p->verb < VERBS && p->mode <= MODE_BW && type && p->atomic <= 1 &&
                p->qps - 1 < MAX_QPS && p->tx_depth - 1 < MAX_DEPTH &&
                p->rx_depth - 1 < MAX_DEPTH && p->cq_mod - 1 < p->tx_depth &&
                p->inline_max <= 4096 && p->mtu <= GDRC_MTU_4096 && p->outs <= 128 &&
                p->list - 1 < MAX_LIST && p->list <= p->tx_depth && p->timeout <= 31 &&
                p->retries <= 7 && p->max_size - 1 < MAX_SIZE && p->threads - 1 < MAX_THREADS &&
                p->apart <= APART_CONTEXTS &&
                (p->threads == 1 || (p->mode == MODE_BW && !p->events)) &&
                (!p->no_progress || (p->mode == MODE_LAT && p->verb == VERB_WRITE));
    return good ? 0 : -EPROTO;
}

/*
 * ---- client
 * ----------------------------------------------------------------------------------------
 */

static uint64_t goal_of(const struct options *o, uint64_t size)
{
    uint64_t n = o->iterations, cap = o->plan.mode == MODE_LAT ? 1ull << 28 : 8ull << 30;
    uint64_t few = cap / size / o->plan.qps;
    /* The default would transfer 40 GiB per queue pair at 8 MiB. */
    few = few < 16 ? 16 : few;
    return o->all && n > few ? few : n;
}

/*
 * All runs, and their table. -EINTR: a signal came inside a run, and the other end did not end it
 * together with us. -ECANCELED: a signal came, and both ends are between two runs.
 */
static int run_sizes(struct member *m, bool pair, const char *peer)
{
    struct side *side = &m->a, *other = pair ? &m->b : NULL;
    struct gx_conn *conn = pair ? NULL : &m->conn;
    const struct options *o = m->o;
    const struct plan *plan = side->plan;
    bool first = m->index == 0;
    struct outcome mine = { 0 }, theirs = { 0 };
    uint64_t largest = side_largest(side), bad = 0, size = o->all ? 2 : o->size, rows = 0;
    int err = 0;
    if (size > largest) {
        gx_error("A UD message is one packet.",
                 "the path MTU is %" PRIu64 " bytes, the message has %" PRIu64, largest, size);
        return -EMSGSIZE;
    }
    if (plan->mode == MODE_LAT) {
        side->sample_max = o->duration_s                 ? SAMPLES_MAX
                           : o->iterations < SAMPLES_MAX ? o->iterations + 1
                                                         : SAMPLES_MAX;
        side->samples = malloc(side->sample_max * sizeof *side->samples);
        if (!side->samples)
            return gx_error("Take fewer iterations.", "out of memory"), -ENOMEM;
    }
    struct options warm = *o;
    warm.duration_s = 0;
    err = run_client(side, other, conn, &warm, size,
                     plan->mode == MODE_LAT ? WARM_UP : plan->tx_depth, &mine, &theirs);
    bool begun = !err && !gx_stopping;
    if (begun && first)
        report_head(plan, o->format, side->dev->name, peer);
    for (; !err && !gx_stopping; size *= 2) {
        memset(&mine, 0, sizeof mine);
        memset(&theirs, 0, sizeof theirs);
        err = run_client(side, other, conn, o, size, goal_of(o, size), &mine, &theirs);
        err = crew_sum(m->index, err, &mine, &theirs);
        bad += mine.bad + theirs.bad;
        if ((!err || err == -EINTR) && plan->mode == MODE_LAT) {
            report_latency(plan, o->format, size, side->samples, side->sample_count, o->histogram);
            rows += side->sample_count != 0;
        } else if (!err || (err == -EINTR && mine.messages)) {
            if (first)
                report_bandwidth(plan, o->format, size, &mine, &theirs);
            rows++;
        }
        if (!o->all || size * 2 > plan->max_size || size * 2 > largest)
            break;
    }
    if (begun && first)
        report_tail(o->format, gx_stopping != 0);
    if (gx_stopping && (!err || err == -EINTR)) {
        if (first)
            gx_note(rows ? "interrupted: the last line covers what was measured until then"
                         : "interrupted before the first measurement");
        err = err ? err : -ECANCELED;
    }
    if ((!err || err == -ECANCELED) && bad) {
        if (first)
            gx_error("This is a bug of the library, or memory or the network is broken.",
                     "%" PRIu64 " messages had wrong data", bad);
        err = -EIO;
    }
    return err;
}

/* The members of an end, and the device of the first one. */
struct crew_of {
    struct gx_dev dev;
    struct gx_dev far; /* of the other end, with --both-ends */
    struct plan plan;
    struct member members[MAX_THREADS];
};

/* Opens an end's device, and the other end's where it is in this process. */
static int open_devices(const struct options *o, const struct gdrc_config *config,
                        struct gx_dev *dev, struct gx_dev *far)
{
    int err = gx_dev_open(dev, o->device, (unsigned)o->gid_index, config);
    if (!err && o->both_ends)
        err = gx_dev_open(far, o->device, (unsigned)o->gid_index, config);
    return err;
}

static int open_crew(struct crew_of *all, const struct options *o, const struct plan *plan,
                     uint32_t sides, int (*work)(struct member *m))
{
    struct gdrc_config config;
    memset(all, 0, sizeof *all);
    all->plan = *plan;
    for (uint32_t i = 0; i < MAX_THREADS; i++) {
        struct member *m = &all->members[i];
        *m = (struct member){ .o = o, .plan = &all->plan, .index = i, .work = work };
        m->conn.fd = m->conn.passed_fd = -1;
    }
    plan_config(plan, plan->apart ? sides : sides * plan->threads, &config);
    config.engines = plan->apart == APART_ENGINES ? plan->threads : 0;
    return open_devices(o, &config, &all->dev, &all->far);
}

/* A member's devices: those of all, or its own. */
static int take_devices(struct member *m, struct crew_of *all, uint32_t sides)
{
    bool owns = m->index > 0 && m->plan->apart == APART_CONTEXTS;
    struct gdrc_config config;
    m->dev = owns ? &m->own : &all->dev;
    m->far = !m->o->both_ends ? m->dev : owns ? &m->own_far : &all->far;
    if (!owns)
        return 0;
    plan_config(m->plan, sides, &config);
    return open_devices(m->o, &config, &m->own, &m->own_far);
}

static int run_crew(struct crew_of *all, uint32_t sides)
{
    int err = 0;
    for (uint32_t i = 0; i < all->plan.threads && !err; i++)
        err = take_devices(&all->members[i], all, sides);
    return err ? err : crew_run(all->members, all->plan.threads);
}

static void close_crew(struct crew_of *all)
{
    for (uint32_t i = 0; i < MAX_THREADS; i++) {
        struct member *m = &all->members[i];
        side_close(&m->a);
        side_close(&m->b);
        gx_conn_close(&m->conn);
        gx_dev_close(&m->own);
        gx_dev_close(&m->own_far);
    }
    gx_dev_close(&all->dev);
    gx_dev_close(&all->far);
}

/* What a thread of the client does. */
static int client_work(struct member *m)
{
    const struct options *o = m->o;
    struct gx_conn *conn = &m->conn;
    uint8_t body[PLAN_BYTES];
    conn->ctx = m->dev->ctx;
    int err = gx_tcp_connect(conn, o->host, (uint16_t)o->port, NULL, GX_TIMEOUT_MS);
    conn->ctx = m->dev->ctx;
    plan_pack(m->plan, body);
    if (!err)
        err = gx_conn_send(conn, MSG_PLAN, body, sizeof body, -1, "the plan");
    if (!err)
        err = side_open(&m->a, m->dev, m->plan, o->memory);
    if (!err)
        err = side_connect(&m->a, conn);
    if (!err)
        err = gx_ready(conn);
    if (!err)
        err = run_sizes(m, false, conn->peer);
    /* For the others an end between two runs is an interruption of theirs. */
    crew_leave(err == -ECANCELED ? -EINTR : err);
    if (err && err != -EREMOTEIO && err != -ECANCELED)
        gx_conn_send_error(conn, "the client gave up: %s",
                           err == -EINTR ? "it was interrupted" : gdrc_strerror(err));
    if (!err || err == -ECANCELED) {
        memset(body, 0, 24);
        int left = gx_conn_send(conn, MSG_RUN, body, 24, -1, "the end");
        if (!left)
            left = gx_conn_send(conn, GX_MSG_READY, NULL, 0, -1, "readiness");
        if (!left)
            left = recv_in_step(conn, GX_MSG_READY, NULL, 0, "readiness");
        err = err ? -EINTR : left;
    } else if (err != -EINTR && err != -EREMOTEIO && gx_conn_pump(conn) == 0) {
        /* A failed request is not the reason if the other end has sent one. */
        uint8_t text[GX_BODY_MAX];
        unsigned type;
        int n = gx_conn_take(conn, &type, text, sizeof text);
        if (n >= 0 && type == GX_MSG_ERROR)
            print_reason(conn, text, n);
    }
    return err;
}

static int client(const struct options *o)
{
    static struct crew_of all;
    int err = open_crew(&all, o, &o->plan, 1, client_work);
    if (err)
        return err;
    if (getrandom(&all.plan.token, sizeof all.plan.token, 0) != (ssize_t)sizeof all.plan.token)
        err = -EIO;
    err = err ? err : run_crew(&all, 1);
    close_crew(&all);
    return err;
}

/* Both ends of one thread. */
static int both_work(struct member *m)
{
    int err = side_open(&m->a, m->dev, m->plan, m->o->memory);
    if (!err)
        err = side_open(&m->b, m->far, m->plan, m->o->memory);
    if (!err)
        err = side_connect_pair(&m->a, &m->b);
    if (!err)
        err = run_sizes(m, true, "itself");
    /* For the others an end between two runs is an interruption of theirs. */
    crew_leave(err == -ECANCELED ? -EINTR : err);
    return err == -ECANCELED ? -EINTR : err;
}

static int both(const struct options *o)
{
    static struct crew_of all;
    uint32_t sides = o->both_ends ? 1 : 2;
    int err = open_crew(&all, o, &o->plan, sides, both_work);
    err = err ? err : run_crew(&all, sides);
    close_crew(&all);
    return err;
}

/*
 * ---- server
 * ----------------------------------------------------------------------------------------
 */

/* What a thread of the server does for its thread of the client. */
static int server_work(struct member *m)
{
    struct gx_conn *conn = &m->conn;
    uint8_t body[24];
    conn->ctx = m->dev->ctx;
    int err = 0;
    if (m->plan->no_progress && (err = gdrc_helper_start(m->dev->ctx)))
        gx_explain_call(m->dev, err, "starting the helper thread");
    if (!err)
        err = side_open(&m->a, m->dev, m->plan, m->o->memory);
    if (!err)
        err = side_connect(&m->a, conn);
    if (!err)
        err = gx_ready(conn);
    while (!err) {
        int n = gx_conn_recv(conn, MSG_RUN, body, 24, 60000, "next run");
        uint64_t size = gx_get64(body), duration = gx_get64(body + 16);
        if (n < 0)
            err = n;
        else if (n != 24 || size > m->plan->max_size || duration > 1000000 * 1000000000ull)
            err = -EPROTO;
        else if (size == 0)
            break;
        else
            err = run_server(&m->a, conn, size, gx_get64(body + 8), duration);
    }
    if (!err)
        err = gx_ready(conn);
    else if (err != -EREMOTEIO && err != -ECONNRESET)
        gx_conn_send_error(conn, "the server gave up: %s",
                           err == -EINTR ? "it was interrupted" : gdrc_strerror(err));
    return err;
}

static int receive_plan(struct gx_conn *conn, struct plan *plan)
{
    uint8_t body[PLAN_BYTES];
    int n = gx_conn_recv(conn, MSG_PLAN, body, sizeof body, GX_TIMEOUT_MS, "plan");
    int err = n < 0 ? n : n == (int)sizeof body ? plan_unpack(plan, body) : -EPROTO;
    if (err)
        gx_conn_send_error(conn, "your plan is not understood");
    return err;
}

/* Accepts the connection of a client's further thread, which has the same token. */
static int accept_member(int listener, struct member *m)
{
    struct plan plan = { 0 };
    struct pollfd p = { .fd = listener, .events = POLLIN };
    uint64_t until = gx_now_ns() + GX_TIMEOUT_MS * 1000000ull;
    int err;
    while ((err = gx_accept(listener, &m->conn, NULL)) == -EAGAIN) {
        if (gx_now_ns() > until) {
            gx_error("Start the client again.", "only %" PRIu32 " of its threads came", m->index);
            return -ETIMEDOUT;
        }
        if ((err = gx_sleep(NULL, NULL, &p, 1, 100)) < 0)
            return err;
    }
    if (!err)
        err = receive_plan(&m->conn, &plan);
    if (!err && plan.token != m->plan->token) {
        gx_conn_send_error(&m->conn, "this server waits for the threads of another client");
        err = -EBUSY;
    }
    return err;
}

static int serve(const struct options *o, int listener, struct gx_conn *conn)
{
    static struct crew_of all;
    struct plan plan = { 0 };
    int err = receive_plan(conn, &plan);
    if (err)
        return err;
    if (o->has_test && (plan.verb != o->plan.verb || plan.mode != o->plan.mode)) {
        gx_error("Start the server without a test: it follows the client.",
                 "%s wants another test than was asked for here", conn->peer);
        gx_conn_send_error(conn, "this server was started for another test");
        return -EINVAL;
    }
    err = open_crew(&all, o, &plan, 1, server_work);
    if (err) {
        gx_conn_send_error(conn, "the server gave up: %s", gdrc_strerror(err));
        return err;
    }
    all.members[0].conn = *conn;
    conn->fd = conn->passed_fd = -1;
    for (uint32_t i = 1; i < plan.threads && !err; i++)
        err = accept_member(listener, &all.members[i]);
    if (err)
        gx_conn_send_error(&all.members[0].conn, "the server gave up: %s", gdrc_strerror(err));
    err = err ? err : run_crew(&all, 1);
    close_crew(&all);
    return err;
}

static int server(const struct options *o)
{
    char address[80];
    int err = gx_dev_address(o->device, (unsigned)o->gid_index, address, sizeof address);
    int listener = err ? err : gx_tcp_listen(address, (uint16_t)o->port);
    if (listener < 0)
        return listener;
    gx_note("waiting on %s port %u", address, (unsigned)o->port);
    bool waited;
    do {
        struct gx_conn conn = { .fd = -1, .passed_fd = -1 };
        struct pollfd p = { .fd = listener, .events = POLLIN };
        while ((err = gx_accept(listener, &conn, NULL)) == -EAGAIN &&
               (err = gx_sleep(NULL, NULL, &p, 1, -1)) >= 0)
            ;
        waited = err == -EINTR;
        if (!err)
            err = serve(o, listener, &conn);
        gx_conn_close(&conn);
    } while (o->keep && !gx_stopping);
    close(listener);
    /* A server that serves without limit ends by a signal between two clients. */
    return o->keep && waited ? 0 : err;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {
        { "device", required_argument, NULL, 'd' },
        { "ib-dev", required_argument, NULL, 'd' },
        { "gid-index", required_argument, NULL, 'x' },
        { "port", required_argument, NULL, 'p' },
        { "keep", no_argument, NULL, 'k' },
        { "connection", required_argument, NULL, 'c' },
        { "size", required_argument, NULL, 's' },
        { "all", no_argument, NULL, 'a' },
        { "iters", required_argument, NULL, 'n' },
        { "duration", required_argument, NULL, 'D' },
        { "tx-depth", required_argument, NULL, 't' },
        { "rx-depth", required_argument, NULL, 'r' },
        { "qp", required_argument, NULL, 'q' },
        { "threads", required_argument, NULL, 'T' },
        { "contexts", no_argument, NULL, 'X' },
        { "engines", no_argument, NULL, 'G' },
        { "both-ends", no_argument, NULL, 'B' },
        { "inline_size", required_argument, NULL, 'I' },
        { "cq-mod", required_argument, NULL, 'Q' },
        { "post_list", required_argument, NULL, 'l' },
        { "outs", required_argument, NULL, 'o' },
        { "mtu", required_argument, NULL, 'm' },
        { "atomic_type", required_argument, NULL, 'A' },
        { "qp-timeout", required_argument, NULL, 'u' },
        { "retry_count", required_argument, NULL, 'R' },
        { "bidirectional", no_argument, NULL, 'b' },
        { "events", no_argument, NULL, 'e' },
        { "report-histogram", no_argument, NULL, 'H' },
        { "check", no_argument, NULL, 'C' },
        { "json", no_argument, NULL, 'J' },
        { "mem", required_argument, NULL, 'M' },
        { "no-progress", no_argument, NULL, 'N' },
        GX_COMMON_OPTIONS,
    };
    struct options o = {
        .port = PORT,
        .memory = "host",
        .plan = { .inline_max = UINT32_MAX, .timeout = 17, .retries = 7 },
    };
    gx_program = "perf";
    static const char shorts[] = "d:x:p:kc:s:an:D:t:r:q:T:I:Q:l:o:m:u:A:beHChV";
    for (int c; (c = gx_getopt(argc, argv, shorts, longs)) != -1;) {
        if (c == 'h')
            return usage(stdout), GX_EXIT_OK;
        if (option(&o, c, optarg))
            return GX_EXIT_USAGE;
    }
    bool loopback = o.device && !strcmp(o.device, "loopback");
    if (arguments(&o, argc, argv) || (o.has_test && complete(&o)))
        return GX_EXIT_USAGE;
    bool alone = loopback || o.both_ends;
    if (alone && (o.host || !o.has_test)) {
        gx_error("perf -d loopback write bw",
                 "a test is given and no host where both ends are in this process");
        return GX_EXIT_USAGE;
    }
    if (loopback && o.both_ends) {
        gx_error("perf -d soft:127.0.0.1 --both-ends send bw",
                 "--both-ends: a loopback device reaches no other device");
        return GX_EXIT_USAGE;
    }
    if (alone && (o.plan.no_progress || (o.both_ends && o.plan.events))) {
        gx_error("Start a server, and measure against it.",
                 "--no-progress, --events: one thread drives both ends");
        return GX_EXIT_USAGE;
    }
    gx_catch_signals();
    int err = alone ? both(&o) : o.host ? client(&o) : server(&o);
    return gx_exit_code(err);
}

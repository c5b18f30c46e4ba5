// SPDX-License-Identifier: MIT OR Apache-2.0
/* Prints the results: percentiles, tables, histogram, JSON. */
#include "perf.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static bool first_row;

const char *verb_name(uint32_t verb)
{
    static const char *const names[] = { "SEND",   "WRITE",        "READ",
                                         "ATOMIC", "ATOMIC_WRITE", "FLUSH" };
    return verb < VERBS ? names[verb] : "?";
}

const char *type_name(uint32_t qp_type)
{
    switch (qp_type) {
    case GDRC_QPT_UC: return "UC";
    case GDRC_QPT_UD: return "UD";
    case GDRC_QPT_XRC_SEND: return "XRC";
    case GDRC_QPT_DCI: return "DC";
    default: return "RC";
    }
}

static int ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* The divisor of a round trip: what an answer ends is reported whole, the rest halved. */
static double hops(const struct plan *plan)
{
    return plan->verb >= VERB_READ ? 1.0 : 2.0;
}

void report_head(const struct plan *plan, enum format format, const char *device, const char *peer)
{
    const char *mode = plan->mode == MODE_LAT ? "latency" : "bandwidth";
    first_row = true;
    if (format == FORMAT_JSON) {
        printf(
            "{\"library\":\"%s\",\"test\":\"%s\",\"mode\":\"%s\",\"connection\":\"%s\",\"device\":"
            "\"%s\",\"peer\":\"%s\","
            "\"threads\":%" PRIu32 ",\"engines\":%s,\"contexts\":%s,\"qps\":%" PRIu32
            ",\"tx_depth\":%" PRIu32 ",\"rx_depth\":%" PRIu32
            ",\"cq_mod\":%" PRIu32 ",\"inline\":%" PRIu32 ",\"post_list\":%" PRIu32
            ",\"bidirectional\":%s,\"checked\":%s,\"events\":%s,\"no_progress\":%s,\"results\":[",
            gdrc_version(), verb_name(plan->verb), mode, type_name(plan->qp_type), device, peer,
            plan->threads, plan->apart == APART_ENGINES ? "true" : "false",
            plan->apart == APART_CONTEXTS ? "true" : "false", plan->qps, plan->tx_depth,
            plan->rx_depth, plan->cq_mod, plan->inline_max, plan->list,
            plan->bidir ? "true" : "false", plan->check ? "true" : "false",
            plan->events ? "true" : "false", plan->no_progress ? "true" : "false");
        fflush(stdout);
        return;
    }
    static const char *const apart[] = { "", " with engines of their own",
                                         " with contexts of their own" };
    char crew[64] = "";
    if (plan->threads > 1)
        snprintf(crew, sizeof crew, "%" PRIu32 " threads%s, each ", plan->threads,
                 apart[plan->apart]);
    printf("%s %s over %s, %s to %s: %s%" PRIu32 " QP%s, depth %" PRIu32
           ", a completion per %" PRIu32
           ", inline up to %" PRIu32 " bytes%s%s%s%s\n",
           verb_name(plan->verb), mode, type_name(plan->qp_type), device, peer, crew, plan->qps,
           plan->qps == 1 ? "" : "s", plan->tx_depth, plan->cq_mod, plan->inline_max,
           plan->bidir ? ", both directions" : "", plan->check ? ", data checked" : "",
           plan->events ? ", sleeping" : "", plan->no_progress ? ", the target only watches" : "");
    if (plan->mode == MODE_LAT)
        printf(" %9s %11s %10s %10s %10s %10s %10s %10s   usec, %s\n", "#bytes", "#iterations",
               "min", "median", "avg", "p99", "p99.9", "max",
               hops(plan) > 1 ? "half of there and back" : "there and back");
    else
        printf(" %9s %12s %16s %14s\n", "#bytes", "#messages", "average[MB/s]", "rate[Mmsg/s]");
    fflush(stdout);
}

/* Eight buckets per doubling. Prints the ones that are not empty. */
static void histogram(const struct plan *plan, enum format format, const uint64_t *sorted,
                      uint64_t count)
{
    uint64_t at = 0, most = 0;
    for (int pass = 0; pass < 2; pass++) {
        at = 0;
        bool first = true;
        while (at < count) {
            /*
             * The bucket of the smallest sample left ends at the next eighth of its power of two.
             */
            unsigned log = sorted[at] > 7 ? 63u - (unsigned)__builtin_clzll(sorted[at]) : 3;
            uint64_t end = ((sorted[at] >> (log - 3)) + 1) << (log - 3), from = at;
            while (at < count && sorted[at] < end)
                at++;
            uint64_t n = at - from;
            if (pass == 0) {
                most = n > most ? n : most;
            } else if (format == FORMAT_JSON) {
                printf("%s[%.4f,%" PRIu64 "]", first ? "" : ",", (double)end / hops(plan) / 1000.0,
                       n);
            } else {
                printf("   < %10.3f us %10" PRIu64 " ", (double)end / hops(plan) / 1000.0, n);
                for (uint64_t i = 0; i < (n * 50 + most - 1) / most; i++)
                    putchar('#');
                putchar('\n');
            }
            first = false;
        }
    }
}

void report_latency(const struct plan *plan, enum format format, uint64_t size, uint64_t *samples,
                    uint64_t count, bool want_histogram)
{
    if (!count)
        return;
    qsort(samples, count, sizeof *samples, ascending);
    double sum = 0, unit = hops(plan) * 1000.0;
    for (uint64_t i = 0; i < count; i++)
        sum += (double)samples[i];
    /* Nearest rank: the smallest sample with at least so many percent of all at or below it. */
    double of[6] = { (double)samples[0],
                     (double)samples[(count - 1) / 2],
                     sum / (double)count,
                     (double)samples[(uint64_t)ceil((double)count * 0.99) - 1],
                     (double)samples[(uint64_t)ceil((double)count * 0.999) - 1],
                     (double)samples[count - 1] };
    if (format == FORMAT_JSON) {
        static const char *const names[] = { "min_us", "median_us", "avg_us",
                                             "p99_us", "p999_us",   "max_us" };
        printf("%s{\"bytes\":%" PRIu64 ",\"iterations\":%" PRIu64, first_row ? "" : ",", size,
               count);
        for (int i = 0; i < 6; i++)
            printf(",\"%s\":%.4f", names[i], of[i] / unit);
        if (want_histogram) {
            printf(",\"histogram\":[");
            histogram(plan, format, samples, count);
            printf("]");
        }
        printf("}");
    } else {
        printf(" %9" PRIu64 " %11" PRIu64, size, count);
        for (int i = 0; i < 6; i++)
            printf(" %10.3f", of[i] / unit);
        printf("\n");
        if (want_histogram)
            histogram(plan, format, samples, count);
    }
    first_row = false;
    fflush(stdout);
}

void report_bandwidth(const struct plan *plan, enum format format, uint64_t size,
                      const struct outcome *mine, const struct outcome *theirs)
{
    /* Datagrams that the other end has not received do not count for the bandwidth. */
    bool lossy = plan->verb == VERB_SEND && !is_reliable(plan->qp_type);
    uint64_t messages = lossy ? theirs->received : mine->messages, sent = mine->messages;
    uint64_t ns = mine->ns;
    if (plan->bidir) {
        messages += lossy ? mine->received : theirs->messages;
        sent += theirs->messages;
        ns = theirs->ns > ns ? theirs->ns : ns;
    }
    double seconds = ns ? (double)ns / 1e9 : 1e-9;
    double mb = (double)messages * (double)size / seconds / 1e6,
           rate = (double)messages / seconds / 1e6;
    if (format == FORMAT_JSON)
        printf("%s{\"bytes\":%" PRIu64 ",\"messages\":%" PRIu64 ",\"lost\":%" PRIu64
               ",\"seconds\":%.6f,\"MB_per_s\":%.2f,\"Mmsg_per_s\":%.6f}",
               first_row ? "" : ",", size, messages, sent - messages, seconds, mb, rate);
    else if (sent != messages)
        printf(" %9" PRIu64 " %12" PRIu64 " %16.2f %14.6f   %" PRIu64 " lost\n", size, messages, mb,
               rate, sent - messages);
    else
        printf(" %9" PRIu64 " %12" PRIu64 " %16.2f %14.6f\n", size, messages, mb, rate);
    first_row = false;
    fflush(stdout);
}

void report_tail(enum format format, bool interrupted)
{
    if (format == FORMAT_JSON)
        printf("]%s}\n", interrupted ? ",\"interrupted\":true" : "");
    fflush(stdout);
}

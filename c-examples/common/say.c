// SPDX-License-Identifier: MIT OR Apache-2.0
/* Messages, numbers, times and the progress bar. */
#include "gx.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *gx_program = "example";
volatile int gx_stopping;
volatile unsigned gx_signals;
_Thread_local unsigned gx_allowed;
static unsigned step_number;

void gx_error(const char *hint, const char *fmt, ...)
{
    va_list args;
    fflush(stdout);
    fprintf(stderr, "%s: ", gx_program);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    if (hint && *hint)
        fprintf(stderr, "    %s\n", hint);
}

void gx_note(const char *fmt, ...)
{
    va_list args;
    fflush(stdout);
    fprintf(stderr, "%s: ", gx_program);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
}

void gx_step(const char *fmt, ...)
{
    va_list args;
    printf("[%s] %u. ", gx_program, ++step_number);
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
    fflush(stdout);
}

void gx_step_reset(void) { step_number = 0; }

void gx_print_bytes(FILE *to, const void *bytes, size_t length, size_t max)
{
    const unsigned char *at = bytes;
    size_t shown = length < max ? length : max;
    for (size_t i = 0; i < shown; i++) {
        if (at[i] >= 0x20 && at[i] < 0x7f && at[i] != '\\')
            fputc(at[i], to);
        else if (at[i] == '\n')
            fputs("\\n", to);
        else
            fprintf(to, "\\x%02x", at[i]);
    }
    if (shown < length)
        fprintf(to, "... (%zu bytes more)", length - shown);
}

static int parse(const char *text, const char *option, uint64_t min, uint64_t max, bool suffix,
                 uint64_t *out)
{
    char *end = NULL;
    errno = 0;
    unsigned long long value = text && *text != '-' ? strtoull(text, &end, 0) : 0;
    bool good = end && end != text && errno == 0;
    if (good && suffix && *end) {
        unsigned shift = *end == 'k' || *end == 'K'   ? 10
                         : *end == 'm' || *end == 'M' ? 20
                         : *end == 'g' || *end == 'G' ? 30
                                                      : 0;
        good = shift != 0 && value <= UINT64_MAX >> shift;
        value <<= good ? shift : 0;
        end++;
    }
    if (!good || *end || value < min || value > max) {
        gx_error("See --help.", "%s wants a number from %" PRIu64 " to %" PRIu64 "%s, not '%s'",
                 option, min, max, suffix ? " (k, M or G may follow)" : "", text ? text : "");
        return -EINVAL;
    }
    *out = value;
    return 0;
}

int gx_getopt(int argc, char **argv, const char *shorts, const struct option *longs)
{
    int c = getopt_long(argc, argv, shorts, longs, NULL);
    if (c == 'V') {
        printf("%s %s\n", program_invocation_short_name, gdrc_version());
        exit(GX_EXIT_OK);
    }
    return c;
}

int gx_parse_number(const char *text, const char *option, uint64_t min, uint64_t max, uint64_t *out)
{
    return parse(text, option, min, max, false, out);
}

int gx_parse_size(const char *text, const char *option, uint64_t min, uint64_t max, uint64_t *out)
{
    return parse(text, option, min, max, true, out);
}

uint64_t gx_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

const char *gx_rate(char out[32], uint64_t bytes, uint64_t ns)
{
    double per_second = ns ? (double)bytes * 1e9 / (double)ns : 0.0;
    const char *unit = "B/s";
    if (per_second >= 1e9) {
        per_second /= 1e9;
        unit = "GB/s";
    } else if (per_second >= 1e6) {
        per_second /= 1e6;
        unit = "MB/s";
    } else if (per_second >= 1e3) {
        per_second /= 1e3;
        unit = "kB/s";
    }
    snprintf(out, 32, "%.2f %s", per_second, unit);
    return out;
}

static void on_signal(int number)
{
    gx_signals++;
    gx_stopping = number;
}

void gx_catch_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    /* No SA_RESTART: a sleeping poll() has to return and check the flag. */
    action.sa_handler = on_signal;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    action.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &action, NULL);
}

int gx_exit_code(int err)
{
    if (err == -EINTR && gx_stopping)
        return 128 + gx_stopping;
    return err < 0 ? GX_EXIT_FAILED : GX_EXIT_OK;
}

/*
 * A program whose output is lost has failed. exit() would flush stdout as well, but ignore the
 * result.
 */
static void close_stdout(void)
{
    bool failed = ferror(stdout) != 0;
    errno = 0;
    if (fclose(stdout) && errno != EBADF)
        failed = true;
    if (failed) {
        gx_error("Its disk may be full, or its reader gone.",
                 "standard output could not be written%s%s", errno ? ": " : "",
                 errno ? strerror(errno) : "");
        _exit(GX_EXIT_FAILED);
    }
}

__attribute__((constructor)) static void watch_stdout(void) { atexit(close_stdout); }

void gx_bar_start(struct gx_bar *bar, uint64_t total, bool wanted)
{
    bar->total = total;
    bar->start_ns = gx_now_ns();
    bar->last_ns = 0;
    bar->on = wanted && isatty(STDERR_FILENO);
}

void gx_bar_update(struct gx_bar *bar, uint64_t done, const char *label)
{
    enum { WIDTH = 30 };
    uint64_t now;
    if (!bar->on || (now = gx_now_ns()) - bar->last_ns < 100000000u)
        return;
    bar->last_ns = now;
    double share = bar->total ? (double)done / (double)bar->total : 1.0;
    share = share > 1.0 ? 1.0 : share;
    int filled = (int)(share * WIDTH);
    char line[WIDTH + 1], rate[32];
    memset(line, '.', WIDTH);
    memset(line, '#', (size_t)filled);
    line[WIDTH] = 0;
    fprintf(stderr, "\r[%s] %3d%%  %10s  ", line, (int)(share * 100),
            gx_rate(rate, done, now - bar->start_ns));
    gx_print_bytes(stderr, label, strlen(label), 30);
    fputs("\033[K", stderr);
}

void gx_bar_end(struct gx_bar *bar)
{
    if (bar->on && bar->last_ns)
        fputs("\r\033[K", stderr);
    bar->on = false;
}

// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * gx: code that the example programs share. It is not part of the library: a program of your own
 * needs <gdrcore.h> and a way to send 128 bytes from one side to the other.
 *
 *   say.c     messages, numbers, time, progress bar
 *   conn.c    TCP and Unix side channel: framed messages with deadlines
 *   dev.c     open a device, make a queue pair, wait for completions
 *   mem.c     buffers by kind of memory: the host's, a GPU's
 *   crc32c.c  CRC-32C, three streams at a time where the CPU has the instruction
 *
 * Functions return 0 or a count, or a negative errno. Functions with a parameter `what` have
 * already printed the error and a remedy when they return one.
 */
#ifndef GX_H
#define GX_H

#include <gdrcore.h>

#include <getopt.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/*
 * Exit codes of all programs; 128 plus the signal's number if a signal ended the program before it
 * was done.
 */
enum { GX_EXIT_OK = 0, GX_EXIT_FAILED = 1, GX_EXIT_USAGE = 2 };
/*
 * The exit code for a result: 0, or a negative errno that has been reported. If output could not be
 * written (a full disk, a closed pipe), that is reported at exit, however main() ends, and the exit
 * code is GX_EXIT_FAILED.
 */
int gx_exit_code(int err);

/* ---- say.c ---------------------------------------------------------------------------------- */

/* Name that starts every line on stderr; set it first in main(). */
extern const char *gx_program;

/* Prints "program: message" and, if `hint` is not NULL, an indented line with a remedy. */
void gx_error(const char *hint, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints information to stderr; no error. */
void gx_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/*
 * Prints a numbered step to stdout: "[router] 3. message". Flushed, so that logs of several
 * programs interleave in order.
 */
void gx_step(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Starts numbering again at 1. */
void gx_step_reset(void);
/*
 * Prints bytes of unknown origin: printable ones unchanged, the rest escaped, at most `max` of
 * them.
 */
void gx_print_bytes(FILE *to, const void *bytes, size_t length, size_t max);

/* The last entries of every program's table of options. */
#define GX_COMMON_OPTIONS                                                                          \
    { "help", no_argument, NULL, 'h' }, { "version", no_argument, NULL, 'V' }, { NULL, 0, NULL, 0 }
/* getopt_long(3), which answers --version by itself and ends the program. */
int gx_getopt(int argc, char **argv, const char *shorts, const struct option *longs);

/*
 * A number in decimal or 0x hexadecimal within [min, max]. Otherwise prints an error that names
 * `option`, and returns -EINVAL.
 */
int gx_parse_number(const char *text, const char *option, uint64_t min, uint64_t max,
                    uint64_t *out);
/* The same with an optional suffix k, M or G (powers of 1024). */
int gx_parse_size(const char *text, const char *option, uint64_t min, uint64_t max, uint64_t *out);

uint64_t gx_now_ns(void);
/* "1.23 GB/s" for bytes in ns; `out` is the caller's. */
const char *gx_rate(char out[32], uint64_t bytes, uint64_t ns);

/*
 * The number of the last SIGINT, SIGTERM or SIGHUP, or 0. Waits end early with -EINTR when it is
 * set. SIGPIPE is ignored.
 */
extern volatile int gx_stopping;
/* Number of such signals so far, and how many of them end no wait of this thread. */
extern volatile unsigned gx_signals;
extern _Thread_local unsigned gx_allowed;
void gx_catch_signals(void);

struct gx_bar { uint64_t total, start_ns, last_ns; bool on; };
void gx_bar_start(struct gx_bar *bar, uint64_t total, bool wanted);
void gx_bar_update(struct gx_bar *bar, uint64_t done, const char *label);
void gx_bar_end(struct gx_bar *bar);

/* ---- conn.c --------------------------------------------------------------------------------- */

/*
 * The side channel. Every message: magic, version, type, length of the body, all big-endian, 16
 * bytes; then the body. Anything else closes the connection.
 */
#define GX_BODY_MAX 4096u
#define GX_HEADER_BYTES 16u
#define GX_PROTOCOL_VERSION 1u
/* Longest wait for an answer. */
#define GX_TIMEOUT_MS 10000

enum gx_type {
    GX_MSG_ERROR = 1,     /* text: the sender's reason to give up */
    GX_MSG_ENDPOINT = 2,  /* 128 bytes of gdrc_endpoint_pack */
    GX_MSG_READY = 3,     /* sender's queue pair is connected */
    GX_MSG_DONE = 4,      /* the sender has finished its part */
    GX_MSG_PROGRAM = 16,  /* first type of a program's own messages */
};

struct gx_conn {
    int fd;               /* non-blocking; -1 when closed */
    int passed_fd;        /* descriptor received by SCM_RIGHTS and not taken yet, or -1 */
    gdrc_context *ctx;    /* engine to run while waiting, or NULL */
    bool hangup;          /* the peer has closed its side */
    size_t have;          /* bytes in `in` */
    char peer[96];        /* for messages */
    uint8_t in[GX_HEADER_BYTES + GX_BODY_MAX];
};

/*
 * Listens on `host` (address with optional %zone) and port. Returns the descriptor; prints errors.
 */
int gx_tcp_listen(const char *host, uint16_t port);
/*
 * Connects within the time, from `local` (address) if not NULL. Retries a refused connection until
 * the time is over.
 */
int gx_tcp_connect(struct gx_conn *conn, const char *host, uint16_t port, const char *local,
                   int timeout_ms);
/* Accepts a waiting connection. -EAGAIN: there is none. */
int gx_accept(int listener, struct gx_conn *conn, gdrc_context *ctx);
/* The address of this end of a TCP connection, with %zone where it has one. */
int gx_conn_local_address(const struct gx_conn *conn, char *out, size_t size);

/*
 * Unix stream socket at `path`; a socket file without a listener is replaced. `mode`: permission of
 * the file.
 */
int gx_unix_listen(const char *path, mode_t mode);
int gx_unix_connect(struct gx_conn *conn, const char *path, int timeout_ms);

void gx_conn_init(struct gx_conn *conn, int fd, const char *peer, gdrc_context *ctx);
void gx_conn_close(struct gx_conn *conn);

/* Sends a message, with a descriptor if pass_fd >= 0. Prints errors if `what` is not NULL. */
int gx_conn_send(struct gx_conn *conn, unsigned type, const void *body, size_t length, int pass_fd,
                 const char *what);
/* Sends the peer our reason to give up; ignores errors. */
void gx_conn_send_error(struct gx_conn *conn, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/*
 * Waits for a message of this type while the engine runs. Returns the length of its body.
 * -ETIMEDOUT, -ECONNRESET (closed), -EPROTO (not our protocol), -EREMOTEIO (the peer sent
 * GX_MSG_ERROR), -EINTR (gx_stopping).
 */
int gx_conn_recv(struct gx_conn *conn, unsigned type, void *body, size_t capacity, int timeout_ms,
                 const char *what);
/*
 * Reads what has arrived, without waiting. -ECONNRESET once the peer has closed and everything is
 * read.
 */
int gx_conn_pump(struct gx_conn *conn);
/*
 * Takes a complete message out of the bytes that were read. Returns the length of the body, or
 * -EAGAIN, or -EPROTO.
 */
int gx_conn_take(struct gx_conn *conn, unsigned *type, void *body, size_t capacity);

void gx_put16(uint8_t *at, uint16_t v);
void gx_put32(uint8_t *at, uint32_t v);
void gx_put64(uint8_t *at, uint64_t v);
uint16_t gx_get16(const uint8_t *at);
uint32_t gx_get32(const uint8_t *at);
uint64_t gx_get64(const uint8_t *at);

/* ---- dev.c ---------------------------------------------------------------------------------- */

struct gx_dev {
    gdrc_context *ctx;
    gdrc_pd pd;
    struct gdrc_device_attr attr;
    char name[128];     /* as given to gdrc_open */
    char address[80];   /* the address in it, with %zone; where the side channel listens */
    uint32_t path_flags; /* of ',path=' behind the name: GDRC_CONFIG_ flags, or 0 */
};

/*
 * Opens a device: "soft:ADDRESS[:PORT]", an ADDRESS, or the name of a network interface (then
 * `gid_index` counts its addresses). Behind each may follow ",path=udp", ",path=shm" or
 * ",path=auto" (the default): the path to peers of this host; and ",cma" behind the last two: see
 * GDRC_CONFIG_CMA. NULL: $GDRC_DEVICE, or the first address that is not loopback. If no port is
 * given and another program has the usual one, the next free port is used: endpoints carry it. Or
 * "router:PATH", by way of a router. $GDRC_FAULTS and $GDRC_SEED are its faults and seed.
 */
int gx_dev_open(struct gx_dev *dev, const char *spec, unsigned gid_index,
                const struct gdrc_config *config);
/*
 * The address of a device that gx_dev_open would open. Only a NIC is opened for that, and closed
 * again.
 */
int gx_dev_address(const char *spec, unsigned gid_index, char *out, size_t size);
/* Closes the device; prints what was left open. */
void gx_dev_close(struct gx_dev *dev);

/* An RC queue pair with both directions on one CQ. */
int gx_qp_create(struct gx_dev *dev, gdrc_cq cq, uint32_t send_wr, uint32_t recv_wr, uint32_t sge,
                 gdrc_qp *out, uint32_t *qpn);
int gx_mr_register(struct gx_dev *dev, void *addr, size_t length, uint32_t access, gdrc_mr *out,
                   struct gdrc_mr_attr *attr);
/* The same for a buffer of any kind. `attr` (may be NULL) receives how the device reaches it. */
int gx_mem_register(struct gx_dev *dev, const struct gdrc_memory *memory, uint32_t access,
                    gdrc_mr *out, struct gdrc_mr_attr *attr);
/* Lowers the endpoint's path MTU to that of the route to the other end of a TCP connection. */
void gx_endpoint_fit(struct gx_dev *dev, const struct gx_conn *conn, struct gdrc_endpoint *local);
/* Sends our endpoint over `conn`, without waiting; `local` is for gx_endpoint_connect. */
int gx_endpoint_send(struct gx_dev *dev, gdrc_qp qp, const gdrc_mr *mr, struct gx_conn *conn,
                     struct gdrc_endpoint *local);
/*
 * Connects to the endpoint that came in a GX_MSG_ENDPOINT of `length` bytes. `patience_s`: as in
 * gx_qp_handshake.
 */
int gx_endpoint_connect(struct gx_dev *dev, gdrc_qp qp, struct gx_conn *conn,
                        const struct gdrc_endpoint *local, const uint8_t *wire, size_t length,
                        uint64_t patience_s, struct gdrc_endpoint *remote);
/*
 * Both, one after the other: returns when our queue pair is connected. Post receives then, and call
 * gx_ready(). `patience_s`: silence of the peer after which operations fail, in seconds (half a
 * second to nine); 0: the library's default.
 */
int gx_qp_handshake(struct gx_dev *dev, gdrc_qp qp, const gdrc_mr *mr, struct gx_conn *conn,
                    uint64_t patience_s, struct gdrc_endpoint *remote);
/* Notifies the peer that we are ready, and waits for the same from it. */
int gx_ready(struct gx_conn *conn);

/*
 * Sleeps until one of `fds` or the engine is ready; runs the engine. Returns the number of ready
 * `fds` (revents set), -EINTR when gx_stopping. `cq` (may be NULL) is armed first, so a completion
 * ends the sleep as well, even one that comes while the thread goes to sleep. Poll the CQ before
 * and after each call.
 */
int gx_sleep(gdrc_context *ctx, const gdrc_cq *cq, struct pollfd *fds, nfds_t count,
             int timeout_ms);
#define GX_SLEEP_FDS_MAX 66

/*
 * Waits for one completion; polls for a while, then sleeps. Returns -ECONNRESET if the peer closes
 * `conn` (may be NULL). A completion with an error status is printed and returned as -EIO.
 */
int gx_wait_completion(struct gx_dev *dev, gdrc_cq cq, gdrc_qp qp, gdrc_wc *wc,
                       struct gx_conn *conn, int timeout_ms, const char *what);
/* Prints a completion with an error status: the status, and the cause that the device recorded. */
void gx_explain_wc(struct gx_dev *dev, gdrc_qp qp, const gdrc_wc *wc, const char *what);
/* Prints a failed call. */
void gx_explain_call(struct gx_dev *dev, int err, const char *what);

/* ---- mem.c ---------------------------------------------------------------------------------- */

/*
 * A buffer that can be registered and, if it was made shareable, passed to another process by
 * descriptor. kind: "host" or "cuda[:BDF]".
 */
struct gx_mem {
    void *addr;         /* not a pointer for GPU memory: use gx_mem_read and gx_mem_write */
    size_t length;
    int fd;             /* descriptor to pass on, or -1 */
    bool gpu;
    char kind[32];
    /* Bytes for gx_mem_import that go with the descriptor, or replace it. */
    size_t token_bytes;
    _Alignas(8) uint8_t token[sizeof(struct gdrc_cuda_handle)];
};

int gx_mem_alloc(struct gx_mem *mem, const char *kind, size_t length, bool shareable);
/*
 * Maps a buffer of another process. Refuses one that its owner could still shrink. Takes over the
 * descriptor; -1: there is none.
 */
int gx_mem_import(struct gx_mem *mem, const char *kind, int fd, const void *token,
                  size_t token_bytes, size_t length);
void gx_mem_free(struct gx_mem *mem);
/*
 * Copies out of and into the buffer: the CPU cannot access every kind of memory by pointer. -ERANGE
 * outside of it.
 */
int gx_mem_read(const struct gx_mem *mem, size_t offset, void *to, size_t length);
int gx_mem_write(struct gx_mem *mem, size_t offset, const void *from, size_t length);
int gx_mem_fill(struct gx_mem *mem, size_t offset, uint8_t byte, size_t length);
/* Describes the buffer for gdrc_mr_reg_memory. */
void gx_mem_describe(const struct gx_mem *mem, struct gdrc_memory *out);

/* ---- crc32c.c ------------------------------------------------------------------------------- */

/* CRC-32C (Castagnoli) of further bytes: begin with crc = 0. */
uint32_t gx_crc32c(uint32_t crc, const void *bytes, size_t length);
/* The same for `length` zero bytes, in logarithmic time. */
uint32_t gx_crc32c_zeros(uint32_t crc, uint64_t length);

#endif

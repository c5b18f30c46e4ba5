// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * gx: what the example programs share. Nothing in here belongs to the library: a program of your
 * own needs <gdrcore.h> and some way to carry 128 bytes from one side to the other.
 *
 *   say.c     messages, numbers, time, progress bar
 *   conn.c    TCP and Unix side channel: framed messages with deadlines
 *   dev.c     open a device, make a queue pair, wait for completions
 *   mem.c     buffers by kind of memory: the host's, a GPU's
 *   crc32c.c  CRC-32C, three streams at a time where the CPU has the instruction
 *
 * Functions return 0 or a count, or a negative errno. Those that take a `what` have already told
 * the user what failed and what to do about it when they return an error.
 */
#ifndef GX_H
#define GX_H

#include <gdrcore.h>

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/*
 * Exit codes of all programs; 128 and a signal's number when that signal ended the program before
 * its job was done.
 */
enum { GX_EXIT_OK = 0, GX_EXIT_FAILED = 1, GX_EXIT_USAGE = 2 };
/*
 * The exit code that goes with a result: 0, or a negative errno that has been told. Output that
 * could not be written (a full disk, a closed pipe) is told at exit, whatever way main() ends, and
 * makes the exit code GX_EXIT_FAILED.
 */
int gx_exit_code(int err);

/* ---- say.c ---------------------------------------------------------------------------------- */

/* Name that starts every line on stderr; set it first in main(). */
extern const char *gx_program;

/* "program: message", then, if `hint` is not NULL, an indented line that says what to do. */
void gx_error(const char *hint, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A line for the reader on stderr, no error. */
void gx_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/*
 * A numbered step on stdout: "[router] 3. message". Flushed, so that logs of several programs
 * interleave well.
 */
void gx_step(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Starts numbering again at 1. */
void gx_step_reset(void);
/*
 * Prints bytes that somebody else wrote: printable ones as they are, the rest escaped, at most
 * `max` of them.
 */
void gx_print_bytes(FILE *to, const void *bytes, size_t length, size_t max);

/*
 * Number in decimal or 0x hexadecimal within [min, max]. Complains, naming `option`, and returns
 * -EINVAL otherwise.
 */
int gx_parse_number(const char *text, const char *option, uint64_t min, uint64_t max,
                    uint64_t *out);
/* The same with an optional suffix k, M or G (powers of 1024). */
int gx_parse_size(const char *text, const char *option, uint64_t min, uint64_t max, uint64_t *out);

uint64_t gx_now_ns(void);
/* "1.23 GB/s" for bytes in ns; the buffer is the caller's. */
const char *gx_rate(char out[32], uint64_t bytes, uint64_t ns);

/*
 * The number of the last SIGINT, SIGTERM or SIGHUP, or 0. Waits end early with -EINTR when it is
 * set. SIGPIPE is ignored.
 */
extern volatile int gx_stopping;
void gx_catch_signals(void);

struct gx_bar { uint64_t total, start_ns, last_ns; bool on; };
void gx_bar_start(struct gx_bar *bar, uint64_t total, bool wanted);
void gx_bar_update(struct gx_bar *bar, uint64_t done, const char *label);
void gx_bar_end(struct gx_bar *bar);

/* ---- conn.c --------------------------------------------------------------------------------- */

/*
 * The side channel. Every message: magic, version, type, length of the body, all big-endian, 16
 * bytes; then the body. Whatever does not begin so is answered by closing the connection.
 */
#define GX_BODY_MAX 4096u
#define GX_HEADER_BYTES 16u
#define GX_PROTOCOL_VERSION 1u
/* Longest silence of a peer that owes an answer. */
#define GX_TIMEOUT_MS 10000

enum gx_type {
    GX_MSG_ERROR = 1,     /* text: why the sender gives up */
    GX_MSG_ENDPOINT = 2,  /* 128 bytes of gdrc_endpoint_pack */
    GX_MSG_READY = 3,     /* sender's queue pair is connected */
    GX_MSG_DONE = 4,      /* sender has finished its part */
    GX_MSG_PROGRAM = 16,  /* and above: a program's own */
};

struct gx_conn {
    int fd;               /* non-blocking; -1 when closed */
    int passed_fd;        /* descriptor that came by SCM_RIGHTS and nobody took, or -1 */
    gdrc_context *ctx;    /* engine to run while waiting, or NULL */
    bool hangup;          /* the peer has closed its side */
    size_t have;          /* bytes in `in` */
    char peer[96];        /* for messages */
    uint8_t in[GX_HEADER_BYTES + GX_BODY_MAX];
};

/*
 * Listens on `host` (address with optional %zone) and port. Returns the descriptor; complains on
 * error.
 */
int gx_tcp_listen(const char *host, uint16_t port);
/*
 * Connects within the time, from `local` (address) if not NULL. Retries a refused connection until
 * the time is over.
 */
int gx_tcp_connect(struct gx_conn *conn, const char *host, uint16_t port, const char *local,
                   int timeout_ms);
/* Takes one waiting connection. -EAGAIN: there is none. */
int gx_accept(int listener, struct gx_conn *conn, gdrc_context *ctx);
/* The address of this end of a TCP connection, with %zone where it has one. */
int gx_conn_local_address(const struct gx_conn *conn, char *out, size_t size);

/*
 * Unix stream socket at `path`; a socket file that nobody serves is replaced. `mode`: permission of
 * the file.
 */
int gx_unix_listen(const char *path, mode_t mode);
int gx_unix_connect(struct gx_conn *conn, const char *path, int timeout_ms);

void gx_conn_init(struct gx_conn *conn, int fd, const char *peer, gdrc_context *ctx);
void gx_conn_close(struct gx_conn *conn);

/*
 * Sends a message, with a descriptor if pass_fd >= 0. Complains on error when `what` is not NULL.
 */
int gx_conn_send(struct gx_conn *conn, unsigned type, const void *body, size_t length, int pass_fd,
                 const char *what);
/* Tells the peer why we give up; errors are of no interest then. */
void gx_conn_send_error(struct gx_conn *conn, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/*
 * Waits for a message of this type, the engine running meanwhile. Returns the length of its body.
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
 * Takes a complete message out of what was read. Returns the length of the body, or -EAGAIN, or
 * -EPROTO.
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
 * `gid_index` counts its addresses), each with ",path=udp", ",path=shm" or ",path=auto" (the
 * default) behind it: how peers of this host are reached; ",cma" behind the last two: see
 * GDRC_CONFIG_CMA. NULL: $GDRC_DEVICE, or the first address that is not loopback. Where no port is
 * given and a stranger has the usual one, the next free one is taken: endpoints carry it. Or
 * "router:PATH", by way of a router.
 */
int gx_dev_open(struct gx_dev *dev, const char *spec, unsigned gid_index,
                const struct gdrc_config *config);
/*
 * The address of a device as gx_dev_open would take it. A NIC is opened for a moment to know it;
 * nothing else is.
 */
int gx_dev_address(const char *spec, unsigned gid_index, char *out, size_t size);
/* Closes and names what was left open. */
void gx_dev_close(struct gx_dev *dev);

/* An RC queue pair with both directions on one CQ. */
int gx_qp_create(struct gx_dev *dev, gdrc_cq cq, uint32_t send_wr, uint32_t recv_wr, uint32_t sge,
                 gdrc_qp *out, uint32_t *qpn);
int gx_mr_register(struct gx_dev *dev, void *addr, size_t length, uint32_t access, gdrc_mr *out,
                   struct gdrc_mr_attr *attr);
/* The same for a buffer of any kind. `attr` (may be NULL) says how the device reaches it. */
int gx_mem_register(struct gx_dev *dev, const struct gdrc_memory *memory, uint32_t access,
                    gdrc_mr *out, struct gdrc_mr_attr *attr);
/* Lowers the endpoint's path MTU to what the route to the other end of a TCP connection carries. */
void gx_endpoint_fit(struct gx_dev *dev, const struct gx_conn *conn, struct gdrc_endpoint *local);
/* Sends our endpoint over `conn`; `local` is kept for gx_endpoint_connect. Waits for nothing. */
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
 * Both, one after the other: returns with our queue pair connected. Post receives now, then call
 * gx_ready(). `patience_s`: operations fail when the peer has been silent for about so long (half a
 * second to nine); 0: the library's default.
 */
int gx_qp_handshake(struct gx_dev *dev, gdrc_qp qp, const gdrc_mr *mr, struct gx_conn *conn,
                    uint64_t patience_s, struct gdrc_endpoint *remote);
/* Tells the peer that we are ready and waits until it is, too. */
int gx_ready(struct gx_conn *conn);

/*
 * Sleeps until one of `fds` or the engine has something; runs the engine. Returns how many of `fds`
 * are ready (revents set), -EINTR when gx_stopping. `cq` (may be NULL) is armed first: a completion
 * ends the sleep, too, even one that comes while we are falling asleep. Poll the CQ before and
 * after each call.
 */
int gx_sleep(gdrc_context *ctx, const gdrc_cq *cq, struct pollfd *fds, nfds_t count,
             int timeout_ms);
#define GX_SLEEP_FDS_MAX 66

/*
 * Waits for one completion; polls for a while, then sleeps. Ends early with -ECONNRESET when `conn`
 * (may be NULL) is closed by the peer. A completion with an error status is reported as such and
 * returned as -EIO.
 */
int gx_wait_completion(struct gx_dev *dev, gdrc_cq cq, gdrc_qp qp, gdrc_wc *wc,
                       struct gx_conn *conn, int timeout_ms, const char *what);
/*
 * Explains a completion with an error status: the status, and the cause that the device recorded.
 */
void gx_explain_wc(struct gx_dev *dev, gdrc_qp qp, const gdrc_wc *wc, const char *what);
/* Explains a failed call. */
void gx_explain_call(struct gx_dev *dev, int err, const char *what);

/* ---- mem.c ---------------------------------------------------------------------------------- */

/*
 * A buffer that can be registered and, if it was made shareable, handed to another process by
 * descriptor. kind: "host" or "cuda[:BDF]".
 */
struct gx_mem {
    void *addr;         /* of a GPU's memory: no pointer, gx_mem_read and gx_mem_write reach it */
    size_t length;
    int fd;             /* descriptor to hand over, or -1 */
    bool gpu;
    char kind[32];
    /* What goes beside the descriptor, or in its place: bytes for gx_mem_import. */
    size_t token_bytes;
    _Alignas(8) uint8_t token[sizeof(struct gdrc_cuda_handle)];
};

int gx_mem_alloc(struct gx_mem *mem, const char *kind, size_t length, bool shareable);
/*
 * Maps a buffer that another process made. Refuses one that its owner could still shrink. Takes the
 * descriptor, -1: there is none.
 */
int gx_mem_import(struct gx_mem *mem, const char *kind, int fd, const void *token,
                  size_t token_bytes, size_t length);
void gx_mem_free(struct gx_mem *mem);
/*
 * Copies out of and into the buffer: the CPU cannot reach every kind of memory by pointer. -ERANGE
 * outside of it.
 */
int gx_mem_read(const struct gx_mem *mem, size_t offset, void *to, size_t length);
int gx_mem_write(struct gx_mem *mem, size_t offset, const void *from, size_t length);
int gx_mem_fill(struct gx_mem *mem, size_t offset, uint8_t byte, size_t length);
/* The buffer as gdrc_mr_reg_memory takes it. */
void gx_mem_describe(const struct gx_mem *mem, struct gdrc_memory *out);

/* ---- crc32c.c ------------------------------------------------------------------------------- */

/* CRC-32C (Castagnoli) of more bytes: begin with crc = 0. */
uint32_t gx_crc32c(uint32_t crc, const void *bytes, size_t length);
/* The same for `length` bytes of 0, of which none is looked at. */
uint32_t gx_crc32c_zeros(uint32_t crc, uint64_t length);

#endif

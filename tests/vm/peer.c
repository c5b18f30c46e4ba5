/*
 * SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * peer DEVICE PORT: the kernel's end of the interoperation tests. It owns queue pairs of DEVICE and
 * executes the requests of one TCP client, one line each, with a line of answer ("ok ..." or "err
 * ERRNO WHAT"). All checks are made by the client; this program only turns lines into verbs. It
 * ends when the client disconnects.
 *
 * Compiled with A19 and the headers of rdma-core 45 or newer, it has ATOMIC WRITE and FLUSH too.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ENDS 600
#define BATCH 512

/* A QP with its objects; `cq` and `srq` may belong to another end. */
struct end {
	struct ibv_qp *qp;
	struct ibv_cq *cq, *own_cq;
	struct ibv_srq *srq, *own_srq;
	struct ibv_mr *mr;
	struct ibv_ah *ah;
	struct ibv_mw *mw;
	struct ibv_mr *region;
	uint8_t *buf;
	uint64_t len;
};

static struct end ends[ENDS];
static struct ibv_context *ctx;
static struct ibv_pd *pd;

#ifdef A19
#define FLUSH_RIGHTS IBV_ACCESS_FLUSH_GLOBAL
#else
#define FLUSH_RIGHTS 0
#endif
static FILE *io;

/* The words of the current request, and the same as numbers. */
static const char *words[32];
static int count;

static uint64_t num(int i)
{
	return i < count ? strtoull(words[i], NULL, 0) : 0;
}

static struct end *the_end(void)
{
	uint64_t i = num(1);
	return i < ENDS && ends[i].qp ? &ends[i] : NULL;
}

static void ok(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	fputs("ok ", io);
	vfprintf(io, format, list);
	fputs("\n", io);
	va_end(list);
}

static void fail(int error, const char *what)
{
	fprintf(io, "err %d %s\n", error, what);
}

static void done(int error, const char *what)
{
	if (error)
		fail(error, what);
	else
		ok("");
}

static double now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

/* Whether [offset, offset + len) lies in the end's buffer. */
static int inside(const struct end *e, uint64_t offset, uint64_t len)
{
	return offset <= e->len && len <= e->len - offset;
}

static uint64_t step(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/*
 * The bytes of a seed: little-endian words of one generator. Writes them, or returns the first
 * offset at which `at` differs (-1: none).
 */
static int64_t pattern(uint8_t *at, uint64_t len, uint64_t seed, int write)
{
	uint64_t state = seed * 0x9E3779B97F4A7C15ull | 1;
	for (uint64_t i = 0; i < len; i += 8) {
		uint64_t word = step(&state), n = len - i < 8 ? len - i : 8;
		if (write)
			memcpy(at + i, &word, n);
		else if (memcmp(at + i, &word, n))
			for (uint64_t k = 0;; k++)
				if (at[i + k] != ((uint8_t *)&word)[k])
					return i + k;
	}
	return -1;
}

/* A QP; with A19 one of RC has the two operations, which are posted by ibv_wr_ calls only. */
static struct ibv_qp *new_qp(struct ibv_qp_init_attr *a)
{
#ifdef A19
	if (a->qp_type == IBV_QPT_RC) {
		struct ibv_qp_init_attr_ex x = {
			.send_cq = a->send_cq,
			.recv_cq = a->recv_cq,
			.srq = a->srq,
			.cap = a->cap,
			.qp_type = a->qp_type,
			.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
			.pd = pd,
			.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ |
					  IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_FLUSH |
					  IBV_QP_EX_WITH_ATOMIC_WRITE,
		};
		return ibv_create_qp_ex(ctx, &x);
	}
#endif
	return ibv_create_qp(pd, a);
}

/*
 * new TYPE BUFFER SEND_DEPTH RECV_DEPTH CQE SGE SRQ: SRQ 0 none, > 0 its depth, -(id + 1) CQ and
 * SRQ of that end.
 */
static void new_end(void)
{
	int i = 0;
	while (i < ENDS && ends[i].qp)
		i++;
	if (i == ENDS)
		return fail(ENOSPC, "ends");
	struct end *e = &ends[i];
	memset(e, 0, sizeof *e);
	int64_t srq = (int64_t)num(7);
	e->len = num(2);
        e->buf = mmap(NULL, e->len, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        if (e->buf == MAP_FAILED)
		return fail(errno, "mmap");
	e->mr = ibv_reg_mr(pd, e->buf, e->len,
			   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE |
				   IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | FLUSH_RIGHTS);
	if (!e->mr)
		return fail(errno, "ibv_reg_mr");
	if (srq < 0) {
		struct end *other = &ends[-srq - 1];
		e->cq = other->cq;
		e->srq = other->srq;
	} else {
		e->cq = e->own_cq = ibv_create_cq(ctx, num(5), NULL, NULL, 0);
		if (!e->cq)
			return fail(errno, "ibv_create_cq");
		if (srq > 0) {
			struct ibv_srq_init_attr a = { .attr = { .max_wr = srq, .max_sge = 4 } };
			e->srq = e->own_srq = ibv_create_srq(pd, &a);
			if (!e->srq)
				return fail(errno, "ibv_create_srq");
		}
	}
        struct ibv_qp_init_attr a = {
            .send_cq = e->cq,
            .recv_cq = e->cq,
            .srq = e->srq,
            .qp_type = num(1),
            .cap = { .max_send_wr = num(3),
                     .max_recv_wr = num(4),
                     .max_send_sge = num(6),
                     .max_recv_sge = num(6),
                     .max_inline_data = 64 },
        };
        e->qp = new_qp(&a);
	if (!e->qp)
		return fail(errno, "ibv_create_qp");
	ok("%d %u %lu %u", i, e->qp->qp_num, (unsigned long)(uintptr_t)e->buf, e->mr->rkey);
}

static void delete_end(struct end *e)
{
	ibv_destroy_qp(e->qp);
	if (e->mw)
		ibv_dealloc_mw(e->mw);
	if (e->ah)
		ibv_destroy_ah(e->ah);
	if (e->own_srq)
		ibv_destroy_srq(e->own_srq);
	if (e->own_cq)
		ibv_destroy_cq(e->own_cq);
	if (e->region)
		ibv_dereg_mr(e->region);
	ibv_dereg_mr(e->mr);
	munmap(e->buf, e->len);
	memset(e, 0, sizeof *e);
}

/* init ID ACCESS QKEY */
static void to_init(struct end *e)
{
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = num(2),
        .qkey = num(3),
    };
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
    mask |= e->qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    done(ibv_modify_qp(e->qp, &a, mask), "INIT");
}

/* rtr ID MTU SGID_INDEX DGID QPN PSN MAX_DEST_RD MIN_RNR CLASS */
static void to_rtr(struct end *e)
{
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = num(2),
        .dest_qp_num = num(5),
        .rq_psn = num(6),
        .max_dest_rd_atomic = num(7),
        .min_rnr_timer = num(8),
    };
    struct ibv_ah_attr *ah = &a.ah_attr;
    ah->is_global = 1;
    ah->port_num = 1;
    ah->grh.sgid_index = num(3);
    ah->grh.hop_limit = 64;
    ah->grh.traffic_class = num(9);
    if (count < 5 || inet_pton(AF_INET6, words[4], &ah->grh.dgid) != 1)
        return fail(EINVAL, "DGID");
    int mask = IBV_QP_STATE;
    if (e->qp->qp_type == IBV_QPT_UD) {
        e->ah = ibv_create_ah(pd, ah);
        if (!e->ah)
            return fail(errno, "ibv_create_ah");
	} else {
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
		if (e->qp->qp_type == IBV_QPT_RC)
			mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	}
	done(ibv_modify_qp(e->qp, &a, mask), "RTR");
}

/* rts ID PSN TIMEOUT RETRY RNR_RETRY MAX_RD */
static void to_rts(struct end *e)
{
    struct ibv_qp_attr a = {
        .qp_state = IBV_QPS_RTS,
        .sq_psn = num(2),
        .timeout = num(3),
        .retry_cnt = num(4),
        .rnr_retry = num(5),
        .max_rd_atomic = num(6),
    };
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (e->qp->qp_type == IBV_QPT_RC)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    done(ibv_modify_qp(e->qp, &a, mask), "RTS");
}

static void state(struct end *e)
{
	struct ibv_qp_attr a;
	struct ibv_qp_init_attr i;
	int error = ibv_query_qp(e->qp, &a, IBV_QP_STATE, &i);
	if (error)
		return fail(error, "ibv_query_qp");
	ok("%d", a.qp_state);
}

#ifdef A19
/*
 * The requests of `send` whose OPCODE is ATOMIC WRITE, of the 8 bytes at OFFSET, or FLUSH, with A
 * as its length, B as its types and, from bit 8 on, its level.
 */
static void post_a19(struct end *e)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(e->qp);
	uint64_t n = num(2), offset = num(6), stride = num(8);
	if (!qp || n < 1 || n > BATCH || !inside(e, offset, (n - 1) * stride + 8))
		return fail(ERANGE, "send");
	ibv_wr_start(qp);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t remote = num(9) + i * num(10);
		qp->wr_id = num(3) + i;
		qp->wr_flags = num(5);
		if (num(4) == IBV_WR_ATOMIC_WRITE)
			ibv_wr_atomic_write(qp, num(11), remote, e->buf + offset + i * stride);
		else
			ibv_wr_flush(qp, num(11), remote, num(13), num(14) & 0xFF, num(14) >> 8);
	}
	done(ibv_wr_complete(qp), "ibv_wr_complete");
}
#endif

/*
 * send ID N WR_ID OPCODE FLAGS OFFSET LEN STRIDE REMOTE REMOTE_STRIDE KEY IMM A B: a chain of N
 * requests. Atomics take A (compare or add) and B (swap); UD takes REMOTE as QPN and KEY as Q_Key.
 * WR_IDs count up. FLAGS bit 16: only the last is signalled.
 */
static void post_sends(struct end *e)
{
	static struct ibv_send_wr wr[BATCH];
	static struct ibv_sge sge[BATCH];
	uint64_t n = num(2), offset = num(6), len = num(7), stride = num(8);
#ifdef A19
	if (num(4) == IBV_WR_ATOMIC_WRITE || num(4) == IBV_WR_FLUSH)
		return post_a19(e);
#endif
	if (n < 1 || n > BATCH || !inside(e, offset, (n - 1) * stride + len))
		return fail(ERANGE, "send");
	memset(wr, 0, n * sizeof *wr);
	for (uint64_t i = 0; i < n; i++) {
		sge[i] = (struct ibv_sge){ (uintptr_t)e->buf + offset + i * stride, len, e->mr->lkey };
		struct ibv_send_wr *w = &wr[i];
		w->wr_id = num(3) + i;
		w->next = i + 1 < n ? w + 1 : NULL;
		w->sg_list = &sge[i];
		w->num_sge = len > 0;
		w->opcode = num(4);
		w->send_flags = num(5) & 0xFFFF;
		if (num(5) & 0x10000 && i + 1 == n)
			w->send_flags |= IBV_SEND_SIGNALED;
		w->imm_data = num(12);
		uint64_t remote = num(9) + i * num(10);
		if (e->qp->qp_type == IBV_QPT_UD) {
			w->wr.ud.ah = e->ah;
			w->wr.ud.remote_qpn = remote;
			w->wr.ud.remote_qkey = num(11);
		} else if (w->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || w->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			w->wr.atomic.remote_addr = remote;
			w->wr.atomic.rkey = num(11);
			w->wr.atomic.compare_add = num(13);
			w->wr.atomic.swap = num(14);
		} else {
			w->wr.rdma.remote_addr = remote;
			w->wr.rdma.rkey = num(11);
		}
	}
	struct ibv_send_wr *bad;
	done(ibv_post_send(e->qp, wr, &bad), "ibv_post_send");
}

/* recv ID N WR_ID OFFSET LEN STRIDE */
static void post_recvs(struct end *e)
{
	uint64_t n = num(2), offset = num(4), len = num(5), stride = num(6);
	if (n < 1 || !inside(e, offset, (n - 1) * stride + len))
		return fail(ERANGE, "recv");
	for (uint64_t i = 0; i < n; i++) {
		struct ibv_sge sge = { (uintptr_t)e->buf + offset + i * stride, len, e->mr->lkey };
		struct ibv_recv_wr wr = { .wr_id = num(3) + i, .sg_list = &sge, .num_sge = len > 0 }, *bad;
		int error = e->srq ? ibv_post_srq_recv(e->srq, &wr, &bad) : ibv_post_recv(e->qp, &wr, &bad);
		if (error)
			return fail(error, "ibv_post_recv");
	}
	ok("");
}

/* badrecv ID WR_ID: a receive with an invalid local key. */
static void post_bad_recv(struct end *e)
{
	struct ibv_sge sge = { (uintptr_t)e->buf, 4096, 0xBAD000 };
	struct ibv_recv_wr wr = { .wr_id = num(2), .sg_list = &sge, .num_sge = 1 }, *bad;
	done(ibv_post_recv(e->qp, &wr, &bad), "ibv_post_recv");
}

/* poll ID MILLISECONDS: answers "0", or "1" and the completion. */
static void poll_one(struct end *e)
{
	struct ibv_wc wc;
	double end = now_ms() + num(2);
	int n;
	while (!(n = ibv_poll_cq(e->cq, 1, &wc)) && now_ms() < end)
		;
	if (n < 0)
		return fail(EIO, "ibv_poll_cq");
	if (!n)
		return ok("0");
        ok("1 %lu %u %u %u %u %u %u %u", (unsigned long)wc.wr_id, wc.status,
           wc.status ? 0 : wc.opcode, wc.byte_len, wc.imm_data, wc.qp_num, wc.src_qp, wc.wc_flags);
}

/*
 * drain ID N MILLISECONDS: answers the number of completions, the number that failed, the first
 * failure's status, whether WR_IDs only grew, and the sum of the lengths.
 */
static void drain(struct end *e)
{
	struct ibv_wc wc[64];
	double end = now_ms() + num(3);
	uint64_t got = 0, bad = 0, first = 0, last = 0, bytes = 0;
	int ordered = 1;
	while (got < num(2) && now_ms() < end) {
		int n = ibv_poll_cq(e->cq, num(2) - got < 64 ? num(2) - got : 64, wc);
		if (n < 0)
			return fail(EIO, "ibv_poll_cq");
		for (int i = 0; i < n; i++) {
			if (wc[i].status && !bad++)
				first = wc[i].status;
			if (got++ && wc[i].wr_id <= last)
				ordered = 0;
			last = wc[i].wr_id;
			bytes += wc[i].byte_len;
		}
	}
	ok("%lu %lu %lu %d %lu", got, bad, first, ordered, bytes);
}

/* mw ID OFFSET LEN ACCESS: binds a type 2 window with the QP; answers its rkey. */
static void bind_window(struct end *e)
{
	if (!e->mw && !(e->mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2)))
		return fail(errno, "ibv_alloc_mw");
        struct ibv_send_wr wr = { .wr_id = 99,
                                  .opcode = IBV_WR_BIND_MW,
                                  .send_flags = IBV_SEND_SIGNALED },
                           *bad;
        wr.bind_mw.mw = e->mw;
	wr.bind_mw.rkey = ibv_inc_rkey(e->mw->rkey);
	wr.bind_mw.bind_info =
		(struct ibv_mw_bind_info){ e->mr, (uintptr_t)e->buf + num(2), num(3), num(4) };
	int error = ibv_post_send(e->qp, &wr, &bad);
	if (error)
		return fail(error, "BIND_MW");
	struct ibv_wc wc;
	double end = now_ms() + 2000;
	int n;
	while (!(n = ibv_poll_cq(e->cq, 1, &wc)) && now_ms() < end)
		;
	if (n != 1 || wc.status)
		return fail(n ? wc.status : ETIME, "bind");
	e->mw->rkey = wr.bind_mw.rkey;
	ok("%u", wr.bind_mw.rkey);
}

/* region ID ACCESS: the buffer registered once more; answers its rkey. */
static void region(struct end *e)
{
	if (!e->region)
		e->region = ibv_reg_mr(pd, e->buf, e->len, num(2));
	if (!e->region)
		return fail(errno, "ibv_reg_mr");
	ok("%u", e->region->rkey);
}

/* word ID OFFSET [VALUE]: answers the 8 bytes there, after a value was written, if one is given. */
static void word(struct end *e)
{
	if (!inside(e, num(2), 8))
		return fail(ERANGE, "word");
	uint64_t value = num(3);
	if (count > 3)
		memcpy(e->buf + num(2), &value, 8);
	memcpy(&value, e->buf + num(2), 8);
	ok("%lu", (unsigned long)value);
}

/* gids: every GID of the port, "INDEX GID" pairs. */
static void gids(void)
{
	char line[4096] = "", text[64];
	for (int i = 0; i < 16; i++) {
		union ibv_gid gid;
		if (ibv_query_gid(ctx, 1, i, &gid) || (!gid.global.subnet_prefix && !gid.global.interface_id))
			continue;
		inet_ntop(AF_INET6, &gid, text, sizeof text);
		snprintf(line + strlen(line), sizeof line - strlen(line), " %d %s", i, text);
	}
	ok("%s", line);
}

static void request(void)
{
	const char *w = words[0];
	if (!strcmp(w, "new"))
		return new_end();
	if (!strcmp(w, "gids"))
		return gids();
	struct end *e = the_end();
	if (!e)
		return fail(ENOENT, w);
        int is_fill = !strcmp(w, "fill"), is_check = !strcmp(w, "check"),
            is_set = !strcmp(w, "set"), is_all = !strcmp(w, "all");
        if (is_fill || is_check || is_set ||
            is_all) { /* ID OFFSET LEN SEED, or BYTE for set and all */
            if (!inside(e, num(2), num(3)))
                return fail(ERANGE, w);
            uint8_t *at = e->buf + num(2);
            if (is_fill || is_check)
                return ok("%ld", (long)pattern(at, num(3), num(4), is_fill));
            if (is_set)
                memset(at, num(4), num(3));
            for (uint64_t i = 0; i < num(3); i++)
                if (at[i] != (uint8_t)num(4))
                    return ok("%lu", (unsigned long)i);
            return ok("-1");
        }
        if (!strcmp(w, "init"))
		return to_init(e);
	if (!strcmp(w, "rtr"))
		return to_rtr(e);
	if (!strcmp(w, "rts"))
		return to_rts(e);
	if (!strcmp(w, "send"))
		return post_sends(e);
	if (!strcmp(w, "recv"))
		return post_recvs(e);
	if (!strcmp(w, "badrecv"))
		return post_bad_recv(e);
	if (!strcmp(w, "poll"))
		return poll_one(e);
	if (!strcmp(w, "drain"))
		return drain(e);
	if (!strcmp(w, "word"))
		return word(e);
	if (!strcmp(w, "mw"))
		return bind_window(e);
	if (!strcmp(w, "region"))
		return region(e);
	if (!strcmp(w, "allow")) { /* ID ACCESS, on a QP in any state but RESET */
		struct ibv_qp_attr a = { .qp_access_flags = num(2) };
		return done(ibv_modify_qp(e->qp, &a, IBV_QP_ACCESS_FLAGS), w);
	}
	if (!strcmp(w, "state"))
		return state(e);
	if (!strcmp(w, "counter")) { /* ID NAME, of the device */
		char path[200], text[32] = "";
                snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/hw_counters/%s",
                         ibv_get_device_name(ctx->device), words[2]);
                FILE *f = count > 2 ? fopen(path, "r") : NULL;
		int missing = !f || !fgets(text, sizeof text, f);
		if (f)
			fclose(f);
		return missing ? fail(ENOENT, w) : ok("%lld", atoll(text));
	}
	if (!strcmp(w, "modify")) { /* ID STATE, to ERR or RESET */
		struct ibv_qp_attr a = { .qp_state = num(2) };
		return done(ibv_modify_qp(e->qp, &a, IBV_QP_STATE), w);
	}
	if (!strcmp(w, "del")) {
		delete_end(e);
		return ok("");
	}
	fail(ENOSYS, w);
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return fprintf(stderr, "usage: peer DEVICE PORT\n"), 2;
	signal(SIGPIPE, SIG_IGN);
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	for (int i = 0; list && i < n; i++)
		if (!strcmp(ibv_get_device_name(list[i]), argv[1]))
			ctx = ibv_open_device(list[i]);
	pd = ctx ? ibv_alloc_pd(ctx) : NULL;
	if (!pd)
		return fprintf(stderr, "peer: no device %s\n", argv[1]), 1;
	int s = socket(AF_INET6, SOCK_STREAM, 0), one = 1, zero = 0;
	struct sockaddr_in6 at = { .sin6_family = AF_INET6, .sin6_port = htons(atoi(argv[2])) };
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	setsockopt(s, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
	if (bind(s, (struct sockaddr *)&at, sizeof at) || listen(s, 1))
		return perror("peer"), 1;
	int c = accept(s, NULL, NULL);
	if (c < 0)
		return perror("peer"), 1;
	setsockopt(c, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	io = fdopen(c, "r+");
	FILE *in = fdopen(dup(c), "r");
	char line[512];
	while (in && io && fgets(line, sizeof line, in)) {
		count = 0;
		for (char *w = strtok(line, " \n"); w && count < 32; w = strtok(NULL, " \n"))
			words[count++] = w;
		if (count)
			request();
		fflush(io);
	}
	return 0;
}

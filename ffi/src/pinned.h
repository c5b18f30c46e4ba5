#ifndef GDRCORE_H_PINNED
#define GDRCORE_H_PINNED

/* Posts and polls through a pin, which look nothing up. `pin` is what gdrc_qp_pin or gdrc_cq_pin wrote, and followed unseen:
 * NULL is the program's mistake. One that was given back, and a struct of zeros, get -EINVAL; in a child of a fork its parent's get
 * -EOWNERDEAD. All else is as in gdrc_post_send, gdrc_post_recv and gdrc_poll_cq, with the same results and errors.
 * Threads: on a NIC any number at once, as its provider locks; on other devices one at a time, others get -EBUSY.
 * Cost: on a NIC a post and a poll take 27 instructions more than libibverbs itself (docs/records/PERFORMANCE.md). */

/* One request whose opcode and pieces no device asks questions about, without inline data, is passed on as it is. The bits that tell
 * it are 0 where nothing may be, and have one in common with any address but NULL, or the long way is taken, which asks all. */
static inline int gdrc_pinned_post_send(const struct gdrc_pinned_qp *pin, const gdrc_send_wr *wr, const gdrc_send_wr **bad)
{
    const uint64_t unusual = pin->unusual;

    if (wr && bad && !wr->next && !(wr->send_flags & GDRC_SEND_INLINE) && ((uintptr_t)wr->sg_list & unusual) &&
        !(((uint64_t)wr->opcode << 32 | (uint32_t)wr->num_sge) & unusual)) {
        const gdrc_send_wr *first = wr;
        int rc = pin->post_send(pin->object, wr, &first);

        if (__builtin_expect(rc != 0, 0)) {
            *bad = first;
            return gdrc_pinned_refused(rc);
        }
        return 0;
    }
    return gdrc_pinned_send_rest(pin, wr, bad);
}

static inline int gdrc_pinned_post_recv(const struct gdrc_pinned_qp *pin, const gdrc_recv_wr *wr, const gdrc_recv_wr **bad)
{
    const uint64_t unusual = pin->recv_unusual;

    if (wr && bad && !wr->next && ((uintptr_t)wr->sg_list & unusual) && !((uint32_t)wr->num_sge & unusual)) {
        const gdrc_recv_wr *first = wr;
        int rc = pin->post_recv(pin->object, wr, &first);

        if (__builtin_expect(rc != 0, 0)) {
            *bad = first;
            return gdrc_pinned_refused(rc);
        }
        return 0;
    }
    return gdrc_pinned_recv_rest(pin, wr, bad);
}

/* One completion of an operation that succeeded is as the device wrote it. */
static inline int gdrc_pinned_poll_cq(const struct gdrc_pinned_cq *pin, int num_entries, gdrc_wc *wc)
{
    if (wc && (uint64_t)(int64_t)num_entries - 1 < pin->polls) {
        int n = pin->poll_cq(pin->object, num_entries, wc);

        if (__builtin_expect(n == 1 && wc->status == GDRC_WC_SUCCESS, 1))
            return n;
        return gdrc_pinned_polled(pin, n, wc);
    }
    return gdrc_pinned_poll_rest(pin, num_entries, wc);
}

#endif /* GDRCORE_H_PINNED */

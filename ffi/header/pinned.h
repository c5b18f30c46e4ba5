
/*
 * Posts and polls through a pin, without a look-up. `pin` comes from gdrc_qp_pin or gdrc_cq_pin; it
 * must not be NULL.
 * Errors: -EINVAL: the pin was given back, or is a struct of zeros; -EOWNERDEAD: a parent process
 * made it; otherwise as gdrc_post_send, gdrc_post_recv and gdrc_poll_cq. Threads: on a NIC any
 * number at once, as its provider locks; on other devices one at a time, others get -EBUSY.
 * Cost: on a NIC a post and a poll take 27 instructions more than libibverbs itself
 * (docs/records/PERFORMANCE.md).
 */

/*
 * Fast path: one request that is not inline. `unusual` masks the bits of opcode and num_sge that
 * the device must check itself; 0 (a stale pin, or one of a parent process) fails the test of
 * sg_list. Every other request goes to gdrc_pinned_send_rest.
 */
static inline int gdrc_pinned_post_send(const struct gdrc_pinned_qp *pin, const gdrc_send_wr *wr,
                                        const gdrc_send_wr **bad)
{
    const uint64_t unusual = pin->unusual;

    if (wr && bad && !wr->next && !(wr->send_flags & GDRC_SEND_INLINE) &&
        ((uintptr_t)wr->sg_list & unusual) &&
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

static inline int gdrc_pinned_post_recv(const struct gdrc_pinned_qp *pin, const gdrc_recv_wr *wr,
                                        const gdrc_recv_wr **bad)
{
    const uint64_t unusual = pin->recv_unusual;

    if (wr && bad && !wr->next && ((uintptr_t)wr->sg_list & unusual) &&
        !((uint32_t)wr->num_sge & unusual)) {
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

/* Fast path: one completion with status success needs no further look. */
static inline int gdrc_pinned_poll_cq(const struct gdrc_pinned_cq *pin, int num_entries,
                                      gdrc_wc *wc)
{
    if (wc && (uint64_t)(int64_t)num_entries - 1 < pin->polls) {
        int n = pin->poll_cq(pin->object, num_entries, wc);

        if (__builtin_expect(n == 1 && wc->status == GDRC_WC_SUCCESS, 1))
            return n;
        return gdrc_pinned_polled(pin, n, wc);
    }
    return gdrc_pinned_poll_rest(pin, num_entries, wc);
}


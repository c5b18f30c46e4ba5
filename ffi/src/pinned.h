#ifndef GDRCORE_H_PINNED
#define GDRCORE_H_PINNED

/* Posts and polls through a pin, which look nothing up: `pin` is what gdrc_qp_pin or gdrc_cq_pin wrote, which is not checked
 * (NULL is followed); one that was given back gets -EINVAL, in a child of a fork -EOWNERDEAD. Results, errors and the rest are those of
 * gdrc_post_send, gdrc_post_recv and gdrc_poll_cq.
 * Threads: on a NIC any number at a time, as its provider locks; on the soft device one at a time, others get -EBUSY.
 * Cost: on a NIC some 13 instructions more than libibverbs itself (docs/PERFORMANCE.md). */

/* One request that has pieces, and neither inline data nor objects of the library in it, goes to the device as it is. */
static inline int gdrc_pinned_post_send(const struct gdrc_pinned_qp *pin, const gdrc_send_wr *wr, const gdrc_send_wr **bad)
{
    if (wr && bad && !wr->next && !(wr->send_flags & GDRC_SEND_INLINE) &&
        !(((uint64_t)wr->opcode << 32 | (uint32_t)wr->num_sge) & pin->unusual) && (uintptr_t)wr->sg_list - 1 < pin->sends) {
        int rc = pin->post_send(pin->object, wr, bad);
        if (rc == 0)
            return 0;
        *bad = wr;
        return gdrc_pinned_refused(pin, rc);
    }
    return gdrc_pinned_send_rest(pin, wr, bad);
}

static inline int gdrc_pinned_post_recv(const struct gdrc_pinned_qp *pin, const gdrc_recv_wr *wr, const gdrc_recv_wr **bad)
{
    if (wr && bad && !wr->next && !((uint32_t)wr->num_sge & pin->recv_unusual) && (uintptr_t)wr->sg_list - 1 < pin->recvs) {
        int rc = pin->post_recv(pin->object, wr, bad);
        if (rc == 0)
            return 0;
        *bad = wr;
        return gdrc_pinned_refused(pin, rc);
    }
    return gdrc_pinned_recv_rest(pin, wr, bad);
}

/* One completion of an operation that succeeded is what the device wrote. */
static inline int gdrc_pinned_poll_cq(const struct gdrc_pinned_cq *pin, int num_entries, gdrc_wc *wc)
{
    if (wc && (uint64_t)(int64_t)num_entries - 1 < pin->polls) {
        int n = pin->poll_cq(pin->object, num_entries, wc);
        return n == 1 && wc->status == GDRC_WC_SUCCESS ? n : gdrc_pinned_polled(pin, n, wc);
    }
    return gdrc_pinned_poll_rest(pin, num_entries, wc);
}

#endif /* GDRCORE_H_PINNED */

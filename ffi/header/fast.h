
/**
 * Posts by a fast handle, without a look-up. All pointers are dereferenced unchecked, as libibverbs
 * does: none may be NULL.
 *
 * Errors: as gdrc_post_send; -EINVAL: the handle was released; -EOWNERDEAD: a parent process made
 * it. Threads: on a NIC any number at once, as its provider locks; on other devices one at a time,
 * others get -EBUSY. Cost: on a NIC little more than libibverbs itself
 * (docs/records/PERFORMANCE.md).
 */
static inline int gdrc_qp_fast_post_send(struct gdrc_qp_fast *qp, const gdrc_send_wr *wr,
                                         const gdrc_send_wr **bad)
{
    return qp->ops->post_send(qp, wr, bad);
}

/**
 * Posts receive requests by a fast handle; otherwise as gdrc_qp_fast_post_send.
 *
 * Errors: as gdrc_post_recv. Threads: as gdrc_qp_fast_post_send.
 */
static inline int gdrc_qp_fast_post_recv(struct gdrc_qp_fast *qp, const gdrc_recv_wr *wr,
                                         const gdrc_recv_wr **bad)
{
    return qp->ops->post_recv(qp, wr, bad);
}

/**
 * Polls by a fast handle, with room for `num_entries` (1 or more) completions at `wc`; otherwise as
 * gdrc_qp_fast_post_send.
 *
 * Errors: as gdrc_poll_cq. Threads: as gdrc_qp_fast_post_send.
 */
static inline int gdrc_cq_fast_poll(struct gdrc_cq_fast *cq, int num_entries, gdrc_wc *wc)
{
    return cq->ops->poll(cq, num_entries, wc);
}


// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * What ibv_rc_pingpong, ibv_uc_pingpong and ibv_ud_pingpong of rdma-core say to each other over
 * TCP: "LID:QPN:PSN:GID" in hexadecimal, the client first, then the client's "done". So one of them
 * can be the other side of ours.
 */
#ifndef IBV_PEER_H
#define IBV_PEER_H

#include "../common/gx.h"

/* Q_Key of ibv_ud_pingpong, and the path MTU that the others take without -m. */
#define IBV_PEER_QKEY 0x11111111u
#define IBV_PEER_MTU 1024u

/* Tells the other side of our queue pair. Complains on error, as the next two. */
int ibv_peer_tell(struct gx_conn *conn, const struct gdrc_endpoint *local);
/* Hears of its; what it does not say is as `local` has it. */
int ibv_peer_hear(struct gx_conn *conn, const struct gdrc_endpoint *local,
                  struct gdrc_endpoint *remote);
/* The client's last word: says it, or waits for it. */
int ibv_peer_done(struct gx_conn *conn, bool say);

#endif

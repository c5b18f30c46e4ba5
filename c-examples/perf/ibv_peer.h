// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The TCP exchange of rdma-core's ibv_rc_pingpong, ibv_uc_pingpong and ibv_ud_pingpong:
 * "LID:QPN:PSN:GID" in hexadecimal, the client first, then the client's "done". With it one of them
 * can be the other side of ours.
 */
#ifndef IBV_PEER_H
#define IBV_PEER_H

#include "../common/gx.h"

/* Q_Key of ibv_ud_pingpong, and the default path MTU of the others. */
#define IBV_PEER_QKEY 0x11111111u
#define IBV_PEER_MTU 1024u

/* Sends our queue pair's attributes. Prints errors, as the next two. */
int ibv_peer_send(struct gx_conn *conn, const struct gdrc_endpoint *local);
/* Receives the other side's; attributes that it does not send are taken from `local`. */
int ibv_peer_receive(struct gx_conn *conn, const struct gdrc_endpoint *local,
                  struct gdrc_endpoint *remote);
/* The client's last message: sends it, or waits for it. */
int ibv_peer_done(struct gx_conn *conn, bool say);

#endif

/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * gdrcore: RDMA over RoCEv2, with a NIC or without one. Link with -lgdrcore (pkg-config gdrcore).
 *
 * Generated from ffi/src (`make header`): do not edit. docs/using/ABI.md has what all calls share:
 *
 * - Calls return 0 or a count on success, a negative errno on failure; outputs are written on
 *   success only. gdrc_error_detail says why the last call of this thread failed, in words.
 * - Structs that begin with struct_size: set every field to 0, then struct_size to sizeof. 0 means
 *   the default.
 * - Fields that hold a value or flags of an enumeration are uint32_t: their size is the ABI's.
 * - Handles are passed by value; that of a destroyed object is refused with -EINVAL.
 * - A context pointer may be used by any thread. One thread at a time per side of a QP, per CQ, per
 *   SRQ: others get -EBUSY.
 * - After fork the child gets -EOWNERDEAD on its parent's contexts, and may open its own.
 */

#ifndef GDRCORE_H
#define GDRCORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__linux__) && defined(__LP64__)
#else
#error "gdrcore is for 64-bit Linux"
#endif

#ifdef __cplusplus
extern "C" {
#endif

@GROUPS@
#ifdef __cplusplus
}
#endif

#endif /* GDRCORE_H */

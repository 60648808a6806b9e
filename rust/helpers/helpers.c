// SPDX-License-Identifier: GPL-2.0
/*
 * Functions which Rust calls in place of inline functions and macros, and a few steps that need
 * bit fields, macros or locks which have no Rust form. One file per area, sorted alphabetically.
 */

#include <linux/compiler_types.h>

#ifdef __BINDGEN__
/* Omit `inline` for bindgen as it ignores inline functions. */
#define __rust_helper
#else
#define __rust_helper __used
#endif

#include "helpers.h"

#include "bug.c"
#ifdef __BINDGEN__
/* An object of its own. */
#include "diag.c"
#endif
#include "ib.c"
#include "memory.c"
#include "netlink.c"
#include "netns.c"
#include "percpu.c"
#include "route.c"
#include "sock.c"
#include "tcp.c"
#include "trace.c"
#include "uts.c"
#include "workqueue.c"

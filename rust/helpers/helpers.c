// SPDX-License-Identifier: GPL-2.0
/*
 * Functions which Rust calls in place of inline functions and macros, and a few steps that need
 * bit fields, macros or locks which have no Rust form. One file per area, sorted alphabetically.
 */

#include <linux/compiler.h>
#include <linux/types.h>

#ifdef __BINDGEN__
/* Omit `inline` for bindgen as it ignores inline functions. */
#define __rust_helper
#else
#define __rust_helper __used
#endif

#include "helpers.h"

/*
 * Copies a text up to its end, `most` bytes at most, and gives back how many; no zero behind them. It may change meanwhile:
 * then it is a mixture. By hand: of strscpy() and memcpy() a compiler does not see that what they check before they panic
 * always holds.
 */
static inline size_t kapi_copy_text(char *to, const char *from, size_t most)
{
	size_t n;

	for (n = 0; n < most; n++) {
		char here = data_race(READ_ONCE(from[n]));

		if (!here)
			break;
		to[n] = here;
	}
	return n;
}

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

// SPDX-License-Identifier: GPL-2.0
/*
 * Functions that can panic, in the ways that C has: who looks for panics in compiled modules has to find one in each of these,
 * or finding none elsewhere says nothing (tools/env/objects; smc_r/proto/can_panic.rs has those of Rust). `warn` must not be
 * found. Nobody loads this.
 */

#include <linux/bug.h>
#include <linux/compiler.h>
#include <linux/module.h>
#include <linux/panic.h>
#include <linux/string.h>

static noinline __used void too_much(const void *from, size_t len)
{
	char to[16];

	memcpy(to, from, len);
	barrier_data(to);
}

static noinline __used void end(int code)
{
	panic("%d", code);
}

static noinline __used void bug(void)
{
	BUG();
}

static noinline __used void bug_on(int wrong)
{
	BUG_ON(wrong);
}

static noinline __used void trap(int wrong)
{
	if (wrong)
		__builtin_trap();
}

static noinline __used void warn(int wrong)
{
	WARN_ON(wrong);
}

MODULE_DESCRIPTION("Has functions that can panic, for a test of what looks for them");
MODULE_LICENSE("GPL");

// SPDX-License-Identifier: GPL-2.0

#include <linux/completion.h>
#include <linux/jiffies.h>

__rust_helper bool rust_helper_completion_wait(struct completion *done, unsigned int ms)
{
	return wait_for_completion_timeout(done, msecs_to_jiffies(ms));
}

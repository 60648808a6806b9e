// SPDX-License-Identifier: GPL-2.0

#include <linux/bug.h>

__rust_helper void rust_helper_warn_misuse(void)
{
	WARN_ON_ONCE(1);
}

// SPDX-License-Identifier: GPL-2.0

#include <linux/minmax.h>
#include <linux/utsname.h>

/*
 * Copies at most `len` bytes, without a terminating zero; returns how many. A change at the same
 * time may give a mixture of both names: its lock is not for modules.
 */
__rust_helper size_t rust_helper_host_name(char *buf, size_t len)
{
	return kapi_copy_text(buf, utsname()->nodename, min(len, __NEW_UTS_LEN));
}

// SPDX-License-Identifier: GPL-2.0
/* What smc_diag.ko borrows of smc_r.ko while it lists sockets; defined in Rust. */

#include <linux/export.h>

extern int kapi_lent_43;
EXPORT_SYMBOL_GPL(kapi_lent_43);

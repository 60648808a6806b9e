// SPDX-License-Identifier: GPL-2.0
/* No symbol of smc_r is linked to; modprobe is told here what belongs together. */

#include <linux/module.h>

MODULE_SOFTDEP("pre: smc_r");

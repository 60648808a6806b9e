// SPDX-License-Identifier: GPL-2.0
/* The Rust symbols which smc_diag.ko takes from smc_r.ko; the list is generated, see Kbuild. */

#include <linux/export.h>

#define EXPORT_SYMBOL_RUST_GPL(sym) extern int sym; EXPORT_SYMBOL_GPL(sym)

#include "exports_generated.h"

#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# For a host whose SMC is that of its own kernel, Linux 6.12.
# shellcheck shell=bash disable=SC2317 # functions are called by what sources this

# Instead of the module of this checkout.
load_module() { modprobe -a rdma_rxe smc smc_diag; }
# Its last socket may take a moment to end.
unload_module() {
	until_true 20 is_unloaded || {
		sed 's/^/# /' "$TMP/unloading"
		return 1
	}
}
is_unloaded() {
	[ ! -d /sys/module/smc ] || timeout 60 modprobe -r smc_diag smc 2>"$TMP/unloading"
}

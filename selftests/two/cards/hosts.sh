# SPDX-License-Identifier: GPL-2.0
# What both hosts do, each for itself.
# shellcheck shell=bash disable=SC2086,SC2317 # words are simple; in_host calls the functions

# joins CARDS VERSION: a device on so many cards, which are ports of one network, and a link on each.
joins() {
	local n
	for n in 0 1 2 3; do [ ! -e /sys/class/infiniband/rxe$n ] || unplug $n; done
	# With nothing of the case before.
	unload_module
	load_module
	smc_pnet -f
	for n in $(seq 0 $(($1 - 1))); do
		ip link set eth$n up
		until_true 20 grep -qx 1 /sys/class/net/eth$n/carrier
		plug $n
		smc_pnet -a CARDS -I eth$n
	done
	smcctl ueid add SMC-RS-CARDS 2>/dev/null || true
	sysctl -q net.smc.smcr_max_links_per_lgr=$1 net.smc.smcr_versions=$2 net.smc.smcr_testlink_time=2
}
parts() {
	local n
	for n in 1 2 3; do [ ! -e /sys/class/infiniband/rxe$n ] || unplug $n; done
}

active_links() { smcctl --json links | grep -c '"state": *"active"' || true; }

# faults: of connections, links and groups that were lost.
faults() {
	smcctl --json faults | tr -d '",:' |
		awk '$1 ~ /^(connections_aborted|links_broken|groups_lost)$/ { sum += $2; n++ } END { if (n == 3) print sum }'
}

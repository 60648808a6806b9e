# SPDX-License-Identifier: GPL-2.0
# For tests that run other programs' own test suites, which talk over the loopback device: the pnet table gives
# it an rxe device. Sourced after lib.sh.
# shellcheck shell=bash

loopback_cleanup() {
	local code=$?
	trap - EXIT
	reap
	# What these started, in process groups of their own, still holds the module.
	! killall -q -KILL tclsh redis-server || sleep 1
	smcctl pnet flush
	rdma link del rxedu
	ip link del du0
	unload_module || { echo "# failed: the module could not be unloaded" && code=1; }
	rm -rf "$TMP"
	exit "$code"
}

setup_loopback() {
	trap loopback_cleanup EXIT
	load_module || bail "the module does not load"
	ip link set lo up
	ip link add du0 type dummy && ip addr add 10.71.9.1/24 dev du0 && ip link set du0 up || bail "no card"
	rdma link add rxedu type rxe netdev du0 || bail "no rxe device"
	until_true 10 rxe_active rxedu || bail "rxedu is not active"
	smcctl pnet add LOOP --interface lo && smcctl pnet add LOOP --device rxedu || bail "no pnet entries"
}

# Connections that use SMC; each is counted once, by its client.
connections() {
	smcctl --json stats | awk '{ gsub(/[",:]/, "") } $1 == "client_v1" || $1 == "client_v2" { sum += $2 } END { print sum + 0 }'
}

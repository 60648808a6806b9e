#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# For tests with two guests: one host is this guest, with an rxe device on eth0.
# shellcheck disable=SC2034,SC2317 # variables and functions are for the tests

CLIENTS=${SMC_DEMO_CLIENTS:-10}
REQUESTS=${SMC_DEMO_REQUESTS:-$((1000 * SCALE))}
SECONDS_IPERF=${SMC_DEMO_SECONDS:-$((8 * SCALE))}
# The namespaces of lib.sh are not used here.
A=none B=none

# The namespace of this guest under a name, for what lib.sh does with `ip netns exec`.
name_namespace() {
	mkdir -p /run/netns
	touch /run/netns/self
	mount --bind /proc/1/ns/net /run/netns/self
}
here() { counter self "$1"; }
listening() { ss -tlnH "sport = :$1" | grep -q .; }
capture_start_here() {
	local name=$1
	shift
	capture_start self eth0 "$name" "$@"
}

setup_host() {
	trap cleanup_host EXIT
	trap 'exit 130' INT TERM
	name_namespace || bail "no name for the namespace"
	load_module || bail "the module does not load"
	rdma link add rxe0 type rxe netdev eth0 || bail "no rxe device"
	until_true 10 rxe_active rxe0 || bail "the rxe device is not active"
	vm-sync barrier devices
}

cleanup_host() {
	reap
	vm-sync barrier end 100
	umount /run/netns/self 2>/dev/null
	rm -f /run/netns/self
	rdma link del rxe0
	unload_module || echo "# the module could not be unloaded"
	rm -rf "$TMP"
}

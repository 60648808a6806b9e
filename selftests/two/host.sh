#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# For tests with two guests: one host is this guest, with an rxe device on $CARD (eth0). Either both guests have
# a script of their own, which meet at barriers, or guest a runs the test (led.sh, after this file).
# shellcheck disable=SC2034,SC2317 # variables and functions are for the tests

CLIENTS=${SMC_DEMO_CLIENTS:-10}
REQUESTS=${SMC_DEMO_REQUESTS:-$((1000 * SCALE))}
SECONDS_IPERF=${SMC_DEMO_SECONDS:-$((8 * SCALE))}
CARD=${CARD:-eth0}
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
	capture_start self "$CARD" "$name" "$@"
}

add_device() {
	rdma link add rxe0 type rxe netdev "$CARD"
	until_true 10 rxe_active rxe0
}

# plug NUMBER, unplug NUMBER: the device on that card of this host.
plug() {
	rdma link add rxe$1 type rxe netdev eth$1
	until_true 20 rxe_active rxe$1
}
unplug() { rdma link del rxe$1; }

# cable HOST on|off [CARD]: of eth0, or another card.
cable() {
	local card=${3:-0} carrier=1
	[ $2 = on ] || carrier=0
	echo "@vm cable $1 $card $2"
	until_true 20 in_host $1 grep -qx $carrier /sys/class/net/eth$card/carrier || fail "the carrier is not $2"
}

# After `ip link set eth0 down`, which takes the IPv6 address away.
card_up() {
	local address=$A6
	[ "$VM_ROLE" = a ] || address=$B6
	ip link set eth0 up
	ip addr add "$address/64" dev eth0 nodad 2>/dev/null
	until_true 10 rxe_active rxe0
}

# Whatever an earlier case left.
restored() {
	until_true 20 grep -qx 1 /sys/class/net/eth0/carrier
	load_module
	[ -e /sys/class/infiniband/rxe0 ] || add_device
	rxe_active rxe0 || card_up
	sysctl -q net.smc.smcr_testlink_time="${TESTLINK:-30}"
}

setup_host() {
	trap cleanup_host EXIT
	trap 'exit 130' INT TERM
	name_namespace || bail "no name for the namespace"
	load_module || bail "the module does not load"
	add_device || bail "no active rxe device"
	vm-sync barrier devices
}

cleanup_host() {
	reap
	vm-sync barrier end 100
	umount /run/netns/self 2>/dev/null
	rm -f /run/netns/self
	[ ! -e /sys/class/infiniband/rxe0 ] || rdma link del rxe0
	unload_module || echo "# the module could not be unloaded"
	rm -rf "$TMP"
}

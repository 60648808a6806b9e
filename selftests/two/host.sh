#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# For tests with two guests: one host is this guest, with an rxe device on eth0. Either both guests have
# a script of their own, which meet at barriers, or guest a runs the test and guest b `serve`s: it does
# what `in_host` of guest a asks for, so that what lib.sh offers for two hosts works here too.
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

add_device() {
	rdma link add rxe0 type rxe netdev eth0
	until_true 10 rxe_active rxe0
}

# cable HOST on|off: of eth0.
cable() {
	local carrier=1
	[ $2 = on ] || carrier=0
	echo "@vm cable $1 0 $2"
	until_true 20 in_host $1 grep -qx $carrier /sys/class/net/eth0/carrier || fail "the carrier is not $2"
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

## Guest a leads

# Programs of a case run in this control group, so that none outlives it.
CASE=/sys/fs/cgroup/case
# Where commands go to guest b, and their output comes from.
REMOTE=$VM_SHARED/${VM_TEST:-run}/remote

# For both guests, before anything else. $A is guest a, $B guest b; files are those of both.
led_by_a() {
	A=a B=b
	rm -rf "$TMP"
	TMP=$VM_SHARED/$VM_TEST/tmp
	mkdir -p "$TMP" "$REMOTE" "$CASE"
	case $VM_ROLE in
	a) A4=$VM_LOCAL A6=$VM_LOCAL6 B4=$VM_PEER B6=$VM_PEER6 ;;
	*) A4=$VM_PEER A6=$VM_PEER6 B4=$VM_LOCAL B6=$VM_LOCAL6 ;;
	esac
}

in_host() {
	local host=$1
	shift
	if [ "$host" = "$VM_ROLE" ]; then
		(echo $BASHPID >$CASE/cgroup.procs && "$@")
	else
		remote "$@"
	fi
}

show_state() {
	local host f
	for host in $A $B; do
		in_host $host ss -tanH 2>/dev/null | head -n 12 | sed "s/^/# $host: /"
		in_host $host timeout 10 smcctl stats 2>&1 | head -n 40 | sed "s/^/# $host: /"
		in_host $host timeout 10 smcctl groups 2>&1 | head -n 10 | sed "s/^/# $host: /"
		in_host $host timeout 5 rdma resource 2>&1 | sed "s/^/# $host: /"
		in_host $host dmesg | grep -v 9p | tail -n 8 | sed "s/^/# $host: /"
	done
	for f in "$TMP"/*.err "$TMP"/*.out "$TMP"/*.json; do
		[ -s "$f" ] || continue
		head -c 1500 "$f" | sed "s|^|# ${f##*/}: |"
		echo
	done
}

# remote COMMAND...: on guest b, with its output and exit code here.
remote() {
	local job end=$((SECONDS + 150))
	job=$(mktemp -u "$REMOTE/XXXXXXXX")
	printf '%q ' "$@" >"$job.new"
	mv "$job.new" "$job.command"
	until [ -e "$job.code" ]; do
		if [ $SECONDS -ge $end ]; then
			echo "guest b does not answer: $*" >&2
			return 125
		fi
		sleep 0.1
	done
	cat "$job.out"
	cat "$job.err" >&2
	return "$(cat "$job.code")"
}

end_programs() {
	echo 1 >$CASE/cgroup.kill
	until_true 10 grep -qx 'populated 0' $CASE/cgroup.events
}

reap() {
	local pids
	pids=$(jobs -p)
	# shellcheck disable=SC2086 # a list
	[ -z "$pids" ] || kill -KILL $pids 2>/dev/null || true
	end_programs
	[ "$VM_ROLE" = b ] || remote end_programs
	wait 2>/dev/null || true
}

# Guest b: does what guest a asks for, until that has ended.
serve() {
	local job code
	trap leave_led EXIT
	load_module || bail "the module does not load"
	add_device || bail "no active rxe device"
	: >"$REMOTE/boot.$(cat /proc/sys/kernel/random/boot_id)"
	until [ -e "$REMOTE/end" ] || [ -e "$VM_SHARED/$VM_TEST/failed.a" ]; do
		for job in "$REMOTE"/*.command; do
			[ -e "$job" ] || continue
			job=${job%.command}
			mv "$job.command" "$job.running"
			(
				# What ends the programs of a case is none of them.
				grep -q '^end_programs' "$job.running" || echo $BASHPID >$CASE/cgroup.procs
				code=0
				eval "$(cat "$job.running")" </dev/null >"$job.out" 2>"$job.err" || code=$?
				echo $code >"$job.new"
				mv "$job.new" "$job.code"
			) &
		done
		sleep 0.1
	done
	echo "TAP version 13"
	echo "1..1"
	echo "ok 1 served guest a"
}

# Guest a: until guest b serves, for the first time or again.
boots() { find "$REMOTE" -name 'boot.*' | wc -l; }
boots_are() { [ "$(boots)" -eq "$1" ]; }

setup_led() {
	trap leave_led EXIT
	trap 'exit 130' INT TERM
	load_module || bail "the module does not load"
	add_device || bail "no active rxe device"
	until_true 60 boots_are 1 || bail "guest b does not answer"
}

leave_led() {
	trap - EXIT
	[ "$VM_ROLE" = b ] || { reap; touch "$REMOTE/end"; }
	end_programs
	rmdir "$CASE"
	ip link set eth0 up
	[ ! -e /sys/class/infiniband/rxe0 ] || rdma link del rxe0
	unload_module || echo "# the module could not be unloaded"
}

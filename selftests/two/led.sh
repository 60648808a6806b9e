#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# For tests with two guests that one script leads: guest a runs the test and guest b `serve`s, it does what
# `in_host` of guest a asks for, so that what lib.sh offers for two hosts works here too. After host.sh.
# shellcheck disable=SC2034,SC2317 # variables and functions are for the tests

# Programs of a case run in this control group, so that none outlives it.
CASE=/sys/fs/cgroup/case
# Where commands go to guest b, and their output comes from.
REMOTE=$VM_SHARED/${VM_TEST:-run}/remote
# The number of the next command, or a lower one.
ASKED=/run/asked

# For both guests, before anything else. $A is guest a, $B guest b; files are those of both.
led_by_a() {
	A=a B=b
	rm -rf "$TMP"
	TMP=$VM_SHARED/$VM_TEST/tmp
	mkdir -p "$TMP" "$REMOTE" "$CASE"
	echo 0 >$ASKED
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

# at_both COMMAND...: on both hosts at once.
at_both() {
	inB "$@" &
	inA "$@"
	wait_for $! "$* on b"
}

# The queue pairs of both hosts' device.
both_qps() { echo "$(inA qps rxe0) $(inB qps rxe0)"; }

show_state() {
	local host f
	for host in $A $B; do
		[ "$host" = "$VM_ROLE" ] || ! is_gone || continue
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

# remote COMMAND...: on guest b, with its output and exit code here. Neither side starts programs for that alone, but
# where there is output.
remote() {
	local job=$REMOTE/$BASHPID.$SRANDOM number end=$((SECONDS + 600))
	printf '%q ' "$@" >"$job.command"
	# Some shells of this guest may ask at the same time: each takes the first number that is free.
	number=$(($(<$ASKED) + 0))
	until (set -C; echo "$job" >"$REMOTE/asked.$number") 2>/dev/null; do
		[ -e "$REMOTE/asked.$number" ] || fail "$REMOTE cannot be written to" >&2
		number=$((number + 1))
	done
	echo $((number + 1)) >$ASKED
	until [ -s "$job.code" ]; do
		if [ $SECONDS -ge $end ]; then
			echo "guest b does not answer: $*" >&2
			return 125
		fi
		pause 0.05
	done
	[ ! -s "$job.out" ] || cat "$job.out"
	[ ! -s "$job.err" ] || cat "$job.err" >&2
	return "$(<"$job.code")"
}

end_programs() {
	echo 1 >$CASE/cgroup.kill
	until_true 10 nobody_is_left
}
nobody_is_left() { [[ $(<$CASE/cgroup.events) == *"populated 0"* ]]; }

reap() {
	local pids
	pids=$(jobs -p)
	# shellcheck disable=SC2086 # a list
	[ -z "$pids" ] || kill -KILL $pids 2>/dev/null || true
	[ "$VM_ROLE" = b ] || remote end_programs &
	end_programs
	wait 2>/dev/null || true
}

# Guest b: does what guest a asks for, until that has ended.
serve() {
	local job command code number=0
	trap leave_led EXIT
	load_module || bail "the module does not load"
	add_device || bail "no active rxe device"
	# What it was asked for before it had no power.
	while [ -s "$REMOTE/asked.$number" ]; do number=$((number + 1)); done
	: >"$REMOTE/boot.$(</proc/sys/kernel/random/boot_id)"
	until [ -e "$REMOTE/end" ] || [ -e "$VM_SHARED/$VM_TEST/failed.a" ]; do
		while [ -s "$REMOTE/asked.$number" ]; do
			job=$(<"$REMOTE/asked.$number")
			number=$((number + 1))
			(
				command=$(<"$job.command")
				# What ends the programs of a case is none of them.
				[[ $command == end_programs* ]] || echo $BASHPID >$CASE/cgroup.procs
				code=0
				# What fails ends this shell, and says so in its output.
				(eval "$command") </dev/null >"$job.out" 2>"$job.err" || code=$?
				echo $code >"$job.code"
			) &
		done
		pause 0.05
	done
	echo "TAP version 13"
	echo "1..1"
	echo "ok 1 served guest a"
}

# Guest a: until guest b serves, for the first time or again.
boots() { find "$REMOTE" -name 'boot.*' | wc -l; }
boots_are() { [ "$(boots)" -eq "$1" ]; }

# A guest that switches itself off when the runner lets it, as its kernel does that: orderly.
leave_orderly() {
	(until_true 60 test -e /run/vm/leave && exec busybox poweroff -f) >/dev/null 2>&1 &
	disown
}
# Guest b goes for a while, off (its power is taken away) or leave (it switches itself off). What it was asked
# for at that time has no answer. `returns` boots it again.
goes() {
	[ $1 = off ] || inB leave_orderly
	boots >"$TMP/boots"
	echo "@vm power b $1"
}
returns() {
	echo "@vm power b on"
	until_true 90 boots_are $(($(cat "$TMP/boots") + 1)) || fail "b did not come back"
	rm "$TMP/boots"
}
# It is not there, which a case that has failed leaves behind.
is_gone() { [ -e "$TMP/boots" ]; }

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

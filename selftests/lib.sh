#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# What the selftests share: results in KTAP, two hosts as network namespaces of one guest, the module,
# counters, and captures. A test sources this file, calls `setup` and then `run_tests`.
#
# The hosts are the namespaces $A (server) and $B (client), joined by a veth pair with an rxe device on
# each end. Whatever may wait has a limit. Counters are read by `counter` alone, so that their source
# can be changed in one place.
# shellcheck disable=SC2034,SC2086,SC2317 # variables and functions are for the tests; words are simple

set -u
ST_DIR=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ST_PY=$ST_DIR/py
MODULES=${VM_MODULES:-$ST_DIR/../build/$(uname -r)}
TMP=$(mktemp -d /tmp/smc-test.XXXXXX)
# 1: what runs in minutes under emulation; 10 and more: what real hardware may do.
SCALE=${SMC_TEST_SCALE:-1}
# How many times as long as on a stock kernel things may take, as SLOWER of selftests/py/smcsock.py.
TIMES=$((${SMC_TEST_PATIENCE:-4} < 8 ? 1 : SMC_TEST_PATIENCE / 4))
A=smcA B=smcB
A4=10.71.0.1 B4=10.71.0.2 A6=fd71::1 B6=fd71::2
# The second pair of cards.
A4_1=10.71.1.1 B4_1=10.71.1.2
IPPROTO_SMC=256
PATH=$(cd "$MODULES/../tools" 2>/dev/null && pwd):$PATH
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$ST_PY
# Waiting at a pipe that nothing comes out of starts no program.
exec {NOTHING}<> <(:)
pause() { read -rt "$1" -u $NOTHING || :; }

## Results

# A line that explains.
note() { echo "# $*"; }

# Ends the case as failed.
fail() {
	echo "# failed: $*"
	exit 1
}

# Ends the case as skipped.
skip() {
	echo "$*" >"$TMP/skip"
	exit 4
}

# equal WHAT EXPECTED GOT
equal() { [ "$2" = "$3" ] || fail "$1: expected '$2', got '$3'"; }

# at_least WHAT MINIMUM GOT, at_most WHAT MAXIMUM GOT
at_least() { [ "$3" -ge "$2" ] || fail "$1: expected at least $2, got '$3'"; }
at_most() { [ "$3" -le "$2" ] || fail "$1: expected at most $2, got '$3'"; }

# What a failure leaves to look at.
show_state() {
	local ns
	for ns in "$A" "$B"; do
		ip netns pids "$ns" >/dev/null 2>&1 || continue
		timeout 5 ip netns exec "$ns" ss -tanH 2>/dev/null | head -n 12 | sed "s/^/# $ns: /"
		timeout 10 ip netns exec "$ns" smcctl stats 2>&1 | head -n 40 | sed "s/^/# $ns: /"
		timeout 10 ip netns exec "$ns" smcctl faults 2>&1 | grep -v ' 0$' | sed "s/^/# $ns: /"
		timeout 10 ip netns exec "$ns" smcctl groups 2>&1 | head -n 10 | sed "s/^/# $ns: /"
	done
	timeout 5 rdma resource 2>&1 | sed 's/^/# /'
	dmesg | grep -v 9p | tail -n 15 | sed 's/^/# /'
	local f
	for f in "$TMP"/*.err "$TMP"/*.json; do
		[ -s "$f" ] || continue
		head -c 1500 "$f" | sed "s|^|# ${f##*/}: |"
		echo
	done
}

# What a test does before each case, if it says so.
before() { :; }

# run_tests FUNCTION:DESCRIPTION... runs each in a subshell where any failing command ends the case,
# and ends the test. Processes that a case left in the background end with it.
run_tests() {
	local item name number=0 failed=0 code started
	echo "TAP version 13"
	echo "1..$#"
	for item; do
		name=${item#*:}
		number=$((number + 1))
		if [ -n "${SMC_TEST_ONLY:-}" ] && [[ " $SMC_TEST_ONLY " != *" ${item%%:*} "* ]]; then
			echo "ok $number $name # SKIP not asked for"
			continue
		fi
		rm -f "$TMP"/*.err "$TMP"/*.json "$TMP"/*.ready* "$TMP/skip"
		started=$SECONDS
		(
			trap 'set +e; trap - ERR; reap' EXIT
			set -eE -o pipefail
			trap 'echo "# ${FUNCNAME[0]:-}: $BASH_COMMAND"' ERR
			before
			"${item%%:*}"
		)
		code=$?
		case $code in
		0) echo "ok $number $name # $((SECONDS - started)) s" ;;
		4) echo "ok $number $name # SKIP $(cat "$TMP/skip" 2>/dev/null)" ;;
		*)
			failed=$((failed + 1))
			echo "not ok $number $name # $((SECONDS - started)) s"
			show_state
			;;
		esac
	done
	[ $failed -eq 0 ]
	exit
}

# Ends what the shell and the namespaces still run.
reap() {
	local pids
	pids=$(jobs -p || true; ip netns pids "$A" 2>/dev/null || true; ip netns pids "$B" 2>/dev/null || true)
	# shellcheck disable=SC2086 # a list
	[ -z "$pids" ] || kill -KILL $pids 2>/dev/null || true
	wait 2>/dev/null || true
}

## Waiting

# until_true SECONDS COMMAND...: repeats it until it succeeds. A guest that hardly gets a processor is
# given more time: as much as it needs for the tries that any other one makes; and so is a slow kernel. What takes longer is
# looked at less often: each look starts programs, and guests share processors.
until_true() {
	local end=$((SECONDS + $1 * TIMES)) tries=$((3 * $1)) pause=0.1 began=$SECONDS
	shift
	until "$@"; do
		tries=$((tries - 1))
		[ $SECONDS -lt $end ] || [ $tries -gt 0 ] || return 1
		[ $SECONDS -lt $((began + 2)) ] || pause=0.3
		pause $pause
	done
}

# until_equal SECONDS WHAT EXPECTED CMD...: what CMD prints becomes that.
prints() { [ "$("${@:2}")" = "$1" ]; }
until_equal() { until_true "$1" prints "${@:3}" || equal "$2" "$3" "$("${@:4}")"; }

# until_file SECONDS FILE
until_file() { until_true "$1" test -e "$2" || fail "${2##*/} did not appear in $(($1 * TIMES)) s"; }

# dissect NAME CASES CAPTURE... -- OPTION...: what dissect.py says of captures, which are kept by these names. The host does
# it: tshark takes long where it is emulated.
dissect() {
	local dir=$VM_SHARED/dissect-$1 name=$1
	mkdir -p "$dir"
	cp "$2" "$dir/cases"
	shift 2
	while [ "$1" != -- ]; do
		cp "$1" "$dir/$(basename "$1" .pcap).pcap"
		shift
	done
	shift
	printf '%s\n' "$@" >"$dir/options"
	echo "@vm dissect $name"
	until_file 600 "$dir/code"
	cat "$dir/said"
	return "$(cat "$dir/code")"
}

# port_open NAMESPACE PORT: something listens there.
port_open() { in_host "$1" ss -tlnH "sport = :$2" | grep -q .; }

# until_listening NAMESPACE PORT [SECONDS]
until_listening() {
	until_true "${3:-15}" port_open "$1" "$2" || fail "nothing listens on port $2 of $1"
}

# wait_for PID WHAT: the exit code of a program in the background must be 0. Programs have limits of
# their own.
wait_for() {
	local code=0
	wait "$1" || code=$?
	[ $code -eq 0 ] || fail "$2 ended with $code"
}

## The two hosts

# in_host HOST COMMAND...: on a host, which is a namespace here; host.sh makes it a guest.
in_host() { ip netns exec "$@"; }
# inA COMMAND..., inB COMMAND...: `timeout` belongs into the command.
inA() { in_host "$A" "$@"; }
inB() { in_host "$B" "$@"; }

load_dependencies() { modprobe -a ib_core ib_uverbs rdma_rxe udp_tunnel veth; }

load_module() {
	[ ! -d /sys/module/smc_r ] || return 0
	load_dependencies
	insmod "$MODULES/smc_r.ko"
}

# Nothing uses the module any more.
unused() { [ "$(</sys/module/smc_r/refcnt)" -eq 0 ]; }

# Unloads; sockets that are closed in the background may take a moment.
unload_module() {
	[ -d /sys/module/smc_r ] || return 0
	[ ! -d /sys/module/smc_diag ] || rmmod smc_diag
	until_true 20 unused || note "module references: $(cat /sys/module/smc_r/refcnt)"
	timeout 30 rmmod smc_r
}

add_namespaces() {
	local ns
	for ns in "$A" "$B"; do
		ip netns add "$ns" || return
		ip netns exec "$ns" sysctl -q net.ipv6.conf.default.accept_dad=0
		ip -n "$ns" link set lo up
	done
}

# add_cards N: the veth pair vaN, vbN.
add_cards() {
	local n=$1 s=${2:-64}
	ip link add "va$n" netns "$A" mtu "${MTU:-1500}" type veth peer name "vb$n" netns "$B" mtu "${MTU:-1500}" &&
		ip -n "$A" addr add "10.71.$n.1/24" dev "va$n" &&
		ip -n "$B" addr add "10.71.$n.2/24" dev "vb$n" &&
		if [ "$n" -eq 0 ]; then
			ip -n "$A" addr add "$A6/$s" dev "va$n" nodad && ip -n "$B" addr add "$B6/$s" dev "vb$n" nodad
		fi &&
		ip -n "$A" link set "va$n" up &&
		ip -n "$B" link set "vb$n" up
}

add_rxe_a() { ip netns exec "$A" rdma link add "rxea${1:-0}" type rxe netdev "va${1:-0}"; }
add_rxe_b() { ip netns exec "$B" rdma link add "rxeb${1:-0}" type rxe netdev "vb${1:-0}"; }

rxe_active() { rdma link show "$1/1" 2>/dev/null | grep -q 'state ACTIVE'; }

# has_gid DEVICE ADDRESS: the port has it (again): the device hears of an address a moment after it has come.
has_gid() {
	local hex
	hex=$(printf '%02x%02x:%02x%02x' ${2//./ })
	grep -qs "ffff:$hex\$" /sys/class/infiniband/$1/ports/1/gids/*
}

# Packets go from B to A again. While a neighbour was sought in vain, which lasts longer than the card was down,
# connect() of TCP fails with EHOSTUNREACH.
until_reached() { until_true 20 inB ping -c 1 -W 1 "${1:-$A4}" >/dev/null || fail "${1:-$A4} is not reached"; }

# Ends the test before it has begun.
bail() {
	echo "Bail out! $*"
	exit 1
}

# Network and module. PAIRS=2 for two pairs of cards.
setup() {
	trap cleanup EXIT
	trap 'exit 130' INT TERM
	[ "$(id -u)" -eq 0 ] || { echo "1..0 # SKIP needs root"; exit 4; }
	[ -e "$MODULES/smc_r.ko" ] || { echo "1..0 # SKIP no module in $MODULES"; exit 4; }
	load_module || bail "the module does not load"
	add_namespaces || bail "no namespaces"
	local n
	for n in $(seq 0 $((${PAIRS:-1} - 1))); do
		add_cards "$n" || bail "no cards"
		add_rxe_a "$n" || bail "no rxe device"
		add_rxe_b "$n" || bail "no rxe device"
		until_true 10 rxe_active "rxea$n" || bail "rxea$n is not active"
		until_true 10 rxe_active "rxeb$n" || bail "rxeb$n is not active"
	done
}

# Whatever a test did, the next one finds a clean system.
cleanup() {
	local dev
	trap - EXIT
	reap
	for dev in /sys/class/infiniband/rxe[ab]*; do
		[ ! -e "$dev" ] || timeout 20 rdma link del "${dev##*/}"
	done
	ip netns del "$A" 2>/dev/null
	ip netns del "$B" 2>/dev/null
	unload_module || echo "# the module could not be unloaded"
	rm -rf "$TMP"
}

## Counters

# counter NAMESPACE NAME: smc (connections that use SMC, both roles), smc_v1, smc_v2, fallback (connections that use
# TCP), tx_bytes, rx_bytes, groups, links, conns. Counters are read from what smcctl prints, one name
# and number in a line.
counter() {
	local what=stats
	case $2 in groups | links) what=$2 ;; conns) what=groups ;; esac
	in_host "$1" timeout 20 smcctl --json $what >"$TMP/counter" || return
	awk -v want="$2" '
		{ gsub(/[",:]/, "") }
		$1 == "fallbacks" || $1 == "smcr" || $1 == "tx" || $1 == "rx" { part = $1 }
		$1 ~ /^(client|server)_v[12]$/ && (want == "smc" || want == "smc" substr($1, 7)) { sum += $2 }
		want == "fallback" && part == "fallbacks" && $1 ~ /^(client|server)$/ { sum += $2 }
		want == part "_bytes" && $1 == "bytes" { sum += $2 }
		(want == "groups" || want == "links") && $1 == "id" { sum++ }
		want == "conns" && $1 == "connections" { sum += $2 }
		END { printf "%d\n", sum }' "$TMP/counter"
}

# faults_of HOST: its counters of what went wrong, name and number in a line.
faults_of() { in_host "$1" timeout 20 smcctl --json faults | tr -d '",:{}' | awk 'NF == 2 { print $1, $2 }'; }

# fallback_reason HOST SIDE CODE: how often that side (client, server) fell back for that reason. Codes:
# the peer did not show the option, no device, another subnet, the peer declined.
NO_OPTION=0x03010000 NO_DEVICE=0x03030002 SUBNET=0x03070000 DECLINED=0x05000000
fallback_reason() {
	in_host "$1" timeout 20 smcctl --json stats >"$TMP/counter" || return
	reasons "$TMP/counter" | awk -v want="$2:$3" '$1 == want { sum += $2 } END { print sum + 0 }'
}
# reasons FILE: SIDE:CODE and how often, for each reason in what `smcctl --json stats` has said.
reasons() {
	awk '
		{ gsub(/[",:]/, "") }
		# Failed handshakes look alike, and come before.
		$1 == "reasons" { fallbacks = 1 }
		!fallbacks { next }
		$1 == "side" { side = $2 }
		$1 == "code" { code = $2 }
		$1 == "count" && side { print side ":" code, $2; side = "" }' "$1"
}

# counted HOST SIDE CODE COMMAND...: the command makes one more of these fallbacks.
counted() {
	local host=$1 side=$2 code=$3 before total after
	shift 3
	before=$(fallback_reason $host $side $code) total=$(counter $host fallback)
	"$@"
	after=$(fallback_reason $host $side $code)
	if [ $after -ne $((before + 1)) ]; then
		in_host $host timeout 10 smcctl --json stats | sed -n '/fallbacks/,/\]/p' | tr -d ' \n' | sed 's/^/# /'
		echo
		fail "reason $code of $host as $side: $before, then $after"
	fi
	equal "fallbacks of $host" $((total + 1)) "$(counter $host fallback)"
}

# rxe_counter DEVICE NAME: of the device's own counters.
rxe_counter() { cat "/sys/class/infiniband/$1/ports/1/hw_counters/$2"; }

# complaint client|server: what an end of a transfer has to say about its failure, and devices about theirs.
complaint() {
	grep -o '"errors":.*' "$TMP/$1.json" | head -c 600 || true
	head -c 400 "$TMP/$1.err"
	grep -Hs '[1-9]' /sys/class/infiniband/*/ports/1/hw_counters/retry_*exceeded_err | sed 's|.*infiniband/| |' || true
}

# qps DEVICE...: queue pairs of the kernel that have a peer, or are to have one: without those that every device has, and
# those of our links that are their own peers, with one number for the packets of both.
qps() {
	local dev sum=0
	for dev; do
		sum=$((sum + $(rdma resource show qp link "$dev" 2>/dev/null | grep 'type RC' |
			grep -cvE 'lqpn ([0-9]+) rqpn \1 .* rq-psn ([0-9]+) sq-psn \2 ' || true)))
	done
	echo $sum
}

## Transfers

# xfer SERVER-ARGUMENTS -- CLIENT-ARGUMENTS: a checked transfer from B to A; both have to succeed.
# XFER_A, XFER_B: what stands before the programs; XFER_MODE: what both have to report (smc);
# XFER_FAMILY (inet-smc); XFER_HOST ($A4).
PORT=5201
xfer() {
	local server=() client=() limit=${XFER_TIMEOUT:-60} pid code=0
	while [ $# -gt 0 ] && [ "$1" != -- ]; do
		server+=("$1")
		shift
	done
	shift
	client=("$@")
	local mode=${XFER_MODE:-smc} family=${XFER_FAMILY:-inet-smc} host=${XFER_HOST:-$A4}
	PORT=$((PORT + 1))
	rm -f "$TMP/xfer.ready"
	local before=0
	[ "$mode" != smc ] || before=$(counter "$B" smc)
	# shellcheck disable=SC2086 # lists of words
	inA ${XFER_A:-} smc_xfer server --family "${XFER_FAMILY_A:-$family}" --bind "$host" --port $PORT \
		--timeout "$limit" --ready-file "$TMP/xfer.ready" --expect-mode "${XFER_MODE_A:-$mode}" \
		"${server[@]}" >"$TMP/server.json" 2>"$TMP/server.err" &
	pid=$!
	until_file 20 "$TMP/xfer.ready"
	# shellcheck disable=SC2086
	inB ${XFER_B:-} smc_xfer client "$host" --family "$family" --port $PORT --timeout "$limit" \
		--expect-mode "${XFER_MODE_B:-$mode}" "${client[@]}" \
		>"$TMP/client.json" 2>"$TMP/client.err" || code=$?
	[ $code -eq 0 ] || sleep 1
	[ $code -eq 0 ] || fail "client ended with $code: $(complaint client)"
	wait $pid || code=$?
	[ $code -eq 0 ] || fail "server ended with $code: $(complaint server)"
	# The kernel's own word for it, beside the sockets'.
	[ "$mode" != smc ] || [ -n "${XFER_MODE_A:-}${XFER_MODE_B:-}" ] ||
		at_least "connections counted as SMC" $((before + 1)) "$(counter "$B" smc)"
}

# Python programs of the tests, in a namespace, with a limit.
pyA() { inA timeout "${LIMIT:-60}" python3 -u "$@"; }
pyB() { inB timeout "${LIMIT:-60}" python3 -u "$@"; }

## Captures

# capture_start NAMESPACE DEVICE NAME FILTER...: packets go to $TMP/NAME.pcap until capture_stop.
CAPTURES=()
capture_start() {
	local ns=$1 dev=$2 name=$3
	shift 3
	ip netns exec "$ns" tcpdump -i "$dev" -B 16384 -s "${SNAP:-2048}" --immediate-mode -U \
		-w "$TMP/$name.pcap" "$@" 2>"$TMP/$name.tcpdump" &
	local pid=$! file=$TMP/$name.tcpdump
	until_true 15 grep -q 'listening on' "$file" || fail "tcpdump does not start"
	# What came before there was a filter is counted as received, and never as captured.
	until_true 15 settled "$pid" "$file" || fail "tcpdump says nothing of itself: $(tail -n 1 "$file")"
	CAPTURES+=("$pid:$(behind "$pid" "$file"):$file")
}
settled() {
	local one
	one=$(behind "$1" "$2") && sleep 0.2 && [ "$one" = "$(behind "$1" "$2")" ]
}

# What has passed is in the file when tcpdump ends: until then it may still be in the kernel's buffer, and
# would be lost.
capture_stop() {
	local capture pid base file
	for capture in "${CAPTURES[@]}"; do
		IFS=: read -r pid base file <<<"$capture"
		until_true 30 caught_up "$pid" "$base" "$file" || fail "tcpdump is behind: $(tail -n 1 "$file")"
		kill -INT "$pid"
		wait "$pid" || true
	done
	CAPTURES=()
}
caught_up() {
	local now
	now=$(behind "$1" "$3") && [ "$now" -le "$2" ]
}
# behind PID FILE: how many packets the kernel has taken for tcpdump and not dropped, and tcpdump has not
# written. It tells in the file when it is asked.
behind() {
	local said
	said=$(grep -c '^tcpdump: .* captured' "$2") || true
	kill -USR1 "$1"
	until_true 5 reported "$2" $((said + 1)) &&
		tail -n 1 "$2" | awk '!/^tcpdump: .* captured/ { exit 1 } { print $5 - $2 - $10 }'
}
reported() { [ "$(grep -c '^tcpdump: .* captured.* dropped by kernel' "$1")" -ge "$2" ]; }

# SPDX-License-Identifier: GPL-2.0
# For tests with smc_liar, on top of lib.sh: a transfer next to each case, what the liar is told, programs that connect
# to it, and the counters that tell of it.
# shellcheck shell=bash disable=SC2016,SC2034,SC2086,SC2317 # $A and $P are the liar's; variables are for the tests; words are simple; run_tests calls the functions

# Port of the echo server, and that in front of those that the liar listens on.
P=7200
G=8200
LIAR=10.71.0.9
# Devices of A on which the group of the transfer next to it has a link each.
CARDS=(rxea0)
# What makes a link of the liar one of version 2, or nothing: $V in scripts, too.
V=
# The seconds that it has for a script.
LIAR_TIME=240
# What it says is in these files: where there are two at a time, in others.
SAID=liar
# What else the liar is called with.
LIAR_MORE=()
# The longest that one round of the transfer next to it may take, in milliseconds: who had to wait for
# the liar would wait for 4 s and more. What a program waits for that only sleeps is the machine's.
PATIENCE=4000
# How many times as long as before, or afterwards, a usual round may take. The programs of both sides, the liar that never
# sleeps included, share two processors, which are emulated where tests run.
SLOWER=4
# How many times as long as at the very beginning a usual round may take when a case is over, and all that it had is gone.
# That is what a slowness that lasts would show in, also if it comes bit by bit: what is compared with the time just
# before or afterwards takes it for usual. How fast the machine is at either time is taken out of it by rounds over TCP
# between the same programs: what makes TCP as slow as SMC, such as somebody who keeps the processors busy, is not seen.
LASTING=5
# Seconds that the transfer next to it may go on for: no less than the suite may take.
BESIDE=$((1200 * ${SMC_TEST_PATIENCE:-1}))
# So many rounds there are during each case, or nothing is said of it; and so many long ones, or nothing is said of these.
LEAST_ROUNDS=5
LEAST_LONG=3

# An echo server in A and the transfer from B that must not be disturbed run all the time: their numbers are
# in $TMP/kept, and their ends mean that a case has failed.
start_beside() {
	rm -f "$TMP"/echoer.ready "$TMP"/beside.*
	mkfifo "$TMP/beside.in"
	inA timeout $BESIDE python3 -u "$ST_PY/echoer.py" server $A4 $P "$TMP/echoer.ready" >"$TMP/echoer.out" 2>"$TMP/echoer.txt" &
	echo $! >"$TMP/kept"
	until_file 20 "$TMP/echoer.ready"
	# Held open, so that what the cases say is not followed by the end of the file.
	inB timeout $BESIDE python3 -u "$ST_PY/echoer.py" client $A4 $P <>"$TMP/beside.in" >>"$TMP/beside.out" 2>"$TMP/beside.txt" &
	echo $! >>"$TMP/kept"
	beside calm calm >/dev/null
	ip netns pids "$A" >>"$TMP/kept"
	ip netns pids "$B" >>"$TMP/kept"
}
# As that of the library, but for these.
reap() {
	local pid
	for pid in $(jobs -p || true; ip netns pids "$A" 2>/dev/null || true; ip netns pids "$B" 2>/dev/null || true); do
		grep -qx $pid "$TMP/kept" 2>/dev/null || kill -KILL $pid 2>/dev/null || true
	done
	wait 2>/dev/null || true
}

# beside WORD ANSWER: says a word to the transfer next to it, and gives what it answers.
beside() {
	: >"$TMP/beside.out"
	echo $1 >"$TMP/beside.in"
	until_true 30 grep -q "^$2" "$TMP/beside.out" ||
		fail "the transfer next to it says nothing ($(head -c 300 "$TMP/beside.txt"))" >&2
	cat "$TMP/beside.out"
}

begin() {
	# A case that has failed has left it going.
	if [ -e "$TMP/going" ]; then
		rm -f "$TMP/going"
		beside tell told >/dev/null
		beside calm calm >/dev/null
	fi
	touch "$TMP/going"
	faults >"$TMP/faults"
	echo go >"$TMP/beside.in"
}

# faults: the counters of A, name and number in a line.
faults() {
	faults_of "$A"
	echo "fallbacks $(counter "$A" fallback)"
}

# By how much each counter had grown in the end.
grown() { awk 'NR == FNR { old[$1] = $2; next } { print $1, $2 - old[$1] }' "$TMP/faults" "$TMP/faults.end"; }

# undisturbed TIMES: what the transfer next to it says of the time since it was told to go on: no round waited for the
# liar, and a usual one took no more than so many times as long as before.
undisturbed() {
	local rounds calm usual worst late longs calm_long usual_long
	read -r _ rounds calm usual worst late longs calm_long usual_long < <(beside tell told)
	note "next to it: $rounds rounds of $usual ms ($calm ms without it), the longest took $worst ms, a sleep of 20 ms $late more"
	note "next to it: $longs long rounds of $usual_long ms ($calm_long ms without it)"
	at_least "rounds next to it" $LEAST_ROUNDS $rounds
	at_most "ms of a round" $((PATIENCE + 3 * late)) $worst
	not_slower "rounds" $1 $calm $usual
	if [ $longs -lt $LEAST_LONG ]; then
		note "too few long rounds to say how usual they are: $longs of $LEAST_LONG"
	else
		not_slower "long rounds" $1 $calm_long $usual_long
	fi
}

# as_at_first WHEN: a usual round of the transfer next to it takes no more than LASTING times as long as at the very
# beginning, if it is not that TCP is as slow.
as_at_first() {
	local usual calm usual_long calm_long
	read -r _ usual calm usual_long calm_long < <(beside calm calm)
	note "$1: rounds of $usual ms ($calm ms at the beginning), long ones of $usual_long ms ($calm_long ms)"
	not_slower "rounds $1" $LASTING $calm $usual
	not_slower "long rounds $1" $LASTING $calm_long $usual_long
}

# finish NAME=COUNT...: the other transfer was not disturbed, what the liar had is gone, and these counters
# have grown by as much (COUNT+: or more), the others not at all.
finish() {
	local name want got
	local -A by
	rm -f "$TMP/going"
	undisturbed $SLOWER
	# The group of the transfer next to it stays.
	until_equal 30 "queue pairs of A" ${#CARDS[@]} qps "${CARDS[@]}"
	until_equal 20 "connections of A" 1 counter "$A" conns
	as_at_first afterwards
	faults >"$TMP/faults.end"
	note "counted: $(grown | awk '$2 { print $1 "=" $2 }' | xargs)"
	while read -r name got; do by[$name]=$got; done < <(grown)
	for name in connections_aborted links_broken cdc_dropped llc_dropped llc_refused links_lost groups_lost handshakes_failed \
		links_without_route fallbacks; do
		want=0
		for got; do [ "${got%%=*}" != $name ] || want=${got#*=}; done
		want=${want:-0}
		got=${by[$name]}
		case $want in
		*+) at_least "counter $name" ${want%+} $got ;;
		*) equal "counter $name" $want $got ;;
		esac
	done
}

# not_slower WHAT TIMES BEFORE NOW: not by more than that.
not_slower() {
	awk -v before=$3 -v now=$4 "BEGIN { exit now > $2 * before }" || fail "$1 are slower than before: $4 ms, $3 ms before"
}

# tell: has the liar do what standard input says, once all guests have started: it has its times, which are not for
# programs to start in. liar: and it must go well.
declare -A GUESTS
tell() {
	local n
	for n in "${!GUESTS[@]}"; do until_file 60 "$TMP/listens.$n.up"; done
	inB timeout $((LIAR_TIME * TIMES)) smc_liar - --trace -i vb0 -a $LIAR/24 -d rxeb0 -g $B4 "${LIAR_MORE[@]}" -D "V=$V" -D A=$A4 -D P=$P -D T="$TMP" \
		>"$TMP/$SAID.json" 2>"$TMP/$SAID.err"
}
liar() {
	tell && return
	tail -n 25 "$TMP/$SAID.err" | sed 's/^/# /'
	fail "$(head -c 700 "$TMP/$SAID.json")"
}

# guest N ROUNDS|WHAT: a client in A that connects to port $G + 100 * N of the liar once that listens, and so
# many rounds of an echo, or what else echoer.py offers. guest_said N RESULT...: one of these it has to say in the end.
guest() {
	local words
	rm -f "$TMP/listens.$1" "$TMP/listens.$1.up"
	case $2 in
	[0-9]*) words=(guest "$LIAR" $((G + 100 * $1)) "$2") ;;
	*) words=("$2" "$LIAR" $((G + 100 * $1))) ;;
	esac
	inA timeout $((300 * TIMES)) python3 -u "$ST_PY/echoer.py" "${words[@]}" "$TMP/listens.$1" \
		>"$TMP/guest.$1.out" 2>"$TMP/guest.$1.err" &
	GUESTS[$1]=$!
}
guest_said() {
	local result said n=$1
	shift
	wait_for ${GUESTS[$n]} "client $n ($(head -c 300 "$TMP/guest.$n.err"))"
	said=$(cat "$TMP/guest.$n.out")
	for result; do [ "$said" != "$result" ] || return 0; done
	fail "client $n said '$said' instead of '$*'"
}
# listen NAME LINK N: the step of a script for what guest N connects to, and all up to its Proposal.
listen() {
	echo "link $2 server $V"
	another "$@"
}
# another NAME LINK N: the same, on a link that is there.
another() {
	echo "listen $1 $2 $((G + 100 * $3)) ready=$TMP/listens.$3"
	echo "accepted $1"
	echo "wait $1 proposal"
}
# every LINK EXCEPT...: steps that send one LLC message of each kind, as a request and as a reply, but for some
# (KIND, KIND/reply). The reply comes first: where it breaks the protocol as an answer to what the request brings about, it
# must not be one. A key that nobody has is taken back at all times.
KINDS='confirm-link add-link add-link-cont delete-link confirm-rkey test-link confirm-rkey-cont delete-rkey'
KINDS_V2='confirm-link add-link delete-link request-add-link confirm-rkey test-link delete-rkey'
every() {
	local link=$1 kind
	shift
	for kind in $KINDS; do
		[[ " $* " == *" $kind/reply "* ]] || echo "llc $link $kind reply"
		[[ " $* " == *" $kind "* ]] || echo "llc $link $kind"
	done
	echo "llc $link delete-rkey set=8:12345678"
}

# v2 COMMAND...: the same, in version 2.
v2() {
	V=v2=LIARS
	KINDS=$KINDS_V2
	inA smcctl ueid add LIARS
	"$@"
}

# full: goes on where there is time for what version 2 has in common with version 1.
full() { [ $SCALE -gt 1 ] || [ $TIMES -gt 1 ] || [[ $(uname -r) == *-smc-* ]] || skip "at a larger scale, or on a kernel that looks for mistakes"; }

# Everything is given back.
nothing_left() {
	rm -f "$TMP/kept"
	reap
	until_true 40 unused || fail "references are left: $(cat /sys/module/smc_r/refcnt)"
	timeout 30 rmmod smc_r || fail "the module does not go"
	equal "resources of the devices" "$(cat "$TMP/resources")" "$(resources)"
	load_module
}
resources() { rdma resource show | sed 's/^[0-9]*: //' | grep '^rxe[ab][01]:'; }

# liar_setup: two hosts, and the transfer next to the cases.
liar_setup() {
	local ns
	setup
	[ -x "$(command -v smc_liar)" ] || { echo "1..0 # SKIP smc_liar was not built: no libibverbs"; exit 4; }
	unload_module
	resources >"$TMP/resources"
	load_module
	trap 'rm -f "$TMP/kept"; cleanup' EXIT
	for ns in "$A" "$B"; do
		# Each case begins as if none had been before, and links are looked after quickly.
		in_host "$ns" sysctl -qw net.smc.smcr_peer_backoff=0 net.smc.smcr_testlink_time=2
	done
}

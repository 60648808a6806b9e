# SPDX-License-Identifier: GPL-2.0
# How pairs of programs end, for tests that source lib.sh first: the server is on host A, the client on B.
# What programs say is in $TMP/A.out and $TMP/B.out.
# shellcheck shell=bash disable=SC2086,SC2317 # words are simple; run_tests calls the functions

P=6100

# Connections that are cut at once.
N=3
# start_cut busy|idle: they carry data in both directions, or nothing.
start_cut() {
	P=$((P + 1))
	rm -f "$TMP"/cut.ready*
	inA nice timeout 120 python3 -u "$ST_PY/cut.py" server $A4 $P "$TMP/cut.ready" $N $1 >"$TMP/A.out" 2>"$TMP/A.err" &
	SERVER=$!
	until_file 20 "$TMP/cut.ready"
	inB nice timeout 120 python3 -u "$ST_PY/cut.py" client $A4 $P "$TMP/cut.ready" $N $1 >"$TMP/B.out" 2>"$TMP/B.err" &
	CLIENT=$!
	until_file 30 "$TMP/cut.ready.server"
	until_file 30 "$TMP/cut.ready.client"
	# What the case before has closed may be counted still.
	until_equal 20 "connections that use SMC" $N counter "$A" conns
	sleep 1
}

# both_failed SECONDS: each connection ended with an error that means a broken connection, on both
# sides, within so many seconds of the last byte that came.
both_failed() {
	wait_for $CLIENT "the client"
	wait_for $SERVER "the server"
	failed_at A $1
	failed_at B $1
	until_true 30 unused || fail "references are left: $(cat /sys/module/smc_r/refcnt)"
}
# failed_at SIDE SECONDS: the same on one of them.
failed_at() {
	local side=$1 line seconds
	equal "connections of $side" $N "$(grep -c seconds= "$TMP/$side.out")"
	sed "s/^/# $side: /" "$TMP/$side.out"
	while read -r line; do
		[[ $line =~ recv=(ECONNRESET|ECONNABORTED|ETIMEDOUT|ENETDOWN|EHOSTUNREACH|ENETUNREACH)\  ]] ||
			fail "$side: no error of a broken connection: $line"
		[[ $line =~ send=(EPIPE|ECONNRESET|ECONNABORTED|ETIMEDOUT|ENETDOWN|EHOSTUNREACH|ENETUNREACH)\  ]] ||
			fail "$side: sending: $line"
		seconds=${line##*seconds=}
		at_most "seconds until $side knew" $2 $seconds
	done <"$TMP/$side.out"
}

# both CASE: the case of close.py, to its end.
both() {
	start_both "$1"
	wait_for $CLIENT "the client"
	wait_for $SERVER "the server"
}
start_both() {
	local settings=(SIDE="${SIDE:-}")
	P=$((P + 1))
	rm -f "$TMP"/close.ready*
	inA env "${settings[@]}" timeout 60 python3 -u "$ST_PY/close.py" "$1" server $A4 $P "$TMP/close.ready" >"$TMP/A.out" 2>"$TMP/A.err" &
	SERVER=$!
	until_file 20 "$TMP/close.ready"
	inB env "${settings[@]}" timeout 60 python3 -u "$ST_PY/close.py" "$1" client $A4 $P "$TMP/close.ready" \
		>"$TMP/B.out" 2>"$TMP/B.err" &
	CLIENT=$!
}
# said SIDE LINE...: what the program reported.
said() {
	local side=$1 line
	shift
	for line; do
		grep -qx "$line" "$TMP/$side.out" || fail "$side: expected $line, got: $(tr '\n' ' ' <"$TMP/$side.out")"
	done
}

half_close() { both half_close && said B send=EPIPE; }
close_with_data() { both close_with_data; }
slow_reader() { both slow_reader; }
abort() { both abort && said A recv=ECONNRESET again=0 send=EPIPE; }
unread() { both unread && said A recv=ECONNRESET; }
shutdown_read() { both shutdown_read && said A recv=0 send=EPIPE; }
woken() { both woken && said A recv=0 && said B peer=0; }

# killed reader|writer: the client dies by SIGKILL.
killed() {
	local code=0
	SIDE=$1 start_both killed
	until_file 20 "$TMP/close.ready.read"
	[ $1 = writer ] || sleep 1
	inB kill -KILL "$(cat "$TMP/close.ready.pid")"
	wait $CLIENT || code=$?
	[ $code -ne 0 ] || fail "the client lives"
	wait_for $SERVER "the server"
}
reader_killed() { killed reader && said A again=EPIPE && { said A send=ECONNRESET || said A send=EPIPE; }; }
writer_killed() { killed writer && said A recv=0; }

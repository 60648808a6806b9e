# SPDX-License-Identifier: GPL-2.0
# For tests under which connections are busy, whatever happens to their links. Sourced after lib.sh.
# shellcheck shell=bash disable=SC2086 # words are simple

# talk COUNT [SIZE [PAUSE]]: so many connections to $A4 ask and answer, with so many bytes and as many seconds apart, from
# now on until `talked`, which says that none has failed and nothing was lost. They leave the processors to what is done
# to their links.
TALKS=() TALKERS=()
talk() {
	local count=$1
	shift
	PORT=$((PORT + 1))
	rm -f "$TMP"/talk.$PORT*
	inA nice timeout 600 python3 -u "$ST_PY/echoer.py" server $A4 $PORT "$TMP/talk.$PORT" >"$TMP/talk.$PORT.server" 2>&1 &
	TALKERS+=("$A:$!:$PORT")
	until_file 20 "$TMP/talk.$PORT"
	inB nice timeout 600 python3 -u "$ST_PY/echoer.py" crowd $A4 $PORT $count "$TMP/talk.$PORT" "$@" 2>"$TMP/talk.$PORT.err" &
	TALKS+=($!)
	until_file 60 "$TMP/talk.$PORT.up"
}
talked() {
	local talk host pid port
	for talk in "$TMP"/talk.*.up; do touch ${talk%up}stop; done
	for talk in "${TALKS[@]}"; do wait_for $talk "a client"; done
	for talk in "${TALKERS[@]}"; do
		IFS=: read -r host pid port <<<"$talk"
		in_host $host pkill -KILL -f "echoer.py server [^ ]* $port"
		wait $pid || true
	done
}

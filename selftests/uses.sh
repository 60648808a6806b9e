#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# For tests that run programs over SMC: the proof that they did. Sourced after lib.sh.
# shellcheck disable=SC2086 # words are simple

# both NAME: the counter of server and client together.
both() { echo $(($(counter "$A" $1) + $(counter "$B" $1))); }

# uses COUNT COMMAND...: makes at least so many SMC connections, none that falls back on either side, and
# all of them are over in the end.
uses() {
	local least=$1 before fallbacks
	shift
	before=$(counter "$A" smc) fallbacks=$(both fallback)
	"$@"
	at_least "SMC connections" $((before + least)) "$(counter "$A" smc)"
	equal "fallbacks" $fallbacks "$(both fallback)"
	note "$(($(counter "$A" smc) - before)) SMC connections, no fallback"
	reap
	until_equal 30 "connections that are left" 0 both conns
}

# The guests have all programs that the tests run: without one, nothing would be tested.
need() { command -v "$1" >/dev/null || fail "there is no $1 (see tools/env/packages)"; }

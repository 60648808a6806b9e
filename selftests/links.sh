# SPDX-License-Identifier: GPL-2.0
# Link groups and links of the two hosts, for tests with several cards. Sourced after lib.sh.
# shellcheck shell=bash disable=SC2086 # words are simple

# networks N: the first N cards of either host are in one physical network. Its name differs: the
# devices of both hosts are in one system.
networks() {
	local n
	inA smc_pnet -f
	inB smc_pnet -f
	for n in $(seq 0 $(($1 - 1))); do
		inA smc_pnet -a NETA -I va$n
		inB smc_pnet -a NETB -I vb$n
	done
}

# The next connection is a first contact.
end_groups() {
	local id
	for id in $(inA smcctl --json groups | sed -n 's/.*"id": "\([0-9a-f]*\)".*/\1/p'); do
		inA smcctl drain -g $id || true
	done
	until_equal 20 "link groups of A" 0 counter "$A" groups
	until_equal 20 "link groups of B" 0 counter "$B" groups
}

# links HOST: numbers, devices and states of its links.
links() {
	in_host $1 timeout 20 smcctl --json links >"$TMP/links" || return
	awk '
		{ gsub(/[",:]/, "") }
		$1 == "id" { id = $2 }
		$1 == "state" { state = $2 }
		$1 == "device" { print id, $2, state }' "$TMP/links" | sort -n
}
# active HOST: the devices of its active links.
active() { links $1 | awk '$3 == "active" { print $2 }' | sort | xargs; }
# both_active "CARD...": these cards of both hosts have active links.
both_active() {
	# A link that was not ready in time is tried again after 60 s.
	until_equal 90 "devices of A" "$(printf 'rxea%s\n' $1 | xargs)" active "$A"
	until_equal 20 "devices of B" "$(printf 'rxeb%s\n' $1 | xargs)" active "$B"
}
# conns_on DEVICE: connections on its links on that device.
conns_on() {
	awk -v wanted=$1 '
		{ gsub(/[",:]/, "") }
		$1 == "device" { device = $2 }
		$1 == "connections" && device == wanted { sum += $2 }
		END { print sum + 0 }'
}
# on_device HOST DEVICE: how many connections of the host use links on it.
on_device() { in_host $1 timeout 20 smcctl --json links | conns_on $2; }

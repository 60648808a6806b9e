# SPDX-License-Identifier: GPL-2.0
# What both hosts do for themselves.
# shellcheck shell=bash disable=SC2034 # lib.sh and the tests use the addresses

# As led_by_a, with the addresses of the cards to the router.
routed_hosts() {
	led_by_a
	case $VM_ROLE in
	a) A4=$VM_LOCAL2 A6=$VM_LOCAL6_2 B4=$VM_PEER2 B6=$VM_PEER6_2 ;;
	*) A4=$VM_PEER2 A6=$VM_PEER6_2 B4=$VM_LOCAL2 B6=$VM_LOCAL6_2 ;;
	esac
}

# A second card is in the same network, and has a way of its own to that of the other host, through the router. Its device
# has GIDs of IPv4 and IPv6, on b in the other order.
second_card() {
	if [ ! -e /sys/class/infiniband/rxe1 ]; then
		[ $VM_ROLE = a ] || ip addr del $VM_LOCAL3/24 dev eth3
		rdma link add rxe1 type rxe netdev eth3
		until_true 10 rxe_active rxe1
		until_true 10 grep -qs '^fd77:' /sys/class/infiniband/rxe1/ports/1/gids/*
		[ $VM_ROLE = a ] || ip addr add $VM_LOCAL3/24 dev eth3
		until_true 10 has_gid rxe1 $VM_LOCAL3
	fi
	ip route replace ${VM_PEER3%.*}.0/24 via ${VM_LOCAL3%.*}.254
	smc_pnet -f
	smc_pnet -a NET -I eth2
	smc_pnet -a NET -I eth3
}
one_card() {
	[ ! -e /sys/class/infiniband/rxe1 ] || rdma link del rxe1
	smc_pnet -f
}

# are_active DEVICE...: active links of this host are on those. One that is missing is looked for once a minute.
are_active() { until_equal 90 "devices of $VM_ROLE" "$(sorted "$@")" active; }
sorted() { printf '%s\n' "$@" | sort | xargs; }
active() {
	# shellcheck disable=SC2046 # a list
	sorted $(smcctl links | awk '$3 == "active" { sub("/.*", "", $4); print $4 }')
}
# carry DEVICE...: links on each of them have connections, which send.
carry() {
	local device
	for device; do
		until_true 30 has_connections $device || fail "no connections over $device of $VM_ROLE"
		until_true 30 sends $device $(($(sent $device) + 50)) || fail "nothing is sent over $device of $VM_ROLE"
	done
}
has_connections() { smcctl links | awk -v device=$1/1 '$4 == device { sum += $6 } END { exit sum < 1 }'; }
sent() { rxe_counter $1 sent_pkts; }
sends() { [ "$(sent $1)" -ge $2 ]; }

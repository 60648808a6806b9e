# SPDX-License-Identifier: GPL-2.0
# The hosts between which is measured, on a guest with this checkout's module and on one with the C
# implementation. After lib.sh.
# shellcheck shell=bash disable=SC2034 # lib.sh reads A and B

# Version 2 wants an enterprise ID that both ends have.
EID=BENCH
MADE=()

# hosts A B: two namespaces joined by a cable.
hosts() {
	A=$1 B=$2
	MADE+=("$A" "$B")
	add_namespaces && add_cards 0 || bail "no hosts $A and $B"
}

# rxe HOST NAME CARD; no HOST for the guest itself.
rxe() {
	${1:+ip netns exec "$1"} rdma link add "$2" type rxe netdev "$3" && until_true 10 rxe_active "$2" ||
		bail "no rxe device on $3"
}

load_c() { modprobe -a ib_core ib_uverbs rdma_rxe veth smc smc_diag || bail "the C implementation does not load"; }

# Two hosts with RDMA.
ours_hosts() {
	local host
	hosts rdmaA rdmaB
	rxe rdmaA rxea0 va0
	rxe rdmaB rxeb0 vb0
	for host in rdmaA rdmaB; do
		ip netns exec $host smcr ueid add $EID || bail "no enterprise ID for $host"
	done
}

# The same for the C implementation. In Linux 6.12 RoCE packets arrive in the initial namespace alone, so both
# ends of the cable are there, and what one address sends to the other is routed over it. Each end is a network
# of its own to C, which otherwise makes a second link between any two devices that it finds.
c_hosts() {
	ip link add va0 type veth peer name vb0 &&
		c_end va0 vb0 10.71.0.1 10.71.0.2 A 1 && c_end vb0 va0 10.71.0.2 10.71.0.1 B 2 &&
		ip rule add pref 3 lookup 101 && ip rule add pref 4 lookup local && ip rule del pref 0 &&
		sysctl -qw net.ipv4.conf.all.rp_filter=0 || bail "no hosts for the C implementation"
	rxe '' rxea0 va0
	rxe '' rxeb0 vb0
	smc_pnet -a BENCHA -D rxea0 && smc_pnet -a BENCHB -D rxeb0 || bail "no networks of devices"
	smcr ueid add $EID || bail "no enterprise ID"
}
# c_end CARD OTHER ADDRESS PEER NAME PRIORITY
c_end() {
	local card=$1 other=$2 address=$3 peer=$4
	ip addr add "$address/24" dev "$card" && ip link set "$card" up && ip link set "$other" up &&
		sysctl -qw net.ipv4.conf."$card".accept_local=1 net.ipv4.conf."$card".rp_filter=0 &&
		ip route add "$peer/32" dev "$card" src "$address" table 101 &&
		ip neigh replace "$peer" lladdr "$(cat "/sys/class/net/$other/address")" dev "$card" nud permanent &&
		ip rule add iif "$card" pref "$6" lookup local &&
		smc_pnet -a "BENCH$5" -I "$card"
}

# The guest itself, on the cable to the other one.
ours_guest() {
	rxe '' rxe0 eth0
	smcr ueid add $EID || bail "no enterprise ID"
}

clean() {
	local host dev
	trap - EXIT
	reap
	for dev in /sys/class/infiniband/rxe*; do
		[ ! -e "$dev" ] || rdma link del "${dev##*/}"
	done
	for host in "${MADE[@]}"; do
		ip netns del "$host"
	done
	[ ! -d /sys/module/smc ] || timeout 60 modprobe -r smc_diag smc
	unload_module
	rm -rf "$TMP"
}

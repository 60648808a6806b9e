# SPDX-License-Identifier: GPL-2.0
# What both hosts do for a case, each for itself. The peer's module has no tool of its own in the guest:
# ours configure it, over the netlink interface that both modules have.
# shellcheck shell=bash disable=SC2086,SC2317 # words are simple; in_host calls the functions

EID=LAB-EID-1

# Has a program of this host wait for its parts in conversations, in the folder $PARTS/$VM_ROLE.
play_parts() {
	PARTS=$TMP/parts
	mkdir -p "$PARTS/$VM_ROLE"
	python3 -u "$ST_PY/interop.py" "$PARTS/$VM_ROLE" &
	disown
}

# ids [ID...]: the host has these enterprise IDs and no others.
ids() {
	local id
	smcr ueid flush
	for id; do smcr ueid add "$id"; done
}

# A host that can, whatever an earlier case left.
able() {
	hears
	close_by 2>/dev/null || true # where a case has failed
	ip link set eth1 up
	[ ! -e /sys/class/net/br0 ] || bridge_off
	ip route del unreachable $VM_PEER 2>/dev/null || true # that of a case which failed
	! ip addr show dev eth0 | grep -q " $(second)/" || one_address
	sysctl -q net.ipv4.conf.all.arp_ignore=0 net.ipv4.conf.all.arp_announce=0
	[ ! -e /sys/class/infiniband/rxe1 ] || second_nic_off
	restored
	ids $EID
	sysctl -q net.smc.smcr_max_conns_per_lgr=255 net.smc.smcr_max_links_per_lgr=2
	[ $VM_ROLE = b ] || sysctl -q net.smc.smcr_idle_time=600
}

# Another subnet for each host, on the same wire.
subnet_add() {
	local own=10.78.1.1 other=10.78.2
	[ $VM_ROLE = a ] || own=10.78.2.1 other=10.78.1
	ip addr add $own/24 dev eth0
	ip route add $other.0/24 dev eth0 src $own
}
subnet_del() {
	local own=10.78.1.1
	[ $VM_ROLE = a ] || own=10.78.2.1
	ip addr del $own/24 dev eth0
}

# A further address in the same subnet, which is that of the next connections.
second() { echo ${VM_LOCAL%.*}.1${VM_LOCAL##*.}; }
second_address() {
	ip addr add "$(second)/24" dev eth0
	ip route change 10.77.0.0/24 dev eth0 src "$(second)"
}
one_address() {
	ip route change 10.77.0.0/24 dev eth0 src $VM_LOCAL
	ip addr del "$(second)/24" dev eth0
}

# What this host sends takes its time.
far_away() { tc qdisc add dev eth0 root netem delay 30ms; }
close_by() { tc qdisc del dev eth0 root; }

# To the other host through a gateway, which has the Ethernet address of that host.
by_gateway() {
	local mac
	ping -c 1 -W 5 $VM_PEER >/dev/null
	mac=$(ip -j neigh show $VM_PEER dev eth0 | sed 's/.*"lladdr":"\([^"]*\)".*/\1/')
	ip neigh replace 10.77.0.99 lladdr $mac nud permanent dev eth0
	ip route add $VM_PEER/32 via 10.77.0.99 dev eth0 onlink
}
directly() {
	ip route del $VM_PEER/32
	ip neigh del 10.77.0.99 dev eth0
}

# TCP between the hosts by IPsec, but not RoCE.
ipsec_on() {
	local spi
	modprobe -a esp4 xfrm_user
	for spi in 1:10.77.0.1:10.77.0.2 2:10.77.0.2:10.77.0.1; do
		read -r spi from to <<<"${spi//:/ }"
		ip xfrm state add src $from dst $to proto esp spi 0x100$spi mode transport \
			auth 'hmac(sha256)' "0x$(printf '%064d' 7)" enc 'cbc(aes)' "0x$(printf '%032d' 9)"
		local dir=in
		[ $VM_LOCAL != $from ] || dir=out
		ip xfrm policy add src $from dst $to proto tcp dir $dir tmpl src $from dst $to proto esp mode transport
	done
}
ipsec_off() {
	ip xfrm policy flush
	ip xfrm state flush
}

second_device() {
	rdma link add rxe1 type rxe netdev eth1
	until_true 10 rxe_active rxe1
}
# A second device, and the name of the network that both are in. Linux uses one for a further link only where its
# card has an address of the subnet of the group's first connection.
second_nic_on() {
	ip addr replace "$(second)/24" dev eth1 noprefixroute
	ip route replace ${VM_LOCAL%.*}.0/24 dev eth1 metric 500
	second_device
	smc_pnet -a NET -I eth0 -D rxe0
	smc_pnet -a NET -I eth1 -D rxe1
}
second_nic_off() {
	smc_pnet -f
	rdma link del rxe1 2>/dev/null || true
	ip addr flush dev eth1 to "$(second)/24"
}

# One device on both cards, and addresses and the network's name along with it.
bridge_on() {
	rdma link del rxe0
	ip link add br0 address "$(cat /sys/class/net/eth0/address)" type bridge
	ip addr del $VM_LOCAL/24 dev eth0
	ip addr del $VM_LOCAL1/24 dev eth1
	ip link set eth0 master br0
	ip link set eth1 master br0
	ip link set br0 up
	ip addr add $VM_LOCAL/24 dev br0
	ip addr add $VM_LOCAL1/24 dev br0
	rdma link add rxe0 type rxe netdev br0
	until_true 10 rxe_active rxe0
	# Linux goes by the lowest device there is, which may be either.
	smc_pnet -a NET -I br0 -D rxe0
	smc_pnet -a NET -I eth0
	smc_pnet -a NET -I eth1
}
bridge_off() {
	smc_pnet -f
	rdma link del rxe0
	ip link del br0
	ip addr add $VM_LOCAL/24 dev eth0
	ip addr add $VM_LOCAL1/24 dev eth1
	rdma link add rxe0 type rxe netdev eth0
	until_true 10 rxe_active rxe0
}

# deaf [MATCH...]: RoCE does not arrive here any more; nobody is told.
deaf() { iptables -w -A INPUT "$@" -p udp --dport 4791 -j DROP; }
hears() { iptables -w -F INPUT; }

# A VLAN on top of the card.
vlan_add() {
	local own=10.79.0.1
	[ $VM_ROLE = a ] || own=10.79.0.2
	ip link add link eth0 name eth0.5 type vlan id 5
	ip addr add $own/24 dev eth0.5
	ip link set eth0.5 up
}
vlan_del() { ip link del eth0.5; }

conns_are() { [ "$(counter $VM_ROLE conns)" -eq $1 ]; }
groups_are() { [ "$(counter $VM_ROLE groups)" -eq $1 ]; }
# Within so many seconds.
conns_become() { until_true $2 conns_are $1; }
groups_become() { until_true $2 groups_are $1; }

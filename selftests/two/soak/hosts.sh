# SPDX-License-Identifier: GPL-2.0
# What both hosts do for the soak, each for itself. $TMP is that of both, $OWN that of one host.
# shellcheck shell=bash disable=SC2034,SC2086,SC2317 # variables and functions are for the test; words are simple; in_host calls the functions

OWN=/tmp/soak
WEB=8080 KEYS=6379 SSH=2200 ECHO=7000
SSH_OPTIONS=(-o BatchMode=yes -o StrictHostKeyChecking=no -o LogLevel=ERROR -o Ciphers=aes128-gcm@openssh.com
	-o "UserKnownHostsFile=$OWN/known" -i "$OWN/key")

## The host

# Two devices, which are ports of one network. While a cable is pulled, connect() is to wait for the other host, and not
# to learn that nobody answers there.
joins() {
	local n mac
	load_module
	until_true 20 ping -c 1 -W 1 $VM_PEER >/dev/null
	mac=$(ip -j neigh show $VM_PEER dev eth0 | sed 's/.*"lladdr":"\([^"]*\)".*/\1/')
	ip neigh replace $VM_PEER lladdr $mac nud permanent dev eth0
	for n in 0 1; do [ -e /sys/class/infiniband/rxe$n ] || plug $n; done
	smc_pnet -f
	for n in 0 1; do smc_pnet -a NET -I eth$n; done
}
# But for what every test has.
parts() {
	unplug 1
	ip neigh del $VM_PEER dev eth0
}

# The module goes, and comes again; what kernel memory there is in between.
reloads() {
	unload_module
	[ ! -d /sys/module/smc_r ] || { echo "the module is still there" >&2; return 1; }
	kernel_memory
	joins
}
# Objects of the devices, by kind: those of the devices themselves, and ours.
devices_hold() { rdma resource show | sed 's/^[0-9]*: //' | grep '^rxe[01]:' | sort; }
# In KiB: all that is in use and belongs neither to programs nor to caches; so also pages that nobody accounts for, like
# those of RMBs.
kernel_memory() {
	sync
	echo 3 >/proc/sys/vm/drop_caches
	sleep 0.2
	awk '/^MemTotal:/ { sum += $2 } /^(MemFree|Buffers|Cached|SReclaimable|AnonPages|PageTables):/ { sum -= $2 }
		END { print sum }' /proc/meminfo
}

# Whatever an earlier round left.
recovers() {
	local n
	for n in 0 1; do
		ip link set eth$n up
		until_true 20 grep -qx 1 /sys/class/net/eth$n/carrier
		[ -e /sys/class/infiniband/rxe$n ] || plug $n
		smcctl drain --undo --device rxe$n
	done
}

# Bytes, keys and folders of the programs.
own_files() {
	mkdir -p $OWN /run/sshd
	cp "$TMP/file" "$TMP/key" "$TMP/host_key" $OWN/
	chmod 600 $OWN/key $OWN/host_key
	nginx_conf $OWN $OWN $VM_LOCAL:$WEB >$OWN/nginx.conf
	sshd_conf $VM_LOCAL:$SSH $OWN/host_key "$TMP/key.pub" >$OWN/sshd_config
}

## Servers

web() { smc_run --require nginx -c $OWN/nginx.conf -e stderr; }
keys() { smc_run --require redis-server --port $KEYS --bind $VM_LOCAL --save '' --protected-mode no >$OWN/redis.out; }
ssh_daemon() { smc_run --require "$(command -v sshd)" -D -e -f $OWN/sshd_config; }
echo_server() { smc_run --require socat TCP-LISTEN:$ECHO,bind=$VM_LOCAL,reuseaddr,fork EXEC:cat; }

# ended SIGNAL: all servers of this host are.
ended() {
	local name
	for name in nginx redis-server sshd socat; do pkill -$1 -x $name || true; done
	until_true 20 no_servers
}
no_servers() { ! pgrep -x 'nginx|redis-server|sshd|sshd-session|socat' >/dev/null; }

## Clients: on and on until there is the file `stop`, and each answer has to be right

stopped() { [ -e "$TMP/stop" ]; }

# program SECONDS COMMAND...: with SMC, for so long at most. It does not begin while the cable of TCP is pulled: each message
# of a rendezvous has 6 s, and what TCP repeats may take longer then, whereupon connect() says ETIMEDOUT.
program() {
	local seconds=$1
	shift
	until_true 60 may_begin || return
	timeout $seconds smc_run "$@"
}
may_begin() { [ ! -e "$TMP/pulled" ]; }

fetches() {
	local count=0
	until stopped; do
		program 60 curl -sS -o $OWN/fetched "http://$VM_PEER:$WEB/file" || return
		cmp $OWN/file $OWN/fetched || return
		count=$((count + 1))
	done
	echo "# $VM_ROLE: $count files from nginx"
}

stores() {
	local count=0 cli=(program 60 redis-cli -h "$VM_PEER") what
	until stopped; do
		"${cli[@]}" -x set blob <$OWN/file | grep -qx OK || return
		"${cli[@]}" --raw get blob | head -c -1 | cmp - $OWN/file || return
		for what in set get; do
			program 60 redis-benchmark -h $VM_PEER -n 200 -c 5 -t $what -q >$OWN/bench.out 2>&1 || return
			! grep -i error $OWN/bench.out || return
		done
		count=$((count + 400))
	done
	echo "# $VM_ROLE: $count requests to redis"
}

copies() {
	local count=0
	until stopped; do
		program 100 scp -q -P $SSH "${SSH_OPTIONS[@]}" $OWN/file root@$VM_PEER:$OWN/copied || return
		program 100 scp -q -P $SSH "${SSH_OPTIONS[@]}" root@$VM_PEER:$OWN/copied $OWN/back || return
		cmp $OWN/file $OWN/back || return
		count=$((count + 1))
	done
	echo "# $VM_ROLE: $count files with scp there and back"
}

# One connection all the time.
echoes() {
	local sum
	rm -f $OWN/said $OWN/heard
	sum=$(some_blocks | tee >(sha256sum >$OWN/said) | timeout 400 smc_run socat -t 60 - TCP:$VM_PEER:$ECHO |
		tee >(wc -c >$OWN/heard) | sha256sum) || return
	until_true 5 test -s $OWN/heard && until_true 5 test -s $OWN/said || return
	[ "$sum" = "$(cat $OWN/said)" ] || { echo "what came back differs" >&2; return 1; }
	echo "# $VM_ROLE: $(cat $OWN/heard) bytes there and back on one connection"
}
some_blocks() {
	until stopped; do
		head -c $((RANDOM + 1)) $OWN/file
		sleep 0.05
	done
}

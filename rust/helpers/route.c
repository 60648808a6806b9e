// SPDX-License-Identifier: GPL-2.0

#include <linux/if_ether.h>
#include <net/addrconf.h>
#include <net/arp.h>
#include <net/ip6_route.h>
#include <net/ndisc.h>
#include <net/neighbour.h>
#include <net/route.h>

#include "helpers.h"

/* Looks who the gateway is; asks for its address if it is not known. The peer's is found by the device. */
static void kapi_hop_neighbour(struct dst_entry *dst, const void *destination, struct kapi_hop *hop)
{
	struct neighbour *neigh;

	if (hop->kind != KAPI_HOP_GATEWAY)
		return;
	/* A route does not keep its device, which a neighbour does. */
	rcu_read_lock();
	neigh = dst_neigh_lookup(dst, destination);
	rcu_read_unlock();
	if (!neigh)
		return;
	if (!(READ_ONCE(neigh->nud_state) & NUD_VALID)) {
		neigh_event_send(neigh, NULL);
	} else if (neigh->dev->addr_len == ETH_ALEN) {
		neigh_ha_snapshot(hop->mac, neigh, neigh->dev);
		hop->known = true;
	}
	neigh_release(neigh);
}

/*
 * Where packets from an address to another one go first, by the routes of the namespace, which the caller keeps; `hop` was
 * zeroed, and stays so without a route. A gateway that is not known yet is asked for. Process context or softirq.
 */
__rust_helper void rust_helper_route_hop4(struct net *net, u32 source, u32 destination,
					  u32 ifindex, struct kapi_hop *hop)
{
	struct flowi4 flow = { .flowi4_oif = ifindex,
			       .saddr = htonl(source), .daddr = htonl(destination) };
	struct rtable *route = ip_route_output_key(net, &flow);
	__be32 to = htonl(destination);

	if (IS_ERR(route))
		return;
	hop->kind = route->rt_uses_gateway ? KAPI_HOP_GATEWAY : KAPI_HOP_DIRECT;
	if (route->rt_gw_family == AF_INET6)
		memcpy(hop->gateway, &route->rt_gw6, sizeof(hop->gateway));
	else
		ipv6_addr_set_v4mapped(route->rt_gw4, (struct in6_addr *)hop->gateway);
	kapi_hop_neighbour(&route->dst, &to, hop);
	ip_rt_put(route);
}

/* The same of IPv6; both addresses have 16 bytes. */
__rust_helper void rust_helper_route_hop6(struct net *net, const u8 *source, const u8 *destination,
					  u32 ifindex, struct kapi_hop *hop)
{
#if IS_ENABLED(CONFIG_IPV6)
	struct flowi6 flow = { .flowi6_oif = ifindex };
	int flags = ifindex ? RT6_LOOKUP_F_IFACE : 0;
	struct dst_entry *dst;

	/* Booted with ipv6.disable=1: there are no tables of routes. */
	if (!ipv6_mod_enabled())
		return;
	memcpy(&flow.saddr, source, sizeof(flow.saddr));
	memcpy(&flow.daddr, destination, sizeof(flow.daddr));
	dst = ip6_route_output_flags(net, NULL, &flow, flags);
	if (!dst->error) {
		hop->kind = dst_rt6_info(dst)->rt6i_flags & RTF_GATEWAY ? KAPI_HOP_GATEWAY :
									  KAPI_HOP_DIRECT;
		memcpy(hop->gateway, &dst_rt6_info(dst)->rt6i_gateway, sizeof(hop->gateway));
		kapi_hop_neighbour(dst, &flow.daddr, hop);
	}
	dst_release(dst);
#endif
}

__rust_helper void rust_helper_ask_for4(struct net_device *dev, u32 source, u32 destination)
{
	arp_send(ARPOP_REQUEST, ETH_P_ARP, htonl(destination), dev, htonl(source), NULL, NULL, NULL);
}

/* Asks the network of a device, which the caller keeps, who has an address; the answer goes to the table of neighbours. */
__rust_helper void rust_helper_ask_for6(struct net_device *dev, const u8 *source, const u8 *destination)
{
#if IS_ENABLED(CONFIG_IPV6)
	struct in6_addr from, to, all;
	struct sk_buff *skb;
	bool there;

	/* Booted without IPv6: cards have GIDs that look like it all the same. The device may be on its way to another namespace. */
	rcu_read_lock();
	there = dev_net_rcu(dev)->ipv6.ndisc_sk;
	rcu_read_unlock();
	if (!there)
		return;
	memcpy(&from, source, sizeof(from));
	memcpy(&to, destination, sizeof(to));
	addrconf_addr_solict_mult(&to, &all);
	skb = ndisc_ns_create(dev, &to, &from, 0);
	if (skb)
		ndisc_send_skb(skb, &all, &from);
#endif
}

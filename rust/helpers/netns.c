// SPDX-License-Identifier: GPL-2.0

#include <linux/inetdevice.h>
#include <linux/if_vlan.h>
#include <linux/netdevice.h>
#include <linux/netfilter.h>
#include <linux/random.h>
#include <net/addrconf.h>
#include <net/net_namespace.h>
#include <net/netns/generic.h>

__rust_helper struct net *rust_helper_net_hold(struct net *net)
{
	return get_net(net);
}

__rust_helper struct net *rust_helper_net_hold_live(struct net *net)
{
	return maybe_get_net(net);
}

__rust_helper void rust_helper_net_put(struct net *net)
{
	put_net(net);
}

__rust_helper struct net *rust_helper_net_init(void)
{
	return &init_net;
}

__rust_helper u64 rust_helper_net_id(struct net *net)
{
#ifdef CONFIG_NET_NS
	return net->net_cookie;
#else
	return 0;
#endif
}

/* The namespace with a number, with a reference, unless it is on its way out. */
__rust_helper struct net *rust_helper_net_find(u64 id)
{
	struct net *net, *found = NULL;

	rcu_read_lock();
	for_each_net_rcu(net) {
		if (rust_helper_net_id(net) == id) {
			found = maybe_get_net(net);
			break;
		}
	}
	rcu_read_unlock();
	return found;
}

__rust_helper void *rust_helper_net_slot(const struct net *net, unsigned int id)
{
	return net_generic(net, id);
}

__rust_helper void rust_helper_dev_hold_one(struct net_device *dev)
{
	dev_hold(dev);
}

__rust_helper void rust_helper_dev_put_one(struct net_device *dev)
{
	dev_put(dev);
}

__rust_helper int rust_helper_dev_ifindex(const struct net_device *dev)
{
	return READ_ONCE(dev->ifindex);
}

/* To IFNAMSIZ bytes, all of them zero; a change at the same time may give a mixture of both names. */
__rust_helper void rust_helper_dev_copy_name(struct net_device *dev, char *name)
{
	kapi_copy_text(name, dev->name, IFNAMSIZ - 1);
}

/* The Ethernet address; false for a device without one. */
__rust_helper bool rust_helper_dev_mac(const struct net_device *dev, u8 *mac)
{
	if (dev->addr_len != ETH_ALEN)
		return false;
	memcpy(mac, dev->dev_addr, ETH_ALEN);
	return true;
}

/* The number of a VLAN; false for other devices. The caller keeps the device, of which that never changes. */
__rust_helper bool rust_helper_dev_vlan(const struct net_device *dev, u16 *id)
{
	if (!is_vlan_dev(dev))
		return false;
	*id = vlan_dev_vlan_id(dev);
	return true;
}

/* The device below that has this place among those, with a reference; NULL if there are not so many. */
__rust_helper struct net_device *rust_helper_dev_lower(struct net_device *dev, unsigned int place)
{
	struct list_head *iter = &dev->adj_list.lower;
	struct net_device *it;

	rcu_read_lock();
	do
		it = netdev_next_lower_dev_rcu(dev, &iter);
	while (it && place--);
	dev_hold(it);
	rcu_read_unlock();
	return it;
}

__rust_helper struct net *rust_helper_dev_net(const struct net_device *dev)
{
	return dev_net(dev);
}

/* Fills in up to max IPv4 addresses of 4 bytes and prefix lengths, behind so many that are skipped. Any context. */
__rust_helper unsigned int rust_helper_dev_ipv4(struct net_device *dev, unsigned int skip, u8 *addrs, u8 *lens,
						unsigned int max)
{
	const struct in_ifaddr *ifa;
	struct in_device *in;
	unsigned int n = 0;

	rcu_read_lock();
	in = __in_dev_get_rcu(dev);
	if (in) {
		in_dev_for_each_ifa_rcu(ifa, in) {
			if (n == max)
				break;
			if (skip && skip--)
				continue;
			memcpy(addrs + 4 * n, &ifa->ifa_local, 4);
			lens[n++] = ifa->ifa_prefixlen;
		}
	}
	rcu_read_unlock();
	return n;
}

/* The same for IPv6 addresses of 16 bytes that are not link local. */
__rust_helper unsigned int rust_helper_dev_ipv6(struct net_device *dev, unsigned int skip, u8 *addrs, u8 *lens,
						unsigned int max)
{
	unsigned int n = 0;
#if IS_ENABLED(CONFIG_IPV6)
	struct inet6_ifaddr *ifa;
	struct inet6_dev *in6;

	rcu_read_lock();
	in6 = __in6_dev_get(dev);
	if (in6) {
		list_for_each_entry_rcu(ifa, &in6->addr_list, if_list) {
			if (n == max)
				break;
			if (ipv6_addr_type(&ifa->addr) & IPV6_ADDR_LINKLOCAL)
				continue;
			if (skip && skip--)
				continue;
			memcpy(addrs + 16 * n, &ifa->addr, 16);
			lens[n++] = min(ifa->prefix_len, 128U);
		}
	}
	rcu_read_unlock();
#endif
	return n;
}

__rust_helper void rust_helper_random_bytes(void *buf, size_t len)
{
	get_random_bytes(buf, len);
}

__rust_helper u64 rust_helper_now_ms(void)
{
	return ktime_to_ms(ktime_get());
}

__rust_helper int rust_helper_nf_register(struct net *net, const struct nf_hook_ops *ops,
					  unsigned int n)
{
#ifdef CONFIG_NETFILTER
	return nf_register_net_hooks(net, ops, n);
#else
	return -EOPNOTSUPP;
#endif
}

__rust_helper void rust_helper_nf_unregister(struct net *net, const struct nf_hook_ops *ops,
					     unsigned int n)
{
#ifdef CONFIG_NETFILTER
	nf_unregister_net_hooks(net, ops, n);
#endif
}

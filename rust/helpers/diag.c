// SPDX-License-Identifier: GPL-2.0
/*
 * For the module with the handler of listings, and linked into that: it takes nothing from other modules
 * but what it borrows.
 */

#include <linux/module.h>
#include <linux/netlink.h>
#include <linux/rcupdate.h>
#include <linux/sock_diag.h>
#include <net/net_namespace.h>
#include <net/netlink.h>
#include <net/sock.h>

#ifndef __rust_helper
#define __rust_helper __used
#endif

/*
 * Begins to answer a request for a listing: `dump` fills one message after the other, in the context of who reads them.
 * `owner` is held until the last one.
 */
__rust_helper int rust_helper_diag_dump_start(struct sk_buff *skb, const struct nlmsghdr *nlh,
					      int (*dump)(struct sk_buff *skb,
							  struct netlink_callback *cb),
					      struct module *owner)
{
	struct netlink_dump_control c = {
		.dump = dump,
		.min_dump_alloc = SKB_WITH_OVERHEAD(32768),
		.module = owner,
	};
	struct net *net = sock_net(skb->sk);

	return netlink_dump_start(net->diag_nlsk, skb, nlh, &c);
}

__rust_helper bool rust_helper_nlmsg_is_dump(const struct nlmsghdr *nlh)
{
	return nlh->nlmsg_flags & NLM_F_DUMP;
}

static void kapi_diag_lent_name(char *name, size_t size, u8 family)
{
	snprintf(name, size, "kapi_lent_%u", family);
}

/*
 * What a module lends for a family; NULL if none does that is loaded and not about to go. The module stays
 * until it is given back.
 */
__rust_helper void *rust_helper_diag_borrow(u8 family)
{
	char name[16];

	kapi_diag_lent_name(name, sizeof(name), family);
	return __symbol_get(name);
}

/* What rust_helper_diag_borrow() has given; its module may go afterwards. */
__rust_helper void rust_helper_diag_give_back(u8 family)
{
	char name[16];

	kapi_diag_lent_name(name, sizeof(name), family);
	__symbol_put(name);
}

__rust_helper void rust_helper_diag_unregister(const struct sock_diag_handler *handler)
{
	sock_diag_unregister(handler);
	synchronize_rcu();
}

// SPDX-License-Identifier: GPL-2.0

#include <linux/module.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/sysctl.h>
#include <net/genetlink.h>
#include <net/netlink.h>
#include <net/sock.h>

__rust_helper int rust_helper_attr_put(struct sk_buff *skb, int type, int len, const void *data)
{
	return nla_put(skb, type, len, data);
}

__rust_helper int rust_helper_attr_put_64(struct sk_buff *skb, int type, u64 val, int pad)
{
	return nla_put_u64_64bit(skb, type, val, pad);
}

__rust_helper struct nlattr *rust_helper_attr_nest(struct sk_buff *skb, int type)
{
	return nla_nest_start(skb, type);
}

__rust_helper void rust_helper_attr_nest_end(struct sk_buff *skb, struct nlattr *nest)
{
	nla_nest_end(skb, nest);
}

__rust_helper void rust_helper_attr_nest_cancel(struct sk_buff *skb, struct nlattr *nest)
{
	nla_nest_cancel(skb, nest);
}

__rust_helper struct sk_buff *rust_helper_netlink_new(size_t len)
{
	return nlmsg_new(len, GFP_KERNEL);
}

__rust_helper int rust_helper_netlink_room(const struct sk_buff *skb)
{
	return skb_tailroom(skb);
}

__rust_helper void rust_helper_netlink_free(struct sk_buff *skb)
{
	nlmsg_free(skb);
}

__rust_helper void *rust_helper_genl_start(struct sk_buff *skb, u32 portid, u32 seq,
					   const struct genl_family *family, int flags, u8 cmd)
{
	return genlmsg_put(skb, portid, seq, family, flags, cmd);
}

__rust_helper void rust_helper_genl_end(struct sk_buff *skb, void *hdr)
{
	genlmsg_end(skb, hdr);
}

__rust_helper void rust_helper_genl_cancel(struct sk_buff *skb, void *hdr)
{
	genlmsg_cancel(skb, hdr);
}

__rust_helper int rust_helper_genl_reply(struct sk_buff *skb, struct genl_info *info)
{
	return genlmsg_reply(skb, info);
}

/* Those who get a message that goes to more than one namespace; NULL for no condition. */
struct genl_audience {
	const struct net *only;
	const struct net *except;
};

/* Whether a listener, which cannot go meanwhile, does not get the message. */
static int genl_left_out(struct sock *sk, struct sk_buff *skb, void *data)
{
	const struct genl_audience *audience = data;

	return (audience->only && sock_net(sk) != audience->only) ||
	       sock_net(sk) == audience->except;
}

/*
 * To the group's listeners in `net`, and those elsewhere that hear what happens in all namespaces, but for whom the audience
 * leaves out. Consumes `skb` in any case. May sleep.
 */
__rust_helper int rust_helper_genl_multicast(const struct genl_family *family, struct net *net,
					     struct sk_buff *skb, unsigned int group,
					     const struct net *only, const struct net *except)
{
	struct genl_audience audience = { .only = only, .except = except };

	return genlmsg_multicast_netns_filtered(family, net, skb, 0, group, GFP_KERNEL,
						genl_left_out, &audience);
}

/* Has the group's listeners in `net` know that they have missed something. Any context. */
__rust_helper void rust_helper_genl_overrun(const struct genl_family *family, struct net *net,
					    unsigned int group)
{
	genl_set_err(family, net, 0, group, -ENOBUFS);
}

__rust_helper struct net *rust_helper_genl_net(const struct genl_info *info)
{
	return genl_info_net(info);
}

__rust_helper struct genl_info *rust_helper_genl_dump_info(struct netlink_callback *cb)
{
	return (struct genl_info *)genl_info_dump(cb);
}

__rust_helper u8 rust_helper_genl_dump_cmd(struct netlink_callback *cb)
{
	return genl_dumpit_info(cb)->op.cmd;
}

/* Whether the module that has the family is initialised: where that fails it goes away, whoever holds it. */
__rust_helper bool rust_helper_genl_is_loaded(const struct genl_info *info)
{
	const struct module *module = info->family->module;

	return !module || READ_ONCE(module->state) == MODULE_STATE_LIVE;
}

/* Explains an error: whose (if that is known), and what it is. */
__rust_helper void rust_helper_genl_explain(struct genl_info *info, const struct nlattr *attr,
					    const char *name, const char *text)
{
	if (name)
		NL_SET_ERR_MSG_FMT(info->extack, "%s: %s", name, text);
	else
		NL_SET_ERR_MSG_FMT(info->extack, "%s", text);
	if (info->extack)
		info->extack->bad_attr = attr;
}

/* The same for an attribute that the request knows by its number only. */
__rust_helper void rust_helper_genl_explain_unknown(struct genl_info *info,
						    const struct nlattr *attr)
{
	NL_SET_ERR_MSG_FMT(info->extack, "attribute %d: is not known to this command",
			   nla_type(attr));
	if (info->extack)
		info->extack->bad_attr = attr;
}

__rust_helper void rust_helper_genl_missing(struct genl_info *info, u16 type, const char *name)
{
	NL_SET_ERR_MSG_FMT(info->extack, "%s: is missing", name);
	NL_SET_ERR_ATTR_MISS(info->extack, NULL, type);
}

/* The kernel has one list for all namespaces. */
__rust_helper bool rust_helper_genl_listeners(const struct genl_family *family, unsigned int group)
{
	return genl_has_listeners(family, &init_net, group);
}

__rust_helper u32 rust_helper_netlink_portid(const struct sk_buff *skb)
{
	return NETLINK_CB(skb).portid;
}

/* For requests that a task is just reading the answer to. */
__rust_helper u32 rust_helper_netlink_reader_uid(const struct sk_buff *skb, u32 uid)
{
	return from_kuid_munged(sk_user_ns(NETLINK_CB(skb).sk), make_kuid(&init_user_ns, uid));
}

__rust_helper struct net *rust_helper_netlink_net(const struct sk_buff *skb)
{
	return sock_net(skb->sk);
}

__rust_helper void *rust_helper_nlmsg_start(struct sk_buff *skb, u32 portid, u32 seq, int type,
					    int payload, int flags)
{
	return nlmsg_put(skb, portid, seq, type, payload, flags);
}

__rust_helper void *rust_helper_nlmsg_payload(void *nlh)
{
	return nlmsg_data(nlh);
}

__rust_helper int rust_helper_nlmsg_payload_len(const struct nlmsghdr *nlh)
{
	return nlmsg_len(nlh);
}

__rust_helper void rust_helper_nlmsg_finish(struct sk_buff *skb, void *nlh)
{
	nlmsg_end(skb, nlh);
}

__rust_helper void rust_helper_nlmsg_drop(struct sk_buff *skb, void *nlh)
{
	nlmsg_cancel(skb, nlh);
}

/* A table of unsigned integers with bounds, in the mount of the namespace. */
__rust_helper void rust_helper_sysctl_entry(struct ctl_table *table, const char *name, u32 *data,
					    u32 *min, u32 *max)
{
	*table = (struct ctl_table) {
		.procname = name,
		.data = data,
		.maxlen = sizeof(*data),
		.mode = 0644,
		.proc_handler = proc_douintvec_minmax,
		.extra1 = min,
		.extra2 = max,
	};
}

/* The name of something that there is none of: reads as empty, and only that can be written. */
static int kapi_no_name(const struct ctl_table *table, int write, void *buffer, size_t *lenp,
			loff_t *ppos)
{
	char value[16] = "";
	struct ctl_table copy = { .data = value, .maxlen = sizeof(value), .mode = table->mode };
	int ret = proc_dostring(&copy, write, buffer, lenp, ppos);

	return ret ?: write && value[0] ? -EINVAL : 0;
}

/* An entry for the name of something that there is none of; `name` lives as long as the table. */
__rust_helper void rust_helper_sysctl_no_name(struct ctl_table *table, const char *name)
{
	*table = (struct ctl_table) {
		.procname = name,
		.mode = 0644,
		.proc_handler = kapi_no_name,
	};
}

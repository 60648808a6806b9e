/* SPDX-License-Identifier: GPL-2.0 */
/* Types which the helpers and Rust share. */
#ifndef KAPI_HELPERS_H
#define KAPI_HELPERS_H

#include <linux/rbtree.h>
#include <linux/spinlock.h>
#include <linux/types.h>

struct sock;

/* All socks of a family: those of each namespace side by side, oldest first. */
struct kapi_sk_list {
	spinlock_t lock;
	struct rb_root root;
	u64 seq;
};

/* A sock in such a list, from its creation to its destruction. */
struct kapi_sk_link {
	struct rb_node node;
	struct sock *sk;
	const struct net *net;
	u64 seq;
};

typedef void (*kapi_sk_fn)(struct sock *sk);
typedef bool (*kapi_cond_fn)(void *arg);

/* The callbacks of a sock which report what happened to it. */
struct kapi_sk_events {
	kapi_sk_fn data_ready;
	kapi_sk_fn state_change;
	kapi_sk_fn write_space;
	kapi_sk_fn error_report;
};

/* What an outgoing packet is to whoever wants to add a TCP option to it. */
enum kapi_syn_kind {
	KAPI_SYN_NONE,
	KAPI_SYN_OFFER,		/* a SYN; the owner is the connecting sock */
	KAPI_SYN_ANSWER,	/* a SYN-ACK; the owner is the listener */
};

/* The most bytes of options that a TCP header has room for. */
#define KAPI_TCP_OPTIONS 40

/* Where an outgoing packet came from, how it leaves. */
struct kapi_egress {
	int ifindex;
	bool xfrm;
};

/* Where packets to an address go first. */
enum kapi_hop_kind {
	KAPI_HOP_NONE,		/* nowhere: there is no route */
	KAPI_HOP_DIRECT,	/* to the address itself */
	KAPI_HOP_GATEWAY,
};

struct kapi_hop {
	enum kapi_hop_kind kind;
	/* Its address; one of IPv4 is written as IPv6 does. */
	u8 gateway[16];
	/* The Ethernet address of the gateway, if there is one and it is known. */
	bool known;
	u8 mac[6];
};

/* What a PCI device is. */
struct kapi_pci {
	u16 vendor;
	u16 device;
};

#endif

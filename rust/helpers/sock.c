// SPDX-License-Identifier: GPL-2.0

#include <linux/cgroup.h>
#include <linux/errqueue.h>
#include <linux/net.h>
#include <linux/poll.h>
#include <linux/skbuff.h>
#include <linux/sock_diag.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/tcp.h>
#include <linux/wait.h>
#include <net/inet_common.h>
#include <net/inet_sock.h>
#include <net/ipv6.h>
#include <net/scm.h>
#include <net/sock.h>
#include <trace/events/sock.h>

__rust_helper void rust_helper_sock_hold(struct sock *sk)
{
	sock_hold(sk);
}

__rust_helper bool rust_helper_sock_hold_live(struct sock *sk)
{
	return refcount_inc_not_zero(&sk->sk_refcnt);
}

__rust_helper void rust_helper_sock_put(struct sock *sk)
{
	sock_put(sk);
}

__rust_helper void rust_helper_lock_sock(struct sock *sk)
{
	lock_sock(sk);
}

__rust_helper void rust_helper_sock_orphan(struct sock *sk)
{
	sock_orphan(sk);
}

__rust_helper void rust_helper_sock_graft(struct sock *sk, struct socket *sock)
{
	sock_graft(sk, sock);
	sock->state = SS_CONNECTED;
}

__rust_helper struct net *rust_helper_sock_net(const struct sock *sk)
{
	return sock_net(sk);
}

/*
 * A lock class of its own, so that a sock which is locked around an inner one of the same address
 * family is not taken for the same lock twice.
 */
__rust_helper void rust_helper_sk_lock_class(struct sock *sk, const char *spin, const char *name)
{
	static struct lock_class_key keys[4];
	int i = 0;

	if (sk->sk_family == AF_INET)
		i = 1;
	else if (sk->sk_family == AF_INET6)
		i = 2;
	sock_lock_init_class_and_name(sk, spin, &keys[i], name, &keys[3]);
}

/* Sets up a `sock` which socket(2) or accept(2) of a family of our own asked for. */
__rust_helper struct sock *rust_helper_sk_new(struct net *net, int family, struct proto *prot,
					      struct socket *sock, int protocol, int kern)
{
	struct sock *sk = sk_alloc(net, family, GFP_KERNEL, prot, kern);

	if (!sk)
		return NULL;
	sock_init_data(sock, sk);
	sk->sk_type = SOCK_STREAM;
	sk->sk_protocol = protocol;
	if (family == AF_INET)
		sk->sk_destruct = inet_sock_destruct;
#if IS_ENABLED(CONFIG_IPV6)
	if (family == AF_INET6) {
		inet_sk(sk)->pinet6 = (void *)sk + prot->ipv6_pinfo_offset;
		sk->sk_destruct = inet6_sock_destruct;
	}
#endif
	return sk;
}

/* Replaces the destructor of a sock that nobody else knows yet, and gives back what it was, which the new one calls. */
__rust_helper kapi_sk_fn rust_helper_sk_swap_destruct(struct sock *sk, kapi_sk_fn fn)
{
	kapi_sk_fn old = sk->sk_destruct;

	sk->sk_destruct = fn;
	return old;
}

/* One more, or less, in what /proc/net/sockstat and the like say of the namespace. Any context but hard interrupts. */
__rust_helper void rust_helper_sk_inuse(struct sock *sk, int val)
{
	local_bh_disable();
	sock_prot_inuse_add(sock_net(sk), sk->sk_prot_creator, val);
	local_bh_enable();
}

/*
 * What inet_sock_destruct() insists on before a sock may go. It empties the error queue, too, which the destructor of
 * a family of our own would not do.
 */
__rust_helper void rust_helper_sk_mark_dead(struct sock *sk)
{
	sk->sk_state = TCP_CLOSE;
	sock_set_flag(sk, SOCK_DEAD);
	skb_queue_purge(&sk->sk_error_queue);
}

/*
 * Has setsockopt() of SOL_SOCKET reach the family, too, and io_uring send with notifications of when
 * the memory is free again.
 */
__rust_helper void rust_helper_sk_custom_options(struct sock *sk)
{
	set_bit(SOCK_CUSTOM_SOCKOPT, &sk->sk_socket->flags);
	set_bit(SOCK_SUPPORT_ZC, &sk->sk_socket->flags);
}

/* Locks the sock: process context, without its lock. */
__rust_helper void rust_helper_sk_set_reuseport(struct sock *sk, bool on)
{
	lock_sock(sk);
	sk->sk_reuseport = on;
	release_sock(sk);
}

/* Locks the sock: process context, without its lock. */
__rust_helper void rust_helper_sk_set_zerocopy(struct sock *sk, bool on)
{
	lock_sock(sk);
	sock_valbool_flag(sk, SOCK_ZEROCOPY, on);
	release_sock(sk);
}

/* What MSG_ZEROCOPY promises: a notice in the error queue. NULL when there is no memory. */
__rust_helper struct ubuf_info *rust_helper_sk_completion_new(struct sock *sk, size_t len)
{
	return msg_zerocopy_realloc(sk, len, NULL, false);
}

__rust_helper void rust_helper_sk_completion_copied(struct ubuf_info *uarg)
{
	uarg_to_msgzc(uarg)->zerocopy = 0;
	net_zcopy_put(uarg);
}

__rust_helper void rust_helper_sk_completion_abort(struct ubuf_info *uarg)
{
	net_zcopy_put_abort(uarg, true);
}

__rust_helper bool rust_helper_sk_has_notices(const struct sock *sk)
{
	return !skb_queue_empty_lockless(&sk->sk_error_queue);
}

/* The first message of the error queue, or -EAGAIN, for recvmsg() with MSG_ERRQUEUE. Writes to the program's memory. */
__rust_helper int rust_helper_sk_recv_notice(struct sock *sk, struct msghdr *msg)
{
	int len = min_t(size_t, msg_data_left(msg), INT_MAX);

	if (sk->sk_family == AF_INET || sk->sk_family == AF_INET6)
		return inet_recv_error(sk, msg, len);
	/* Of a family of its own, whose protocol says which IP is below: 1 (SMCPROTO_SMC6) is IPv6. */
	if (sk->sk_protocol == 1)
		return sock_recv_errqueue(sk, msg, len, SOL_IPV6, IPV6_RECVERR);
	return sock_recv_errqueue(sk, msg, len, SOL_IP, IP_RECVERR);
}

/* Are the control messages such as TCP takes? What they ask for has no meaning here. */
__rust_helper int rust_helper_sk_check_control(struct sock *sk, struct msghdr *msg)
{
	struct sockcm_cookie cookie;

	sockcm_init(&cookie, sk);
	return sock_cmsg_send(sk, msg, &cookie) ? -EINVAL : 0;
}

__rust_helper bool rust_helper_sk_wants_stamps(const struct sock *sk)
{
	return sock_flag(sk, SOCK_RCVTSTAMP) || READ_ONCE(sk->sk_tsflags);
}

__rust_helper s64 rust_helper_now_real_ns(void)
{
	return ktime_get_real_ns();
}

/* SO_TIMESTAMP and SO_TIMESTAMPNS, in the layout of either era. */
static void kapi_put_rcvtstamp(const struct sock *sk, struct msghdr *msg, s64 ns)
{
	bool nano = sock_flag(sk, SOCK_RCVTSTAMPNS);
	struct timespec64 ts = ns_to_timespec64(ns);
	/* Both new layouts are two 64-bit words; the old ones are two longs. */
	s64 wide[2] = { ts.tv_sec, nano ? ts.tv_nsec : ts.tv_nsec / NSEC_PER_USEC };
	long old[2] = { wide[0], wide[1] };

	if (sock_flag(sk, SOCK_TSTAMP_NEW))
		put_cmsg(msg, SOL_SOCKET, nano ? SO_TIMESTAMPNS_NEW : SO_TIMESTAMP_NEW,
			 sizeof(wide), wide);
	else
		put_cmsg(msg, SOL_SOCKET, nano ? SO_TIMESTAMPNS_OLD : SO_TIMESTAMP_OLD,
			 sizeof(old), old);
}

/* Time stamps of received data, in those forms that the sock was asked for. Writes to the program's memory. */
__rust_helper void rust_helper_sk_put_stamp(struct sock *sk, struct msghdr *msg, s64 ns)
{
	struct scm_timestamping_internal stamps = { .ts[0] = ns };
	u32 flags = READ_ONCE(sk->sk_tsflags);

	if (sock_flag(sk, SOCK_RCVTSTAMP))
		kapi_put_rcvtstamp(sk, msg, ns);
	if (!(flags & SOF_TIMESTAMPING_SOFTWARE))
		return;
	if (!(flags & SOF_TIMESTAMPING_RX_SOFTWARE) && flags & SOF_TIMESTAMPING_OPT_RX_FILTER)
		return;
	if (sock_flag(sk, SOCK_TSTAMP_NEW))
		put_cmsg_scm_timestamping64(msg, &stamps);
	else
		put_cmsg_scm_timestamping(msg, &stamps);
}

/* How much is left to be read: for io_uring, and as a control message. */
__rust_helper void rust_helper_msg_put_left(struct msghdr *msg, int left, bool told)
{
	msg->msg_inq = left;
	if (told)
		put_cmsg(msg, SOL_TCP, TCP_CM_INQ, sizeof(left), &left);
}

/*
 * Wakes who waits for `mask`, and signals who asked for that. Any context but hard interrupts, with or without the lock of
 * the sock.
 */
__rust_helper void rust_helper_sk_wake(struct sock *sk, unsigned int mask, int how, int band)
{
	struct socket_wq *wq;

	rcu_read_lock();
	wq = rcu_dereference(sk->sk_wq);
	if (skwq_has_sleeper(wq))
		wake_up_interruptible_sync_poll(&wq->wait, (__force __poll_t)mask);
	sk_wake_async_rcu(sk, how, band);
	rcu_read_unlock();
}

/* The same of readers, told to whoever traces `sock:sk_data_ready`; otherwise a jump that is patched. */
__rust_helper void rust_helper_sk_wake_readers(struct sock *sk, unsigned int mask)
{
	trace_sk_data_ready(sk);
	rust_helper_sk_wake(sk, mask, SOCK_WAKE_WAITD, POLL_IN);
}

/* Wakes who waits for anything. Any context but hard interrupts, with or without the lock of the sock. */
__rust_helper void rust_helper_sk_wake_all(struct sock *sk)
{
	struct socket_wq *wq;

	rcu_read_lock();
	wq = rcu_dereference(sk->sk_wq);
	if (skwq_has_sleeper(wq))
		wake_up_interruptible_all(&wq->wait);
	rcu_read_unlock();
}

/* SIGURG for the owner of the file, which the callback lock keeps. Any context but hard interrupts, without that lock. */
__rust_helper void rust_helper_sk_sigurg(struct sock *sk)
{
	read_lock_bh(&sk->sk_callback_lock);
	sk_send_sigurg(sk);
	read_unlock_bh(&sk->sk_callback_lock);
}

/* Has the next sk_wake() for room send a signal, too. Who calls it looks for room once more afterwards. Any context. */
__rust_helper void rust_helper_sk_note_no_space(struct sock *sk)
{
	struct socket_wq *wq;

	rcu_read_lock();
	wq = rcu_dereference(sk->sk_wq);
	if (wq) {
		set_bit(SOCKWQ_ASYNC_NOSPACE, &wq->flags);
		/* Pairs with the barrier in skwq_has_sleeper(); the caller looks again now. */
		smp_mb();
	}
	rcu_read_unlock();
}

/*
 * Sleeps until cond(arg) holds; called and returns with the sock locked, which is released while
 * asleep. Returns 0, -EAGAIN when no time is left, or what an interrupted call has to return.
 */
__rust_helper int rust_helper_sk_wait(struct sock *sk, long *timeo, kapi_cond_fn cond,
				      void *arg)
{
	DEFINE_WAIT_FUNC(wait, woken_wake_function);
	wait_queue_head_t *head;
	int err = 0;

	if (!rcu_access_pointer(sk->sk_wq))
		return cond(arg) ? 0 : -EAGAIN;
	head = sk_sleep(sk);
	add_wait_queue(head, &wait);
	/* Pairs with the barrier in skwq_has_sleeper(): who changes what cond() looks at sees us, or we see the change. */
	smp_mb();
	while (!cond(arg)) {
		if (!*timeo) {
			err = -EAGAIN;
			break;
		}
		if (signal_pending(current)) {
			err = sock_intr_errno(*timeo);
			break;
		}
		release_sock(sk);
		*timeo = wait_woken(&wait, TASK_INTERRUPTIBLE, *timeo);
		lock_sock(sk);
	}
	remove_wait_queue(head, &wait);
	return err;
}

__rust_helper void rust_helper_send_sigpipe_current(void)
{
	send_sig(SIGPIPE, current, 0);
}

__rust_helper bool rust_helper_signal_pending_current(void)
{
	return signal_pending(current);
}

__rust_helper bool rust_helper_current_exiting(void)
{
	return current->flags & PF_EXITING;
}

__rust_helper void rust_helper_sock_poll_wait(struct file *file, struct socket *sock,
					      struct poll_table_struct *p)
{
	sock_poll_wait(file, sock, p);
}

__rust_helper long rust_helper_sk_sndtimeo(const struct sock *sk, bool nonblock)
{
	return sock_sndtimeo(sk, nonblock);
}

__rust_helper long rust_helper_sk_rcvtimeo(const struct sock *sk, bool nonblock)
{
	return sock_rcvtimeo(sk, nonblock);
}

__rust_helper int rust_helper_sk_error(struct sock *sk)
{
	return sock_error(sk);
}

__rust_helper int rust_helper_sk_err(const struct sock *sk)
{
	return READ_ONCE(sk->sk_err);
}

__rust_helper void rust_helper_sk_set_err(struct sock *sk, int err)
{
	WRITE_ONCE(sk->sk_err, err);
}

__rust_helper u8 rust_helper_sk_state(const struct sock *sk)
{
	return smp_load_acquire(&sk->sk_state);
}

__rust_helper void rust_helper_sk_set_state(struct sock *sk, u8 state)
{
	smp_store_release(&sk->sk_state, state);
}

__rust_helper u8 *rust_helper_sk_shutdown(struct sock *sk)
{
	return &sk->sk_shutdown;
}

__rust_helper int *rust_helper_sk_rcvlowat(struct sock *sk)
{
	return &sk->sk_rcvlowat;
}

__rust_helper int *rust_helper_sk_sndbuf(struct sock *sk)
{
	return &sk->sk_sndbuf;
}

__rust_helper int *rust_helper_sk_rcvbuf(struct sock *sk)
{
	return &sk->sk_rcvbuf;
}

__rust_helper u8 rust_helper_sk_userlocks(const struct sock *sk)
{
	return sk->sk_userlocks;
}

__rust_helper bool rust_helper_sk_flag(const struct sock *sk, int flag)
{
	return sock_flag(sk, flag);
}

__rust_helper unsigned long rust_helper_sk_lingertime(const struct sock *sk)
{
	return READ_ONCE(sk->sk_lingertime);
}

__rust_helper bool rust_helper_sk_reuse(const struct sock *sk)
{
	return sk->sk_reuse == SK_CAN_REUSE;
}

__rust_helper bool rust_helper_sk_reuseport(const struct sock *sk)
{
	return sk->sk_reuseport;
}

__rust_helper u32 rust_helper_sk_priority(const struct sock *sk)
{
	return READ_ONCE(sk->sk_priority);
}

__rust_helper u32 rust_helper_sk_busy_poll(const struct sock *sk)
{
#ifdef CONFIG_NET_RX_BUSY_POLL
	return READ_ONCE(sk->sk_ll_usec);
#else
	return 0;
#endif
}

/* Makes use of the processor while somebody else does not want it; false when it is to end. */
__rust_helper bool rust_helper_spin_once(u64 until_ns)
{
	if (need_resched() || signal_pending(current) || ktime_get_ns() >= until_ns)
		return false;
	cpu_relax();
	return true;
}

__rust_helper u64 rust_helper_now_ns(void)
{
	return ktime_get_ns();
}

__rust_helper void rust_helper_sk_store_priority(struct sock *sk, u32 val)
{
	WRITE_ONCE(sk->sk_priority, val);
}

__rust_helper u32 rust_helper_sk_mark(const struct sock *sk)
{
	return READ_ONCE(sk->sk_mark);
}

__rust_helper int rust_helper_sk_bound_dev_if(const struct sock *sk)
{
	return READ_ONCE(sk->sk_bound_dev_if);
}

__rust_helper u16 rust_helper_sk_family(const struct sock *sk)
{
	return sk->sk_family;
}

__rust_helper u16 rust_helper_sk_protocol(const struct sock *sk)
{
	return sk->sk_protocol;
}

__rust_helper struct proto *rust_helper_sk_prot(const struct sock *sk)
{
	return sk->sk_prot_creator;
}

__rust_helper bool rust_helper_sk_has_file(const struct sock *sk)
{
	return READ_ONCE(sk->sk_socket);
}

/* The number by which listings know a sock, made with the first question. Any context. */
__rust_helper u64 rust_helper_sk_cookie(struct sock *sk)
{
	u32 cookie[2];

	sock_diag_save_cookie(sk, cookie);
	return cookie[0] | (u64)cookie[1] << 32;
}

__rust_helper u64 rust_helper_sk_ino(const struct sock *sk)
{
	return sock_i_ino(sk);
}

__rust_helper u32 rust_helper_sk_uid_raw(const struct sock *sk)
{
	return from_kuid_munged(&init_user_ns, sk_uid(sk));
}

__rust_helper int rust_helper_sk_peek_off(const struct sock *sk)
{
	return READ_ONCE(sk->sk_peek_off);
}

__rust_helper void rust_helper_sk_set_peek_off(struct sock *sk, int val)
{
	WRITE_ONCE(sk->sk_peek_off, val);
}

/* The addresses which generic readers (audit, cgroup programs, /proc) expect in a sock. */
__rust_helper void rust_helper_sk_set_inet4(struct sock *sk, __be32 saddr, __be16 sport,
					    __be32 daddr, __be16 dport)
{
	sk->sk_rcv_saddr = saddr;
	inet_sk(sk)->inet_saddr = saddr;
	sk->sk_num = ntohs(sport);
	inet_sk(sk)->inet_sport = sport;
	sk->sk_daddr = daddr;
	sk->sk_dport = dport;
}

__rust_helper int rust_helper_copy_from_sockptr(void *dst, sockptr_t src, size_t len)
{
	return copy_from_sockptr(dst, src, len);
}

__rust_helper int rust_helper_put_user_int(int val, unsigned long addr)
{
	return put_user(val, (int __user *)addr);
}

__rust_helper int rust_helper_get_user_int(int *val, unsigned long addr)
{
	return get_user(*val, (int __user *)addr);
}

__rust_helper unsigned long rust_helper_compat_ptr_value(unsigned long arg)
{
#ifdef CONFIG_COMPAT
	return (unsigned long)compat_ptr(arg);
#else
	return arg;
#endif
}

__rust_helper bool rust_helper_may_sleep(void)
{
	return preemptible() && !rcu_preempt_depth();
}

/* Before there are socks of the family. */
__rust_helper void rust_helper_sk_list_init(struct kapi_sk_list *list)
{
	static struct lock_class_key key;

	spin_lock_init(&list->lock);
	lockdep_set_class_and_name(&list->lock, &key, "smc_sockets");
	list->root = RB_ROOT;
	/* Above all numbers there were when the module was loaded before. */
	list->seq = ktime_get_ns();
}

static bool kapi_sk_is_behind(const struct kapi_sk_link *link, const struct net *net, u64 seq)
{
	return link->net == net ? link->seq > seq : link->net > net;
}

static bool kapi_sk_before(struct rb_node *node, const struct rb_node *other)
{
	const struct kapi_sk_link *link = rb_entry(node, struct kapi_sk_link, node);

	return kapi_sk_is_behind(rb_entry(other, struct kapi_sk_link, node), link->net, link->seq);
}

/* A new sock, which is in the list until its destructor takes it out; the link lives as long. No reference is taken. */
__rust_helper void rust_helper_sk_list_add(struct kapi_sk_list *list, struct kapi_sk_link *link,
					   struct sock *sk)
{
	link->sk = sk;
	link->net = sock_net(sk);
	spin_lock_bh(&list->lock);
	link->seq = ++list->seq;
	rb_add(&link->node, &list->root, kapi_sk_before);
	spin_unlock_bh(&list->lock);
}

/* From the destructor; who finds it before that gets no reference any more. Any context but hard interrupts. */
__rust_helper void rust_helper_sk_list_del(struct kapi_sk_list *list, struct kapi_sk_link *link)
{
	spin_lock_bh(&list->lock);
	rb_erase(&link->node, &list->root);
	spin_unlock_bh(&list->lock);
}

/* The number of the newest sock; those to come have others above. */
__rust_helper u64 rust_helper_sk_list_last(struct kapi_sk_list *list)
{
	u64 seq;

	spin_lock_bh(&list->lock);
	seq = list->seq;
	spin_unlock_bh(&list->lock);
	return seq;
}

/* The first sock of a namespace with a number above `seq`, with a reference. */
__rust_helper struct sock *rust_helper_sk_list_next(struct kapi_sk_list *list, u64 seq, const struct net *net)
{
	struct rb_node *node, *first = NULL;
	struct sock *found = NULL;
	struct kapi_sk_link *it;

	spin_lock_bh(&list->lock);
	for (node = list->root.rb_node; node;) {
		if (kapi_sk_is_behind(rb_entry(node, struct kapi_sk_link, node), net, seq)) {
			first = node;
			node = node->rb_left;
		} else {
			node = node->rb_right;
		}
	}
	/* Those which are going are few. */
	for (node = first; node && !found; node = rb_next(node)) {
		it = rb_entry(node, struct kapi_sk_link, node);
		if (it->net != net)
			break;
		if (refcount_inc_not_zero(&it->sk->sk_refcnt))
			found = it->sk;
	}
	spin_unlock_bh(&list->lock);
	return found;
}

/* Whether the sock is of a control group, itself or by a group within that. */
__rust_helper bool rust_helper_sk_in_cgroup(struct sock *sk, u64 id)
{
#ifdef CONFIG_SOCK_CGROUP_DATA
	struct cgroup *group = sock_cgroup_ptr(&sk->sk_cgrp_data);

	for (; group; group = cgroup_parent(group))
		if (cgroup_id(group) == id)
			return true;
#endif
	return false;
}

/* What the task allocates is charged to the memory group of the sock from now on; gives whom it was charged to. */
__rust_helper struct mem_cgroup *rust_helper_memory_group_enter(const struct sock *sk)
{
	return set_active_memcg(mem_cgroup_from_sk(sk));
}

__rust_helper void rust_helper_memory_group_leave(struct mem_cgroup *before)
{
	set_active_memcg(before);
}

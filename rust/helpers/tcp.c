// SPDX-License-Identifier: GPL-2.0

#include <linux/cgroup.h>
#include <linux/compat.h>
#include <linux/etherdevice.h>
#include <linux/ipv6.h>
#include <linux/netfilter.h>
#include <linux/sched/mm.h>
#include <linux/security.h>
#include <linux/skbuff.h>
#include <linux/tcp.h>
#include <net/checksum.h>
#include <net/dst.h>
#include <net/inet_common.h>
#include <net/inet_connection_sock.h>
#include <net/inet_hashtables.h>
#include <net/ipv6.h>
#include <net/tcp.h>

/* Whose data a sock has: others, a sockmap for one, mark theirs with one flag more than we do. */
static bool kapi_is_ours(uintptr_t data)
{
	return (data & ~SK_USER_DATA_PTRMASK) == SK_USER_DATA_NOCOPY;
}

/*
 * Replaces the callbacks of a TCP sock, and gives back what they were. False, with nothing done, if somebody else has put
 * data of theirs there. A child of a listener of ours has the mark of ours already, and no data.
 */
__rust_helper bool rust_helper_tcp_hook(struct sock *sk, void *data,
					const struct kapi_sk_events *ours,
					struct kapi_sk_events *saved)
{
	write_lock_bh(&sk->sk_callback_lock);
	if ((uintptr_t)rcu_access_pointer(__sk_user_data(sk)) & ~SK_USER_DATA_NOCOPY) {
		write_unlock_bh(&sk->sk_callback_lock);
		return false;
	}
	saved->data_ready = sk->sk_data_ready;
	saved->state_change = sk->sk_state_change;
	saved->write_space = sk->sk_write_space;
	saved->error_report = sk->sk_error_report;
	__rcu_assign_sk_user_data_with_flags(sk, data, SK_USER_DATA_NOCOPY);
	sk->sk_data_ready = ours->data_ready;
	sk->sk_state_change = ours->state_change;
	sk->sk_write_space = ours->write_space;
	sk->sk_error_report = ours->error_report;
	write_unlock_bh(&sk->sk_callback_lock);
	return true;
}

/* Callbacks that somebody else has replaced meanwhile stay. */
static void kapi_replace(struct sock *sk, const struct kapi_sk_events *old,
			 const struct kapi_sk_events *new)
{
	if (sk->sk_data_ready == old->data_ready)
		sk->sk_data_ready = new->data_ready;
	if (sk->sk_state_change == old->state_change)
		sk->sk_state_change = new->state_change;
	if (sk->sk_write_space == old->write_space)
		sk->sk_write_space = new->write_space;
	if (sk->sk_error_report == old->error_report)
		sk->sk_error_report = new->error_report;
}

/*
 * Listeners of ours have children like those of any other one: who gets a child, and when, is not ours to say. (A listener
 * that is ended from outside may hand them to one of somebody else, for whom nobody would be woken otherwise, and
 * which would call us after the module is gone.)
 */
static DEFINE_SPINLOCK(kapi_listening_lock);
static struct kapi_listening {
	/* What listeners have, in place of what. */
	struct inet_connection_sock_af_ops ops;
	const struct inet_connection_sock_af_ops *original;
} kapi_listening[3];
/* Callbacks of ours, and those that all TCP socks begin with. */
static struct kapi_sk_events kapi_ours, kapi_plain;

/* What listeners had in place of what they have; anything else is given back as it is. A row that is used is never changed. */
static const struct inet_connection_sock_af_ops *kapi_original(const struct inet_connection_sock_af_ops *ops)
{
	for (int i = 0; i < ARRAY_SIZE(kapi_listening); i++)
		if (ops == &kapi_listening[i].ops)
			return kapi_listening[i].original;
	return ops;
}

/* Whether a sock has its children made by us. */
static bool kapi_makes_children(const struct sock *sk)
{
	const struct inet_connection_sock_af_ops *ops = READ_ONCE(inet_csk(sk)->icsk_af_ops);

	return kapi_original(ops) != ops;
}

/* The child is locked, and nobody has seen it yet that would not lock it. */
static struct sock *kapi_syn_recv_sock(const struct sock *sk, struct sk_buff *skb, struct request_sock *req,
				       struct dst_entry *dst, struct request_sock *req_unhash, bool *own_req,
				       void (*opt_child_init)(struct sock *newsk, const struct sock *sk))
{
	/* The listener may be ending, and have its own again. */
	const struct inet_connection_sock_af_ops *ops = kapi_original(READ_ONCE(inet_csk(sk)->icsk_af_ops));
	struct sock *child;

	child = ops->syn_recv_sock(sk, skb, req, dst, req_unhash, own_req, opt_child_init);
	if (child) {
		WRITE_ONCE(inet_csk(child)->icsk_af_ops, kapi_original(inet_csk(child)->icsk_af_ops));
		kapi_replace(child, &kapi_ours, &kapi_plain);
		/*
		 * It is going to be hooked: a BPF program that sees it before may not have it put into a sockmap. (Nor those
		 * that a listener leaves to one of somebody else when it ends, for as long as they are.)
		 */
		__rcu_assign_sk_user_data_with_flags(child, NULL, SK_USER_DATA_NOCOPY);
#if IS_ENABLED(CONFIG_SMC)
		tcp_sk(child)->smc_hs_congested = NULL;
#endif
	}
	return child;
}

/* A locked sock is about to listen, hooked with `ours` in place of `saved`, which are the same for all. */
__rust_helper void rust_helper_tcp_begin_listening(struct sock *sk, const struct kapi_sk_events *ours,
						   const struct kapi_sk_events *saved)
{
	const struct inet_connection_sock_af_ops *ops = kapi_original(inet_csk(sk)->icsk_af_ops);

	spin_lock_bh(&kapi_listening_lock);
	for (int i = 0; i < ARRAY_SIZE(kapi_listening); i++) {
		struct kapi_listening *this = &kapi_listening[i];

		if (!this->original) {
			kapi_ours = *ours;
			kapi_plain = *saved;
			this->ops = *ops;
			this->ops.syn_recv_sock = kapi_syn_recv_sock;
			this->original = ops;
		}
		if (this->original == ops) {
			smp_store_release(&inet_csk(sk)->icsk_af_ops, &this->ops);
			break;
		}
	}
	spin_unlock_bh(&kapi_listening_lock);
}

/* Whether somebody has locked the sock, in process context. */
__rust_helper bool rust_helper_tcp_is_owned(const struct sock *sk)
{
	return READ_ONCE(sk->sk_lock.owned);
}

/*
 * For whoever gives up a sock: he waits for the peer if SO_LINGER and he say so, and a thread of the kernel never. What was
 * sent goes out all the same.
 */
__rust_helper void rust_helper_tcp_linger(struct sock *sk, bool waits)
{
	if (waits && !(current->flags & PF_KTHREAD))
		return;
	lock_sock(sk);
	if (sk->sk_lingertime)
		sock_reset_flag(sk, SOCK_LINGER);
	release_sock(sk);
}

/* Whether a locked sock has listened, and has still what it had for that. */
__rust_helper bool rust_helper_tcp_has_listened(const struct sock *sk)
{
	return sk->sk_state != TCP_LISTEN && kapi_makes_children(sk);
}

/*
 * Gives such a one back what it had before. Whoever was about to make a child of it when it ended, in softirq and without
 * its lock, must be through: he would call what it has next.
 */
__rust_helper void rust_helper_tcp_end_listening(struct sock *sk)
{
	WRITE_ONCE(inet_csk(sk)->icsk_af_ops, kapi_original(inet_csk(sk)->icsk_af_ops));
}

/* Gives a locked sock back what it had, but for callbacks which somebody else has replaced meanwhile. */
__rust_helper void rust_helper_tcp_unhook(struct sock *sk, const struct kapi_sk_events *ours,
					  const struct kapi_sk_events *saved)
{
	write_lock_bh(&sk->sk_callback_lock);
	kapi_replace(sk, ours, saved);
	if (kapi_is_ours((uintptr_t)rcu_access_pointer(__sk_user_data(sk))))
		rcu_assign_sk_user_data(sk, NULL);
	write_unlock_bh(&sk->sk_callback_lock);
	/* After the callbacks: who makes a child without us inherits those. */
	smp_store_release(&inet_csk(sk)->icsk_af_ops, kapi_original(inet_csk(sk)->icsk_af_ops));
}

/* The data of a hooked sock; it stays what it is until the matching unlock. */
__rust_helper void *rust_helper_tcp_data_lock(struct sock *sk)
{
	uintptr_t data;

	read_lock_bh(&sk->sk_callback_lock);
	data = (uintptr_t)rcu_dereference_check(__sk_user_data(sk),
						lockdep_is_held(&sk->sk_callback_lock));
	if (!kapi_is_ours(data))
		return NULL;
	return (void *)(data & SK_USER_DATA_PTRMASK);
}

__rust_helper void rust_helper_tcp_data_unlock(struct sock *sk)
{
	read_unlock_bh(&sk->sk_callback_lock);
}

struct kapi_late {
	struct work_struct work;
	struct sock *sk;
	kapi_sk_fn fn;
};

/* Gives up the reference to the sock that rust_helper_tcp_later() has taken, and the memory of the item. */
static void kapi_late_run(struct work_struct *work)
{
	struct kapi_late *late = container_of(work, struct kapi_late, work);

	late->fn(late->sk);
	sock_put(late->sk);
	kfree(late);
}

/*
 * Drivers report time stamps of what was sent in their interrupts, in which nothing of ours may be locked: then `fn` runs
 * on a work queue, if there is memory for that; the stamp itself is in the error queue in any case. False in other
 * contexts, with nothing done.
 */
__rust_helper bool rust_helper_tcp_later(struct sock *sk, kapi_sk_fn fn, struct workqueue_struct *queue)
{
	struct kapi_late *late;

	if (!in_hardirq() && !irqs_disabled())
		return false;
	late = queue ? kmalloc(sizeof(*late), GFP_ATOMIC) : NULL;
	if (!late)
		return true;
	/* A sock may be about to go that only waits for the end of what it has sent. */
	if (!refcount_inc_not_zero(&sk->sk_refcnt)) {
		kfree(late);
		return true;
	}
	INIT_WORK(&late->work, kapi_late_run);
	late->sk = sk;
	late->fn = fn;
	queue_work(queue, &late->work);
	return true;
}

__rust_helper void rust_helper_callback_write_lock(struct sock *sk)
{
	write_lock_bh(&sk->sk_callback_lock);
}

__rust_helper void rust_helper_callback_write_unlock(struct sock *sk)
{
	write_unlock_bh(&sk->sk_callback_lock);
}

/* Is this sock hooked at all? True only for socks whose data is ours. */
__rust_helper bool rust_helper_tcp_is_hooked(const struct sock *sk, kapi_sk_fn data_ready)
{
	return READ_ONCE(sk->sk_data_ready) == data_ready;
}

__rust_helper int rust_helper_tcp_connect_locked(struct socket *sock, void *addr, int len)
{
	return __inet_stream_connect(sock, addr, len, O_NONBLOCK, 0);
}

/* Has a locked sock without a connection listen or connect no more, and gives up its port. */
__rust_helper void rust_helper_tcp_vacate(struct sock *sk)
{
	sk->sk_userlocks &= ~SOCK_BINDPORT_LOCK;
	if (sk->sk_state == TCP_LISTEN || sk->sk_state == TCP_SYN_SENT)
		sk->sk_prot->disconnect(sk, 0);
	else if (sk->sk_state == TCP_CLOSE && inet_csk(sk)->icsk_bind_hash)
		sk->sk_prot->put_port(sk);
}

__rust_helper int rust_helper_tcp_bind(struct socket *sock, void *addr, int len)
{
	return kernel_bind(sock, addr, len);
}

__rust_helper int rust_helper_tcp_getname(struct socket *sock, struct sockaddr_storage *addr,
					  int peer)
{
	return READ_ONCE(sock->ops)->getname(sock, (struct sockaddr *)addr, peer);
}

/* Bytes of the kernel, as many as there is room for: a number, or -EAGAIN and other errors. Locks the sock: process context.
 * A program's TCP_CORK is for its own data: these leave at once, if TCP has nothing else under way. So are the times of
 * transmission that it wants to be told.
 */
__rust_helper int rust_helper_tcp_send_bytes(struct socket *sock, const void *buf, size_t len)
{
	struct msghdr msg = { .msg_flags = MSG_DONTWAIT | MSG_NOSIGNAL };
	struct kvec vec = { .iov_base = (void *)buf, .iov_len = len };
	struct sock *sk = sock->sk;
	unsigned int flags;
	int sent;
	u32 stamps;
	u8 cork;

	iov_iter_kvec(&msg.msg_iter, ITER_SOURCE, &vec, 1, len);
	lock_sock(sk);
	cork = tcp_sk(sk)->nonagle & TCP_NAGLE_CORK;
	tcp_sk(sk)->nonagle &= ~TCP_NAGLE_CORK;
	stamps = READ_ONCE(sk->sk_tsflags);
	WRITE_ONCE(sk->sk_tsflags, stamps & ~SOF_TIMESTAMPING_TX_RECORD_MASK);
	/*
	 * A peer decides when there is something to say, and the program's memory group pays. Where that is at
	 * its limit, TCP gets the little it needs anyway, but has somebody killed before. Not for this. What has
	 * come meanwhile, which release_sock() looks at, is none of it.
	 */
	flags = memalloc_noreclaim_save();
	sent = READ_ONCE(sock->ops)->sendmsg_locked(sk, &msg, len);
	memalloc_noreclaim_restore(flags);
	WRITE_ONCE(sk->sk_tsflags, stamps);
	tcp_sk(sk)->nonagle |= cork;
	release_sock(sk);
	return sent;
}

/* What has come, without waiting, to memory of the kernel; 0 at the end, or -EAGAIN. Locks the sock: process context. */
__rust_helper int rust_helper_tcp_recv_bytes(struct socket *sock, void *buf, size_t len, int flags)
{
	struct msghdr msg = { .msg_flags = MSG_DONTWAIT };
	struct kvec vec = { .iov_base = buf, .iov_len = len };

	iov_iter_kvec(&msg.msg_iter, ITER_DEST, &vec, 1, len);
	return READ_ONCE(sock->ops)->recvmsg(sock, &msg, len, flags | MSG_DONTWAIT);
}

static int kapi_send_nothing(struct socket *sock, struct msghdr *msg, size_t len)
{
	return 0;
}

static const struct proto_ops kapi_asking_ops = {
	.owner = THIS_MODULE,
	.sendmsg = kapi_send_nothing,
};

/*
 * The last socket by which was asked, for the next question; who takes one has it for itself. They
 * are all alike, and made by the kernel in the eyes of security modules.
 */
static DEFINE_PER_CPU(struct socket *, kapi_asking_inet);
static DEFINE_PER_CPU(struct socket *, kapi_asking_inet6);

/* A socket for one question, of the caller alone until kapi_asking_put(). May sleep. */
static int kapi_asking_get(u16 family, struct socket **sock)
{
	*sock = family == AF_INET6 ? this_cpu_xchg(kapi_asking_inet6, NULL) :
				     this_cpu_xchg(kapi_asking_inet, NULL);
	if (*sock)
		return 0;
	return sock_create_lite(family, SOCK_STREAM, IPPROTO_TCP, sock);
}

/* Keeps it for the next question on this processor, in place of the one that is kept. May sleep. */
static void kapi_asking_put(u16 family, struct socket *sock)
{
	sock = family == AF_INET6 ? this_cpu_xchg(kapi_asking_inet6, sock) :
				    this_cpu_xchg(kapi_asking_inet, sock);
	if (sock)
		sock_release(sock);
}

/* When nobody asks any more. */
__rust_helper void rust_helper_tcp_asking_end(void)
{
	int cpu;

	for_each_possible_cpu(cpu) {
		struct socket **all[] = { per_cpu_ptr(&kapi_asking_inet, cpu),
					  per_cpu_ptr(&kapi_asking_inet6, cpu) };
		int i;

		for (i = 0; i < ARRAY_SIZE(all); i++) {
			struct socket *sock = xchg(all[i], NULL);

			if (sock)
				sock_release(sock);
		}
	}
}

/*
 * Asks security modules whether the caller may connect a TCP sock. They were asked about the outer
 * socket, but some have rules for TCP alone (Landlock), and find it by the protocol of the sock. The
 * hook of connect() cannot be called from a module; that of sendmsg() can, and stands for both where
 * a message opens a connection (MSG_FASTOPEN). So one is sent by a socket that has the sock for as
 * long, and sends nothing. (Not by the inner socket itself: others may be sending by that.)
 */
__rust_helper int rust_helper_tcp_may_connect(struct socket *sock, void *addr, int len)
{
	struct msghdr msg = {
		.msg_name = addr,
		.msg_namelen = len,
		.msg_flags = MSG_FASTOPEN | MSG_DONTWAIT | MSG_NOSIGNAL,
	};
	u16 family = sock->sk->sk_family;
	struct socket *asking;
	int err;

	err = kapi_asking_get(family, &asking);
	if (err)
		return err;
	asking->ops = &kapi_asking_ops;
	asking->sk = sock->sk;
	err = sock_sendmsg(asking, &msg);
	asking->sk = NULL;
	asking->ops = NULL;
	kapi_asking_put(family, asking);
	return err;
}

/*
 * What TCP or a program of a control group may have set on the inner socket when it was created, bound or connected. The
 * outer one is locked, or nobody else has it yet.
 */
__rust_helper void rust_helper_sk_copy_back(struct sock *to, const struct sock *from)
{
	WRITE_ONCE(to->sk_bound_dev_if, READ_ONCE(from->sk_bound_dev_if));
	WRITE_ONCE(to->sk_priority, READ_ONCE(from->sk_priority));
	WRITE_ONCE(to->sk_mark, READ_ONCE(from->sk_mark));
	sock_valbool_flag(to, SOCK_KEEPOPEN, sock_flag(from, SOCK_KEEPOPEN));
}

/*
 * The inner calls go past the security and cgroup hooks of the system call: those have seen the
 * call on the outer socket.
 */
__rust_helper int rust_helper_tcp_sendmsg(struct socket *sock, struct msghdr *msg)
{
	return READ_ONCE(sock->ops)->sendmsg(sock, msg, msg_data_left(msg));
}

__rust_helper int rust_helper_tcp_recvmsg(struct socket *sock, struct msghdr *msg, int flags)
{
	return READ_ONCE(sock->ops)->recvmsg(sock, msg, msg_data_left(msg), flags);
}

__rust_helper int rust_helper_tcp_listen(struct socket *sock, int backlog)
{
	return READ_ONCE(sock->ops)->listen(sock, backlog);
}

__rust_helper int rust_helper_tcp_shutdown(struct socket *sock, int how)
{
	return READ_ONCE(sock->ops)->shutdown(sock, how);
}

__rust_helper unsigned int rust_helper_tcp_poll(struct socket *sock)
{
	return (__force unsigned int)READ_ONCE(sock->ops)->poll(NULL, sock, NULL);
}

/* Programs of 32 bits have some arguments in another form. */
__rust_helper int rust_helper_tcp_ioctl(struct socket *sock, unsigned int cmd, unsigned long arg)
{
	const struct proto_ops *ops = READ_ONCE(sock->ops);

#ifdef CONFIG_COMPAT
	if (in_compat_syscall()) {
		int ret = ops->compat_ioctl(sock, cmd, arg);

		if (ret != -ENOIOCTLCMD)
			return ret;
	}
#endif
	return ops->ioctl(sock, cmd, arg);
}

/*
 * As the system call: SOL_SOCKET by the layer of sockets, other levels by TCP. `val` is the program's or the kernel's. Locks
 * the sock: process context.
 */
__rust_helper int rust_helper_tcp_setsockopt(struct socket *sock, int level, int name,
					     sockptr_t val, unsigned int len)
{
	if (level == SOL_SOCKET)
		return sock_setsockopt(sock, level, name, val, len);
	return READ_ONCE(sock->ops)->setsockopt(sock, level, name, val, len);
}

__rust_helper int rust_helper_tcp_setsockopt_kernel(struct socket *sock, int level, int name,
						    void *val, unsigned int len)
{
	return rust_helper_tcp_setsockopt(sock, level, name, KERNEL_SOCKPTR(val), len);
}

__rust_helper int rust_helper_tcp_getsockopt_user(struct socket *sock, int level, int name,
						  unsigned long val, unsigned long len)
{
	return READ_ONCE(sock->ops)->getsockopt(sock, level, name, (char __user *)val,
						(int __user *)len);
}

/* SIOCINQ and the like. */
__rust_helper int rust_helper_tcp_count(struct sock *sk, int cmd, int *count)
{
	return READ_ONCE(sk->sk_prot)->ioctl(sk, cmd, count);
}

/* SO_PEEK_OFF. Locks the sock: process context. */
__rust_helper int rust_helper_tcp_set_peek_off(struct sock *sk, int val)
{
	int err;

	lock_sock(sk);
	err = READ_ONCE(sk->sk_socket->ops)->set_peek_off(sk, val);
	release_sock(sk);
	return err;
}

__rust_helper int rust_helper_tcp_peek_off(const struct sock *sk)
{
	return READ_ONCE(sk->sk_peek_off);
}

/* TCP_INQ */
__rust_helper bool rust_helper_tcp_tells_left(const struct sock *sk)
{
	return tcp_sk(sk)->recvmsg_inq;
}

__rust_helper void rust_helper_tcp_splice_eof(struct socket *sock)
{
	READ_ONCE(sock->ops)->splice_eof(sock);
}

__rust_helper void rust_helper_tcp_set_nodelay(struct sock *sk)
{
	tcp_sock_set_nodelay(sk);
}

/* TCP_NAGLE_OFF and TCP_NAGLE_CORK */
__rust_helper unsigned int rust_helper_tcp_nonagle(const struct sock *sk)
{
	return tcp_sk(sk)->nonagle;
}

__rust_helper u32 rust_helper_tcp_user_timeout(const struct sock *sk)
{
	return READ_ONCE(inet_csk(sk)->icsk_user_timeout);
}

/* TCP_NOTSENT_LOWAT, or what holds for the namespace. */
__rust_helper u32 rust_helper_tcp_unsent_limit(const struct sock *sk)
{
	return tcp_notsent_lowat(tcp_sk(sk));
}

/* Milliseconds of silence after which TCP would ask for a sign of life, if it was asked to. */
__rust_helper u32 rust_helper_tcp_keepalive_time(const struct sock *sk)
{
	return jiffies_to_msecs(keepalive_time_when(tcp_sk(sk)));
}

/* More would never be there at once: the same limit as tcp_set_rcvlowat() has. */
__rust_helper int rust_helper_tcp_rcvlowat_limit(const struct sock *sk)
{
	if (sk->sk_userlocks & SOCK_RCVBUF_LOCK)
		return READ_ONCE(sk->sk_rcvbuf) >> 1;
	return READ_ONCE(sock_net(sk)->ipv4.sysctl_tcp_rmem[2]) >> 1;
}

/* IP_TOS, or IPV6_TCLASS of a sock whose peer is one of IPv6. Any context. */
__rust_helper u8 rust_helper_tcp_traffic_class(const struct sock *sk)
{
#if IS_ENABLED(CONFIG_IPV6)
	if (sk->sk_family == AF_INET6 && !ipv6_addr_v4mapped(&sk->sk_v6_daddr))
		return READ_ONCE(inet6_sk(sk)->tclass);
#endif
	return READ_ONCE(inet_sk(sk)->tos);
}

/* As a number of SYN-ACKs */
__rust_helper u8 rust_helper_tcp_defer_accept(const struct sock *sk)
{
	return READ_ONCE(inet_csk(sk)->icsk_accept_queue.rskq_defer_accept);
}

__rust_helper unsigned int rust_helper_tcp_unacked(const struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	return READ_ONCE(tp->write_seq) - READ_ONCE(tp->snd_una);
}

__rust_helper unsigned int rust_helper_tcp_inq(struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	return READ_ONCE(tp->rcv_nxt) - READ_ONCE(tp->copied_seq);
}

/* The port that a sock is bound to, of the host's byte order; 0 if it is not. */
__rust_helper u16 rust_helper_tcp_own_port(const struct sock *sk)
{
	return READ_ONCE(inet_sk(sk)->inet_num);
}

/*
 * An end of a connection: the port, and the address in the form of IPv6; for a peer without a port, whatever was there before.
 * Nothing is locked: a user may keep the lock for as long as he likes.
 */
__rust_helper u16 rust_helper_tcp_end(const struct sock *sk, bool peer, u8 addr[16])
{
	const struct inet_sock *inet = inet_sk(sk);
	struct in6_addr end;

#if IS_ENABLED(CONFIG_IPV6)
	if (READ_ONCE(sk->sk_family) == AF_INET6)
		end = data_race(*(peer ? &sk->sk_v6_daddr : &sk->sk_v6_rcv_saddr));
	else
#endif
		ipv6_addr_set_v4mapped(READ_ONCE(*(peer ? &inet->inet_daddr : &inet->inet_rcv_saddr)), &end);
	memcpy(addr, &end, sizeof(end));
	return ntohs(READ_ONCE(*(peer ? &inet->inet_dport : &inet->inet_sport)));
}

/* A listener: connections that wait to be accepted, and requests which may become such. */
__rust_helper u32 rust_helper_tcp_backlog(const struct sock *sk, u32 *requests)
{
	*requests = inet_csk_reqsk_queue_len(sk);
	return READ_ONCE(sk->sk_ack_backlog);
}

/* How many connections more than one may wait to be accepted. */
__rust_helper void rust_helper_tcp_set_backlog(struct sock *sk, u32 backlog)
{
	WRITE_ONCE(sk->sk_max_ack_backlog, backlog);
}

/* Whether a program has attached a filter, which may drop whatever it wants. */
__rust_helper bool rust_helper_tcp_has_filter(const struct sock *sk)
{
	return rcu_access_pointer(sk->sk_filter);
}

/* As TCP asks before it tells of room: enough of the buffer is free to be worth waking somebody. */
__rust_helper bool rust_helper_tcp_has_room(const struct sock *sk)
{
	return __sk_stream_is_writeable(sk, 1);
}

/*
 * The number in the stream of an urgent byte that has come and was not read, with a bit above that
 * says that there is one.
 */
__rust_helper u64 rust_helper_tcp_urgent(const struct sock *sk)
{
	const struct tcp_sock *tp = tcp_sk(sk);

	if (!(READ_ONCE(tp->urg_data) & TCP_URG_VALID))
		return 0;
	return BIT_ULL(32) | READ_ONCE(tp->urg_seq);
}

/* How segments of a connected sock leave. False when there is no route. */
__rust_helper bool rust_helper_tcp_egress(struct sock *sk, struct kapi_egress *out)
{
	struct dst_entry *dst = sk_dst_get(sk);

	if (!dst)
		return false;
	rcu_read_lock();
	out->ifindex = dst_dev_rcu(dst)->ifindex;
	rcu_read_unlock();
	out->xfrm = dst_xfrm(dst);
	dst_release(dst);
	return true;
}

/* A sock that a kernel thread made belongs to the control group that `from` belongs to. */
static void kapi_inherit_cgroup(struct sock *to, struct sock *from)
{
#ifdef CONFIG_SOCK_CGROUP_DATA
	struct cgroup *old = sock_cgroup_ptr(&to->sk_cgrp_data);
	struct cgroup *new = sock_cgroup_ptr(&from->sk_cgrp_data);

	cgroup_get(new);
	cgroup_bpf_get(new);
	to->sk_cgrp_data = from->sk_cgrp_data;
	cgroup_bpf_put(old);
	cgroup_put(old);
#endif
}

/* So does a TCP sock that was accepted by a kernel thread to the user who listens. */
__rust_helper void rust_helper_sk_copy_uid(struct sock *to, const struct sock *from)
{
	WRITE_ONCE(to->sk_uid, sk_uid(from));
}

/* Copies SO_RCVLOWAT and SO_PEEK_OFF to a locked sock: in an event, or with the lock. */
__rust_helper void rust_helper_sk_copy_marks(struct sock *to, const struct sock *from)
{
	WRITE_ONCE(to->sk_peek_off, READ_ONCE(from->sk_peek_off));
	if (to->sk_rcvlowat == from->sk_rcvlowat)
		return;
	/* Not by a mere copy: TCP has to make room for so much, within its buffer, and what is there may be enough now. */
	if (to->sk_socket)
		READ_ONCE(to->sk_socket->ops)->set_rcvlowat(to, from->sk_rcvlowat);
	else
		WRITE_ONCE(to->sk_rcvlowat, from->sk_rcvlowat);
}

/*
 * Copies what other SOL_SOCKET options set to a locked sock: `buffers` says whether buffer sizes which a
 * user chose go along as well, `child` that `to` is a child.
 */
static void kapi_copy_options(struct sock *to, struct sock *from, bool buffers, bool child)
{
	unsigned long flags = BIT(SOCK_URGINLINE) | BIT(SOCK_KEEPOPEN) | BIT(SOCK_LINGER) |
			      BIT(SOCK_BROADCAST) | BIT(SOCK_DBG) | BIT(SOCK_LOCALROUTE);
	/* Which way packets go depends on these. */
	bool reroute = to->sk_bound_dev_if != from->sk_bound_dev_if || to->sk_mark != from->sk_mark ||
		       sock_flag(to, SOCK_LOCALROUTE) != sock_flag(from, SOCK_LOCALROUTE);
	bool keepalive;

	keepalive = sock_flag(from, SOCK_KEEPOPEN);
	if (to->sk_prot->keepalive && keepalive != sock_flag(to, SOCK_KEEPOPEN))
		to->sk_prot->keepalive(to, keepalive);
	to->sk_reuse = from->sk_reuse;
	to->sk_reuseport = from->sk_reuseport;
	if (child) {
		/* Set on the inner socket alone, as an option of its level. */
		to->sk_ipv6only = from->sk_ipv6only;
		/* Otherwise set on both. */
		flags |= BIT(SOCK_RCVTSTAMP) | BIT(SOCK_RCVTSTAMPNS) | BIT(SOCK_TSTAMP_NEW) |
			 BIT(SOCK_RXQ_OVFL) | BIT(SOCK_SELECT_ERR_QUEUE) | BIT(SOCK_ZEROCOPY);
		WRITE_ONCE(to->sk_tsflags, READ_ONCE(from->sk_tsflags));
#ifdef CONFIG_NET_RX_BUSY_POLL
		WRITE_ONCE(to->sk_ll_usec, from->sk_ll_usec);
#endif
	}
	to->sk_flags = (to->sk_flags & ~flags) | (from->sk_flags & flags);
	to->sk_bound_dev_if = from->sk_bound_dev_if;
	to->sk_priority = from->sk_priority;
	to->sk_mark = from->sk_mark;
	if (reroute)
		sk_dst_reset(to);
	to->sk_sndtimeo = from->sk_sndtimeo;
	to->sk_rcvtimeo = from->sk_rcvtimeo;
	to->sk_lingertime = from->sk_lingertime;
	WRITE_ONCE(to->sk_max_pacing_rate, from->sk_max_pacing_rate);
	if (buffers) {
		if (from->sk_userlocks & SOCK_SNDBUF_LOCK) {
			to->sk_userlocks |= SOCK_SNDBUF_LOCK;
			WRITE_ONCE(to->sk_sndbuf, from->sk_sndbuf);
		}
		if (from->sk_userlocks & SOCK_RCVBUF_LOCK) {
			to->sk_userlocks |= SOCK_RCVBUF_LOCK;
			WRITE_ONCE(to->sk_rcvbuf, from->sk_rcvbuf);
		}
	}
}

/*
 * The same for a sock that is not locked, for a child with its security label and control group, and with `lowat` what
 * rust_helper_sk_copy_marks() copies. The listener of a child may be locked, by the caller.
 */
__rust_helper void rust_helper_sk_copy_options(struct sock *to, struct sock *from, bool buffers,
					       bool lowat, bool child)
{
	lock_sock_nested(to, child ? SINGLE_DEPTH_NESTING : 0);
	/* What TCP has given to the inner one: that of the listener, and who the peer is. */
	if (child) {
		security_sk_clone(from, to);
		kapi_inherit_cgroup(to, from);
	}
	kapi_copy_options(to, from, buffers, child);
	if (lowat)
		rust_helper_sk_copy_marks(to, from);
	release_sock(to);
}

/* What the capability travels in on a kernel which knows it: flags of the TCP sock itself. */
#if IS_ENABLED(CONFIG_SMC)
__rust_helper bool rust_helper_tcp_option_native(void)
{
	return true;
}

/* Has TCP look for the option, and put it on packets, at all; counted, so that each time is undone once. May sleep. */
__rust_helper void rust_helper_tcp_option_native_enable(bool on)
{
	if (on)
		static_branch_inc(&tcp_have_smc);
	else
		static_branch_dec(&tcp_have_smc);
}

__rust_helper void rust_helper_tcp_option_native_set(struct sock *sk, bool on)
{
	tcp_sk(sk)->syn_smc = on;
}

/*
 * Has TCP ask `is_full` before it answers the option of a client, in a softirq, with the listener not locked. It stays:
 * TCP reads the pointer twice, and the listener ends before the module does. Children have it not.
 */
__rust_helper void rust_helper_tcp_option_native_ask(struct sock *sk,
						     bool (*is_full)(const struct sock *sk))
{
	WRITE_ONCE(tcp_sk(sk)->smc_hs_congested, is_full);
}

__rust_helper bool rust_helper_tcp_option_native_get(const struct sock *sk)
{
	return tcp_sk(sk)->syn_smc;
}
#else
__rust_helper bool rust_helper_tcp_option_native(void)
{
	return false;
}

__rust_helper void rust_helper_tcp_option_native_enable(bool on)
{
}

__rust_helper void rust_helper_tcp_option_native_set(struct sock *sk, bool on)
{
}

__rust_helper void rust_helper_tcp_option_native_ask(struct sock *sk,
						     bool (*is_full)(const struct sock *sk))
{
}

__rust_helper bool rust_helper_tcp_option_native_get(const struct sock *sk)
{
	return false;
}
#endif

static noinline unsigned int call_hook(nf_hookfn *hook, struct sk_buff *skb,
				       const struct nf_hook_state *state)
{
	return hook(NULL, skb, state);
}

/*
 * The local output hook: every packet that leaves the host comes here, those of RoCE as well. What
 * cannot be a SYN or SYN-ACK goes on at once; the rest goes to the hook that `priv` is.
 */
__rust_helper unsigned int rust_helper_tcp_syn_hook(void *priv, struct sk_buff *skb,
						    const struct nf_hook_state *state)
{
	const struct sock *sk = skb->sk;

	if (sk) {
		u8 found = READ_ONCE(sk->sk_state);

		if (unlikely(found == TCP_SYN_SENT || found == TCP_NEW_SYN_RECV))
			return call_hook(priv, skb, state);
	}
	return NF_ACCEPT;
}

/*
 * Classifies a packet at the local output hook. For a SYN-ACK, `req` is set as well. The owner lives
 * as long as the packet.
 */
__rust_helper enum kapi_syn_kind rust_helper_tcp_syn_kind(struct sk_buff *skb, u8 pf,
							  struct sock **owner,
							  struct request_sock **req)
{
	struct sock *sk = skb->sk;
	unsigned int off = 0;
	u8 state;

	if (!sk)
		return KAPI_SYN_NONE;
	state = READ_ONCE(sk->sk_state);
	if (state != TCP_SYN_SENT && state != TCP_NEW_SYN_RECV)
		return KAPI_SYN_NONE;
	if (state == TCP_SYN_SENT && sk->sk_protocol != IPPROTO_TCP)
		return KAPI_SYN_NONE;

	/* In a tunnel, headers are pushed in front of a segment which was here before. */
	if (skb_network_offset(skb))
		return KAPI_SYN_NONE;
	if (pf == NFPROTO_IPV4) {
		if (ip_hdr(skb)->protocol != IPPROTO_TCP ||
		    skb_transport_offset(skb) != ip_hdrlen(skb))
			return KAPI_SYN_NONE;
	} else if (ipv6_find_hdr(skb, &off, IPPROTO_TCP, NULL, NULL) < 0 ||
		   off != skb_transport_offset(skb)) {
		return KAPI_SYN_NONE;
	}
	if (skb_headlen(skb) < skb_transport_offset(skb) + sizeof(struct tcphdr) ||
	    skb_headlen(skb) < skb_transport_offset(skb) + tcp_hdrlen(skb) || !tcp_hdr(skb)->syn)
		return KAPI_SYN_NONE;

	if (state == TCP_SYN_SENT) {
		*owner = sk;
		return tcp_hdr(skb)->ack ? KAPI_SYN_NONE : KAPI_SYN_OFFER;
	}
	if (!tcp_hdr(skb)->ack)
		return KAPI_SYN_NONE;
	*req = inet_reqsk(sk);
	*owner = (*req)->rsk_listener;
	return *owner ? KAPI_SYN_ANSWER : KAPI_SYN_NONE;
}

/*
 * The options of a TCP header in the linear part of a packet. `plain`: nothing follows them, and
 * the checksum is still to be filled in below us.
 */
__rust_helper u8 *rust_helper_tcp_skb_options(const struct sk_buff *skb, unsigned int *len,
					      bool *plain)
{
	unsigned int hlen = tcp_hdrlen(skb);

	if (hlen < sizeof(struct tcphdr) ||
	    skb_headlen(skb) < skb_transport_offset(skb) + hlen)
		return NULL;
	*len = hlen - sizeof(struct tcphdr);
	*plain = skb->ip_summed == CHECKSUM_PARTIAL && !skb_is_gso(skb) &&
		 skb->len == skb_transport_offset(skb) + hlen;
	return (u8 *)(tcp_hdr(skb) + 1);
}

/*
 * Makes room for n bytes, a multiple of four, behind the TCP header of a packet without payload
 * at the local output hook, where the network header comes first. Returns the room, or NULL when
 * there is no memory.
 */
__rust_helper u8 *rust_helper_tcp_skb_grow(struct sk_buff *skb, u8 pf, unsigned int n)
{
	unsigned int hlen = skb_transport_offset(skb) + tcp_hdrlen(skb);
	u8 *data;

	if (skb_cow_head(skb, n))
		return NULL;
	data = skb_push(skb, n);
	memmove(data, data + n, hlen);
	skb->network_header -= n;
	skb->transport_header -= n;
	skb->csum_start -= n;
	tcp_hdr(skb)->doff += n / 4;
	/* The field holds the sum of the pseudo header, in which the length has grown. */
	tcp_hdr(skb)->check = csum16_add(tcp_hdr(skb)->check, htons(n));
	if (pf == NFPROTO_IPV4) {
		iph_set_totlen(ip_hdr(skb), skb->len);
		ip_send_check(ip_hdr(skb));
	} else {
		ipv6_hdr(skb)->payload_len = htons(skb->len - sizeof(struct ipv6hdr));
	}
	return data + hlen;
}

/* Frees a packet that does not go out. */
__rust_helper void rust_helper_tcp_free_skb(struct sk_buff *skb)
{
	kfree_skb(skb);
}

/* Copies the options of a SYN that was saved; 0 if there are none. */
static unsigned int saved_syn_copy(struct saved_syn *syn, u8 *buf, u8 **place)
{
	unsigned int off, len;

	if (!syn)
		return 0;
	len = syn->tcp_hdrlen - sizeof(struct tcphdr);
	off = syn->mac_hdrlen + syn->network_hdrlen + sizeof(struct tcphdr);
	if (len > KAPI_TCP_OPTIONS || off > 512)
		return 0;
	memcpy(buf, syn->data + off, len);
	*place = syn->data + off;
	return len;
}

/*
 * A request that was answered is hashed until a connection is made of it, it is replaced by a copy, or it is given up; the
 * copy, as soon as its own SYN-ACK has been sent. One of Fast Open never is: its connection is there first.
 */
static bool kapi_is_over(const struct request_sock *req)
{
	return !tcp_rsk(req)->tfo_listener && hlist_nulls_unhashed_lockless(&req->__req_common.skc_nulls_node);
}

/*
 * The lock of the place where a request is hashed. Whoever makes a connection of it, replaces it or gives it up takes it
 * from there with the lock held, and only then moves or frees its saved SYN: with the lock, that of a hashed one stays.
 */
static spinlock_t *kapi_hash_lock(const struct request_sock *req)
{
	return inet_ehash_lockp(tcp_get_hashinfo(req_to_sk((struct request_sock *)req)), req->rsk_hash);
}

/*
 * With the lock of its hash held: the SYN of a request, if it has it, and a child would be made by us. A copy of the request
 * for another listener has the same SYN: it is found once this one is hashed no more.
 */
static struct saved_syn *kapi_syn_of(const struct request_sock *req)
{
	if (kapi_is_over(req))
		return NULL;
	/* A request without a listener is answered with a cookie, and nobody else's. */
	if (req->rsk_listener && !kapi_makes_children(req->rsk_listener))
		return NULL;
	return READ_ONCE(req->saved_syn);
}

/*
 * Whether the listener of a request has ended, and may have been ours: those save SYNs. Another one gets the request
 * (tcp_migrate_req), by a copy when its timer fires, or with its ACK. (A listener of somebody else that saved SYNs looks
 * the same: a SYN which comes again before is not answered there either.) One of Fast Open has its connection already.
 */
__rust_helper bool rust_helper_tcp_request_moves(const struct request_sock *req)
{
	const struct sock *listener = req->rsk_listener;

	return !tcp_rsk(req)->tfo_listener && READ_ONCE(listener->sk_state) != TCP_LISTEN &&
	       tcp_sk(listener)->save_syn;
}

/*
 * `place` is for tcp_write_saved_syn alone. -ENOENT if a connection has been made of the request meanwhile, which has the
 * SYN, if it was given up, or if it is a copy that is not used yet: it is not hashed. -ESTALE if another listener is to have
 * it, so that nobody knows what it will answer.
 */
__rust_helper int rust_helper_tcp_request_syn_options(const struct request_sock *req, u8 *buf, u8 **place)
{
	spinlock_t *lock;
	int len;

	/* Its connection has the SYN already. */
	if (tcp_rsk(req)->tfo_listener)
		return 0;
	lock = kapi_hash_lock(req);
	spin_lock_bh(lock);
	len = saved_syn_copy(kapi_syn_of(req), buf, place);
	spin_unlock_bh(lock);
	if (len)
		return len;
	if (kapi_is_over(req))
		return -ENOENT;
	return rust_helper_tcp_request_moves(req) ? -ESTALE : 0;
}

/* Of a locked sock. */
__rust_helper unsigned int rust_helper_tcp_child_syn_options(const struct sock *sk, u8 *buf,
							     u8 **place)
{
	return saved_syn_copy(tcp_sk(sk)->saved_syn, buf, place);
}

/* The peer's address, that of IPv4 in the form of IPv6. */
__rust_helper void rust_helper_tcp_request_peer(struct request_sock *req, u8 pf, u8 addr[16])
{
	struct in6_addr peer;

	if (pf == NFPROTO_IPV4)
		ipv6_addr_set_v4mapped(inet_rsk(req)->ir_rmt_addr, &peer);
	else
		peer = inet_rsk(req)->ir_v6_rmt_addr;
	memcpy(addr, &peer, sizeof(peer));
}

/*
 * Writes `to` where `from` is in the saved SYN of a request, or without one of a locked sock. False if the request has
 * none any more, or something else is there.
 */
__rust_helper bool rust_helper_tcp_write_saved_syn(const struct request_sock *req, u8 *place,
						   const u8 *from, const u8 *to, size_t len)
{
	spinlock_t *lock = req ? kapi_hash_lock(req) : NULL;
	bool done;

	if (lock)
		spin_lock_bh(lock);
	done = (!req || kapi_syn_of(req)) && !memcmp(place, from, len);
	if (done)
		memcpy(place, to, len);
	if (lock)
		spin_unlock_bh(lock);
	return done;
}

__rust_helper bool rust_helper_tcp_saves_syn(const struct sock *sk)
{
	return tcp_sk(sk)->save_syn;
}

/* The user may have asked for more of it. */
__rust_helper void rust_helper_tcp_save_syn(struct sock *sk)
{
	if (!tcp_sk(sk)->save_syn)
		tcp_sk(sk)->save_syn = 1;
}

__rust_helper void rust_helper_tcp_forget_syn(struct sock *sk)
{
	tcp_saved_syn_free(tcp_sk(sk));
}

/* Has `sk_rx_dst_set` of a connecting sock call `fn`; `copy` is what it points to until undone. */
__rust_helper const void *
rust_helper_tcp_watch_connect(struct sock *sk, struct inet_connection_sock_af_ops *copy,
			      void (*fn)(struct sock *sk, const struct sk_buff *skb))
{
	const struct inet_connection_sock_af_ops *ops = inet_csk(sk)->icsk_af_ops;

	if (ops == copy)
		return NULL;
	*copy = *ops;
	copy->sk_rx_dst_set = fn;
	WRITE_ONCE(inet_csk(sk)->icsk_af_ops, copy);
	return ops;
}

__rust_helper void rust_helper_tcp_unwatch_connect(struct sock *sk,
						   const struct inet_connection_sock_af_ops *copy,
						   const void *ops)
{
	if (inet_csk(sk)->icsk_af_ops == copy)
		WRITE_ONCE(inet_csk(sk)->icsk_af_ops, ops);
}

__rust_helper void rust_helper_tcp_call_rx_dst_set(const void *ops, struct sock *sk,
						   const struct sk_buff *skb)
{
	const struct inet_connection_sock_af_ops *af = ops;

	af->sk_rx_dst_set(sk, skb);
}

__rust_helper bool rust_helper_tcp_skb_is_synack(const struct sk_buff *skb)
{
	return tcp_hdr(skb)->syn && tcp_hdr(skb)->ack;
}

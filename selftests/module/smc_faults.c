// SPDX-License-Identifier: GPL-2.0
/*
 * Lets chosen calls from one module fail, in whatever context: for tests on kernels without fault injection.
 * Everything is a file in /sys/module/smc_faults/parameters:
 *
 *   from    name of the module whose calls count, to be loaded after this one
 *   symbol  the function that is watched; an empty line for none. Writing it takes back all below.
 *   polls   instead of that, a driver's function that gives completions; those of what the module sends count as calls,
 *           and the value is the status (enum ib_wc_status) of those that fail. What they are about has been done.
 *   receives  whether those of what it receives count instead, which the sender does not learn of
 *   number  the call that fails, counted from 1; 0 for none
 *   times   how many calls do, from that one on
 *   value   what they return, for a pointer an error number or 0 as well
 *   same    whether after the first one that fails only those count which have its first argument
 *   hold    whether those calls, which may sleep, wait until this is taken back, for 30 s at most
 *   bad_wr  whether the function posts work requests and tells by its third argument which was not taken
 *   gives_back  after a call of ib_destroy_qp_user has failed, and while that is watched: writing has the device have the
 *           queue pair back after all, with its completion queue, which is silent, and its protection domain
 *   seen    calls so far; writing starts again at what is written
 *   hit     calls that failed
 *   where   from where the first of them was called
 *   mac     the Ethernet address that the module's last queue pair was told to send to; begins when it is written
 *   interrupts  reports of errors on TCP sockets that were made once more, in an interrupt, as drivers make them; begins
 *           when it is written
 *   event   "CARD TYPE PORT": the RDMA device on that card of this network namespace tells of an event, by its number
 *           in enum ib_event_type
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/atomic.h>
#include <linux/delay.h>
#include <linux/irq_poll.h>
#include <linux/irq_work.h>
#include <linux/kprobes.h>
#include <linux/linkage.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/notifier.h>
#include <linux/nsproxy.h>
#include <linux/objtool.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/string.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>

static char from[MODULE_NAME_LEN] = "smc_r";
module_param_string(from, from, sizeof(from), 0444);
MODULE_PARM_DESC(from, "module whose calls count");

static ulong number;
module_param(number, ulong, 0600);
MODULE_PARM_DESC(number, "the first call that fails, 0 for none");

static ulong times = 1;
module_param(times, ulong, 0600);
MODULE_PARM_DESC(times, "how many fail");

static long value;
module_param(value, long, 0600);
MODULE_PARM_DESC(value, "what they return");

static bool same;
module_param(same, bool, 0600);
MODULE_PARM_DESC(same, "after one that fails only calls with its first argument count");

static bool hold;
module_param(hold, bool, 0600);
MODULE_PARM_DESC(hold, "calls that fail wait until this is taken back");

static bool bad_wr;
module_param(bad_wr, bool, 0600);
MODULE_PARM_DESC(bad_wr, "a function that posts work requests");

static bool receives;
module_param(receives, bool, 0600);
MODULE_PARM_DESC(receives, "completions of receives");

/* The module; it may come and go while a function is watched. */
static struct module *caller;
static atomic_long_t seen, hit;
static ulong where;
/* The first argument of the last of them. */
static void *argument;

/* What a call that fails runs in place of the function: by then the stack is as at a function's first instruction. */
asmlinkage void smc_faults_return(void);
asm(".pushsection .text, \"ax\"\n"
    ".type smc_faults_return, @function\n"
    "smc_faults_return:\n"
    ANNOTATE_NOENDBR "\n"
    ASM_RET
    ".size smc_faults_return, . - smc_faults_return\n"
    ".popsection\n");

/* The same, where the call is held. */
static long smc_faults_wait(void)
{
	for (int left = 3000; left > 0 && READ_ONCE(hold); left--)
		msleep(10);
	return READ_ONCE(value);
}

/* Is this place in the code of the module that is looked at? */
static bool is_in_caller(ulong address)
{
	struct module *module = READ_ONCE(caller);

	return module && within_module(address, module);
}
NOKPROBE_SYMBOL(is_in_caller);

/* Counts a call, or a completion, if it is one of the module's; true if it is to fail. */
static bool chosen(ulong address)
{
	ulong count, first = READ_ONCE(number);

	if (!is_in_caller(address))
		return false;
	count = atomic_long_inc_return(&seen);
	if (!first || count < first || count - first >= READ_ONCE(times))
		return false;
	if (atomic_long_inc_return(&hit) == 1)
		WRITE_ONCE(where, address);
	return true;
}
NOKPROBE_SYMBOL(chosen);

/* Runs at the first instruction of the function, not preemptible. */
static int at_entry(struct kprobe *probe, struct pt_regs *regs)
{
	void *first = (void *)regs_get_kernel_argument(regs, 0);
	ulong address = regs_get_kernel_stack_nth(regs, 0);
	bool alike = READ_ONCE(same);
	void *other = alike ? READ_ONCE(argument) : NULL;

	if ((other && other != first) || !chosen(address))
		return 0;
	/* Two of them may be the first at the same time. */
	other = alike ? cmpxchg(&argument, NULL, first) : xchg(&argument, first);
	if (alike && other && other != first)
		return 0;
	if (READ_ONCE(bad_wr))
		*(void **)regs_get_kernel_argument(regs, 2) = (void *)regs_get_kernel_argument(regs, 1);
	regs_set_return_value(regs, READ_ONCE(value));
	instruction_pointer_set(regs, READ_ONCE(hold) ? (ulong)smc_faults_wait : (ulong)smc_faults_return);
	return 1;
}
NOKPROBE_SYMBOL(at_entry);

/* int poll_cq(struct ib_cq *cq, int max, struct ib_wc *completions): how many there are is known when it returns. */
static int at_poll(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	*(struct ib_wc **)instance->data = (void *)regs_get_kernel_argument(regs, 2);
	return 0;
}
NOKPROBE_SYMBOL(at_poll);

static int at_polled(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	struct ib_wc *wc = *(struct ib_wc **)instance->data;

	/* Those that fail anyway do not tell what they are about. Programs, whose wr_cqe is any number, have none here. */
	for (int left = regs_return_value(regs); left > 0; left--, wc++)
		if (wc->status == IB_WC_SUCCESS && wc->wr_cqe && !(wc->opcode & IB_WC_RECV) == !READ_ONCE(receives) &&
		    chosen((ulong)wc->wr_cqe->done))
			wc->status = READ_ONCE(value);
	return 0;
}
NOKPROBE_SYMBOL(at_polled);

static DEFINE_MUTEX(lock);
static char symbol[KSYM_NAME_LEN];
static char polls[KSYM_NAME_LEN];
static struct kprobe probe;
static struct kretprobe poll_probe;

static void stop(void)
{
	if (symbol[0])
		unregister_kprobe(&probe);
	if (polls[0])
		unregister_kretprobe(&poll_probe);
	symbol[0] = 0;
	polls[0] = 0;
	number = 0;
	times = 1;
	value = 0;
	same = false;
	hold = false;
	bad_wr = false;
	receives = false;
	atomic_long_set(&seen, 0);
	atomic_long_set(&hit, 0);
	where = 0;
	argument = NULL;
}

static int watch_calls(void)
{
	probe = (struct kprobe){ .symbol_name = symbol, .pre_handler = at_entry };
	return register_kprobe(&probe);
}

static int watch_polls(void)
{
	poll_probe = (struct kretprobe){
		.kp.symbol_name = polls,
		.entry_handler = at_poll,
		.handler = at_polled,
		.data_size = sizeof(struct ib_wc *),
	};
	return register_kretprobe(&poll_probe);
}

static int set_watched(const char *text, char name[KSYM_NAME_LEN], int (*begin)(void))
{
	int err = 0;

	mutex_lock(&lock);
	stop();
	strscpy(name, text, KSYM_NAME_LEN);
	strim(name);
	if (name[0]) {
		err = begin();
		if (err) {
			pr_info("cannot watch %s: %d\n", name, err);
			name[0] = 0;
		}
	}
	mutex_unlock(&lock);
	return err;
}

static int set_symbol(const char *text, const struct kernel_param *kp)
{
	return set_watched(text, symbol, watch_calls);
}

static int set_polls(const char *text, const struct kernel_param *kp)
{
	return set_watched(text, polls, watch_polls);
}

static int get_watched(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%s\n", (const char *)kp->arg);
}

static const struct kernel_param_ops symbol_ops = { .set = set_symbol, .get = get_watched };
module_param_cb(symbol, &symbol_ops, symbol, 0600);
MODULE_PARM_DESC(symbol, "function that is watched");

static const struct kernel_param_ops polls_ops = { .set = set_polls, .get = get_watched };
module_param_cb(polls, &polls_ops, polls, 0600);
MODULE_PARM_DESC(polls, "driver's function that gives completions");

static int give_back(const char *text, const struct kernel_param *kp)
{
	struct ib_qp *qp;
	struct ib_cq *cq;
	struct ib_pd *pd;
	int err = -ENODATA;

	mutex_lock(&lock);
	qp = argument;
	if (qp && !strcmp(symbol, "ib_destroy_qp_user")) {
		cq = qp->send_cq;
		pd = qp->pd;
		argument = NULL;
		err = ib_destroy_qp(qp);
	}
	if (!err) {
		irq_poll_enable(&cq->iop);
		ib_free_cq(cq);
		ib_dealloc_pd(pd);
	}
	mutex_unlock(&lock);
	return err;
}

static const struct kernel_param_ops give_back_ops = { .set = give_back };
module_param_cb(gives_back, &give_back_ops, NULL, 0200);
MODULE_PARM_DESC(gives_back, "a queue pair that was not destroyed, to its device");

static int set_count(const char *text, const struct kernel_param *kp)
{
	long count;
	int err = kstrtol(text, 0, &count);

	if (!err)
		atomic_long_set(kp->arg, count);
	return err;
}

static int get_count(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%ld\n", atomic_long_read(kp->arg));
}

static const struct kernel_param_ops count_ops = { .set = set_count, .get = get_count };
module_param_cb(seen, &count_ops, &seen, 0600);
MODULE_PARM_DESC(seen, "calls so far");
module_param_cb(hit, &count_ops, &hit, 0600);
MODULE_PARM_DESC(hit, "calls that failed");

static int get_where(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%pS\n", (void *)READ_ONCE(where));
}

static const struct kernel_param_ops where_ops = { .get = get_where };
module_param_cb(where, &where_ops, NULL, 0400);
MODULE_PARM_DESC(where, "caller of the first one that failed");

/* Where a queue pair sends to: not every device goes by it. */
static u8 mac[ETH_ALEN];
static bool watches_mac;

/* int ib_modify_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int mask) */
static int at_modify(struct kprobe *probe, struct pt_regs *regs)
{
	const struct ib_qp_attr *attr = (void *)regs_get_kernel_argument(regs, 1);

	if (is_in_caller(regs_get_kernel_stack_nth(regs, 0)) && regs_get_kernel_argument(regs, 2) & IB_QP_AV)
		memcpy(mac, attr->ah_attr.roce.dmac, sizeof(mac));
	return 0;
}
NOKPROBE_SYMBOL(at_modify);

static struct kprobe mac_probe = { .symbol_name = "ib_modify_qp", .pre_handler = at_modify };

/* Watches a function from the first time on. */
static int watch_ever(struct kprobe *probe, bool *watched)
{
	int err = 0;

	mutex_lock(&lock);
	if (!*watched) {
		err = register_kprobe(probe);
		*watched = !err;
	}
	mutex_unlock(&lock);
	return err;
}

static int watch_mac(const char *text, const struct kernel_param *kp)
{
	memset(mac, 0, sizeof(mac));
	return watch_ever(&mac_probe, &watches_mac);
}

static int get_mac(char *buffer, const struct kernel_param *kp)
{
	return sysfs_emit(buffer, "%pM\n", mac);
}

static const struct kernel_param_ops mac_ops = { .set = watch_mac, .get = get_mac };
module_param_cb(mac, &mac_ops, NULL, 0600);
MODULE_PARM_DESC(mac, "Ethernet address that the last queue pair sends to");

/* What an interrupt is to report on, until that is done. */
static struct sock *reported;
static atomic_long_t interrupts;
static bool reports;

static void put_reported(struct work_struct *work)
{
	sock_put(reported);
	/* After this there may be another one. */
	smp_store_release(&reported, NULL);
}

static DECLARE_WORK(put_work, put_reported);

static void report(struct irq_work *work)
{
	atomic_long_inc(&interrupts);
	READ_ONCE(reported->sk_error_report)(reported);
	schedule_work(&put_work);
}

/* As an interrupt of a driver, which is a thread on real-time kernels. */
static struct irq_work report_work = IRQ_WORK_INIT(report);

/* int sock_queue_err_skb(struct sock *sk, struct sk_buff *skb) */
static int at_report(struct kprobe *probe, struct pt_regs *regs)
{
	struct sock *sk = (void *)regs_get_kernel_argument(regs, 0);

	if (sk->sk_protocol != IPPROTO_TCP || cmpxchg(&reported, NULL, sk))
		return 0;
	if (refcount_inc_not_zero(&sk->sk_refcnt))
		irq_work_queue(&report_work);
	else
		smp_store_release(&reported, NULL);
	return 0;
}
NOKPROBE_SYMBOL(at_report);

static struct kprobe report_probe = { .symbol_name = "sock_queue_err_skb", .pre_handler = at_report };

static int watch_reports(const char *text, const struct kernel_param *kp)
{
	atomic_long_set(&interrupts, 0);
	return watch_ever(&report_probe, &reports);
}

static const struct kernel_param_ops reports_ops = { .set = watch_reports, .get = get_count };
module_param_cb(interrupts, &reports_ops, &interrupts, 0600);
MODULE_PARM_DESC(interrupts, "reports of errors made in interrupts");

static int send_event(const char *text, const struct kernel_param *kp)
{
	/* The width below is that of names, less their end. */
	static_assert(IFNAMSIZ == 16);
	char name[IFNAMSIZ];
	struct ib_event event = {};
	struct net_device *card;
	unsigned int type;

	if (sscanf(text, "%15s %u %u", name, &type, &event.element.port_num) != 3)
		return -EINVAL;
	card = dev_get_by_name(current->nsproxy->net_ns, name);
	if (!card)
		return -ENODEV;
	event.device = ib_device_get_by_netdev(card, RDMA_DRIVER_UNKNOWN);
	dev_put(card);
	if (!event.device)
		return -ENODEV;
	event.event = type;
	ib_dispatch_event(&event);
	/* Whom it concerns is told by a work item that does not hold the device. */
	flush_workqueue(ib_wq);
	ib_device_put(event.device);
	return 0;
}

static const struct kernel_param_ops event_ops = { .set = send_event };
module_param_cb(event, &event_ops, NULL, 0200);
MODULE_PARM_DESC(event, "card, type and port of an event that its RDMA device tells of");

static int module_changes(struct notifier_block *block, unsigned long state, void *data)
{
	struct module *module = data;

	if (strcmp(module->name, from))
		return NOTIFY_DONE;
	if (state == MODULE_STATE_COMING) {
		WRITE_ONCE(caller, module);
	} else if (state == MODULE_STATE_GOING) {
		WRITE_ONCE(caller, NULL);
		/* No handler looks at it any more. */
		synchronize_rcu();
	}
	return NOTIFY_DONE;
}

static struct notifier_block changes = { .notifier_call = module_changes };

static int __init smc_faults_init(void)
{
	return register_module_notifier(&changes);
}

static void __exit smc_faults_exit(void)
{
	unregister_module_notifier(&changes);
	mutex_lock(&lock);
	stop();
	if (watches_mac)
		unregister_kprobe(&mac_probe);
	if (reports)
		unregister_kprobe(&report_probe);
	irq_work_sync(&report_work);
	flush_work(&put_work);
	mutex_unlock(&lock);
}

module_init(smc_faults_init);
module_exit(smc_faults_exit);
MODULE_DESCRIPTION("Lets chosen calls of a module fail, for tests");
MODULE_LICENSE("GPL");

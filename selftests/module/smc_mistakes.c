// SPDX-License-Identifier: GPL-2.0
/*
 * Makes the mistakes that kernels of our own look for: what they do not find here, they would not find in the modules
 * either. It needs what each kernel has, and nothing else. One file in
 * /sys/module/smc_mistakes/parameters:
 *
 *   mistake  written: one of those below, or `nothing`. Only a kernel that looks for it goes on unharmed in each case.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/compiler.h>
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/gfp.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/nsproxy.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/workqueue.h>
#include <net/net_namespace.h>

struct thing {
	long value[9];
	long after;
};

/* Some of them: where one has been may be remembered in a register or on a stack for a while. */
static void leak(void)
{
	for (int number = 0; number < 10; number++) {
		struct thing *thing = kzalloc(sizeof(*thing), GFP_KERNEL);

		/* Somewhere it has to go, or it is never allocated. */
		OPTIMIZER_HIDE_VAR(thing);
	}
}

static void use_after_free(void)
{
	struct thing *thing = kzalloc(sizeof(*thing), GFP_KERNEL);

	if (!thing)
		return;
	kfree(thing);
	/* The compiler knows what kfree() does. */
	OPTIMIZER_HIDE_VAR(thing);
	READ_ONCE(thing->value[1]);
}

/* Behind all that there is of the object, where the allocator has its own. */
static void overrun(void)
{
	struct thing *thing = kzalloc(sizeof(*thing), GFP_KERNEL);
	u8 *end;

	if (!thing)
		return;
	end = (u8 *)thing + ksize(thing);
	OPTIMIZER_HIDE_VAR(end);
	*end = 1;
	kfree(thing);
}

/* Within the object, so that nothing else finds that. */
static void bounds(void)
{
	struct thing *thing = kzalloc(sizeof(*thing), GFP_KERNEL);
	size_t at = ARRAY_SIZE(thing->value);

	if (!thing)
		return;
	OPTIMIZER_HIDE_VAR(at);
	/* With WRITE_ONCE(), that would be the address of the end, which one may have. */
	thing->value[at] = 1;
	barrier_data(thing);
	kfree(thing);
}

static void leak_page(void)
{
	struct page *page = alloc_page(GFP_KERNEL);

	OPTIMIZER_HIDE_VAR(page);
}

static DEFINE_SPINLOCK(smc_mistakes_spin);

/* An allocation may. */
static void sleep_in_atomic(void)
{
	spin_lock(&smc_mistakes_spin);
	kfree(kmalloc(sizeof(struct thing), GFP_KERNEL));
	spin_unlock(&smc_mistakes_spin);
}

static void do_nothing(struct work_struct *work)
{
}

/* A work item that waits for its time. */
static void free_timer(void)
{
	struct delayed_work *work = kzalloc(sizeof(*work), GFP_KERNEL);

	if (!work)
		return;
	INIT_DELAYED_WORK(work, do_nothing);
	schedule_delayed_work(work, 3600 * HZ);
	kfree(work);
}

/* To the namespace of who writes. It is one of those that do not keep it, so that it can go. */
static void keep_reference(void)
{
	static netns_tracker tracker;

	__netns_tracker_alloc(current->nsproxy->net_ns, &tracker, false, GFP_KERNEL);
}

static DEFINE_MUTEX(smc_mistakes_first);
static DEFINE_MUTEX(smc_mistakes_second);

/* Two locks, each taken with the other one held, which never happens at the same time. */
static void deadlock(void)
{
	mutex_lock(&smc_mistakes_first);
	mutex_lock(&smc_mistakes_second);
	mutex_unlock(&smc_mistakes_second);
	mutex_unlock(&smc_mistakes_first);
	mutex_lock(&smc_mistakes_second);
	mutex_lock(&smc_mistakes_first);
	mutex_unlock(&smc_mistakes_first);
	mutex_unlock(&smc_mistakes_second);
}

static long raced;

static int write_raced(void *unused)
{
	while (!kthread_should_stop()) {
		for (int times = 0; times < 1000; times++) {
			raced++;
			/* Each time to memory. */
			barrier();
		}
		cond_resched();
	}
	return 0;
}

/* Two threads and a variable. */
static void race(void)
{
	struct task_struct *threads[2];
	int number;

	for (number = 0; number < 2; number++) {
		threads[number] = kthread_run(write_raced, NULL, "smc_mistakes/%d", number);
		if (IS_ERR(threads[number]))
			break;
	}
	if (number == 2)
		msleep(2000);
	for (int thread = 0; thread < number; thread++)
		kthread_stop(threads[thread]);
}

static void nothing(void)
{
}

static const struct {
	const char *name;
	void (*make)(void);
} mistakes[] = {
	{ "nothing", nothing },
	{ "bounds", bounds },
	{ "deadlock", deadlock },
	{ "leak", leak },
	{ "overrun", overrun },
	{ "page", leak_page },
	{ "race", race },
	{ "reference", keep_reference },
	{ "sleep", sleep_in_atomic },
	{ "timer", free_timer },
	{ "use-after-free", use_after_free },
};

static int make_mistake(const char *text, const struct kernel_param *kp)
{
	for (int number = 0; number < ARRAY_SIZE(mistakes); number++) {
		if (!sysfs_streq(text, mistakes[number].name))
			continue;
		mistakes[number].make();
		return 0;
	}
	return -EINVAL;
}

static const struct kernel_param_ops mistake_ops = { .set = make_mistake };
module_param_cb(mistake, &mistake_ops, NULL, 0200);
MODULE_PARM_DESC(mistake, "made when it is written");

MODULE_DESCRIPTION("Makes mistakes, for tests of what looks for them");
MODULE_LICENSE("GPL");

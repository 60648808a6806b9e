// SPDX-License-Identifier: GPL-2.0
/*
 * Makes the mistakes that kernels of our own look for: what they do not find here, they would not find in the modules
 * either. It needs what each kernel has, and nothing else. One file in
 * /sys/module/smc_mistakes/parameters:
 *
 *   mistake  written: `leak`, `use-after-free`, `deadlock` (two locks, each taken with the other one held, which never
 *            happens at the same time), `race` (two threads and a variable), or `nothing`
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/compiler.h>
#include <linux/delay.h>
#include <linux/err.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/string.h>

struct thing {
	long value[9];
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

static DEFINE_MUTEX(smc_mistakes_first);
static DEFINE_MUTEX(smc_mistakes_second);

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

static int race(void)
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
	return number == 2 ? 0 : PTR_ERR(threads[number]);
}

static int make_mistake(const char *text, const struct kernel_param *kp)
{
	if (sysfs_streq(text, "leak"))
		leak();
	else if (sysfs_streq(text, "use-after-free"))
		use_after_free();
	else if (sysfs_streq(text, "deadlock"))
		deadlock();
	else if (sysfs_streq(text, "race"))
		return race();
	else if (!sysfs_streq(text, "nothing"))
		return -EINVAL;
	return 0;
}

static const struct kernel_param_ops mistake_ops = { .set = make_mistake };
module_param_cb(mistake, &mistake_ops, NULL, 0200);
MODULE_PARM_DESC(mistake, "made when it is written");

MODULE_DESCRIPTION("Makes mistakes, for tests of what looks for them");
MODULE_LICENSE("GPL");

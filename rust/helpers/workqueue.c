// SPDX-License-Identifier: GPL-2.0

#include <linux/rcupdate.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>

/* The kernel frees its memory in a thread of its own and after a grace period, when the module may be gone: so it is not
 * accounted to the module, as alloc_workqueue() would have it.
 */
__rust_helper struct workqueue_struct *rust_helper_workqueue_new(const char *name,
								 unsigned int flags, int max)
{
	return alloc_workqueue_noprof("%s", flags, max, name);
}

/* What INIT_WORK() does with a key of the caller's: `name` and `key` live for ever, as lockdep remembers them. */
__rust_helper void rust_helper_work_init(struct work_struct *work, work_func_t func,
					 const char *name, struct lock_class_key *key)
{
	__init_work(work, false);
	work->data = (atomic_long_t)WORK_DATA_INIT();
	lockdep_init_map(&work->lockdep_map, name, key, 0);
	INIT_LIST_HEAD(&work->entry);
	work->func = func;
}

__rust_helper bool rust_helper_work_queue(struct workqueue_struct *wq, struct work_struct *work)
{
	return queue_work(wq, work);
}

__rust_helper bool rust_helper_work_pending(struct work_struct *work)
{
	return work_pending(work);
}

__rust_helper void rust_helper_delayed_work_init(struct delayed_work *dwork, work_func_t func,
						 const char *name, struct lock_class_key *key)
{
	INIT_DELAYED_WORK(dwork, func);
	lockdep_init_map(&dwork->work.lockdep_map, name, key, 0);
}

__rust_helper bool rust_helper_delayed_work_queue(struct workqueue_struct *wq,
						  struct delayed_work *dwork, unsigned int ms)
{
	return queue_delayed_work(wq, dwork, msecs_to_jiffies(ms));
}

__rust_helper bool rust_helper_delayed_work_pending(struct delayed_work *dwork)
{
	return delayed_work_pending(dwork);
}

__rust_helper void rust_helper_spin_lock_bh(spinlock_t *lock)
{
	spin_lock_bh(lock);
}

__rust_helper void rust_helper_spin_unlock_bh(spinlock_t *lock)
{
	spin_unlock_bh(lock);
}

__rust_helper int rust_helper_spin_trylock_bh(spinlock_t *lock)
{
	return spin_trylock_bh(lock);
}

__rust_helper void rust_helper_wait_rcu(void)
{
	synchronize_rcu();
}

__rust_helper void rust_helper_wait_rcu_tasks(void)
{
	synchronize_rcu_tasks();
}

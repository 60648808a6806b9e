// SPDX-License-Identifier: GPL-2.0

#include <linux/cpumask.h>
#include <linux/percpu.h>

__rust_helper void *rust_helper_percpu_alloc(size_t size, size_t align)
{
	return (void *)(__force unsigned long)__alloc_percpu(size, align);
}

__rust_helper void rust_helper_percpu_free(void *base)
{
	free_percpu((void __percpu __force *)(unsigned long)base);
}

__rust_helper void *rust_helper_percpu_of(void *base, unsigned int cpu)
{
	return per_cpu_ptr((void __percpu __force *)(unsigned long)base, cpu);
}

__rust_helper void *rust_helper_percpu_here(void *base)
{
	return raw_cpu_ptr((void __percpu __force *)(unsigned long)base);
}

/* The possible processor after that number; from the highest number on: one too high for any. */
__rust_helper unsigned int rust_helper_percpu_next(int after)
{
	if (after >= (int)nr_cpu_ids)
		return nr_cpu_ids;
	return cpumask_next(after, cpu_possible_mask);
}

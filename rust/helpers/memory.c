// SPDX-License-Identifier: GPL-2.0

#include <linux/mm.h>
#include <linux/shrinker.h>

/* Registers who gives memory back; both functions find `data` in `private_data`. */
__rust_helper struct shrinker *
rust_helper_shrinker_new(const char *name,
			 unsigned long (*count)(struct shrinker *shrinker, struct shrink_control *sc),
			 unsigned long (*scan)(struct shrinker *shrinker, struct shrink_control *sc),
			 void *data)
{
	struct shrinker *shrinker = shrinker_alloc(0, "%s", name);

	if (!shrinker)
		return NULL;
	shrinker->count_objects = count;
	shrinker->scan_objects = scan;
	shrinker->private_data = data;
	shrinker_register(shrinker);
	return shrinker;
}

__rust_helper void *rust_helper_shrinker_data(const struct shrinker *shrinker)
{
	return shrinker->private_data;
}

__rust_helper unsigned long rust_helper_total_ram_pages(void)
{
	return totalram_pages();
}

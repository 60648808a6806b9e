// SPDX-License-Identifier: GPL-2.0
/*
 * A plugin of QEMU's emulator: counts the instructions that a guest executes, by places in its kernel's modules.
 *
 *	qemu-system-x86_64 -plugin insns.so,out=FILE[,shift=BITS] ...
 *
 * A place is a piece of so many bits of address: a page, unless something finer is asked for.
 *
 * A program in the guest marks where a phase ends by executing MARK. The counts of the phase are then
 * appended to FILE, a line each, and a line that ends them:
 *
 *	PHASE ADDRESS COUNT		a place, and what was executed there
 *	PHASE guest COUNT		the whole guest, kernel and programs
 *	PHASE end
 *
 * A block of translated code is counted when it is entered, with all of its instructions: where one of them
 * faults the rest counts all the same, which in a module's code hardly ever happens.
 *
 * The declarations are those of version 4 of the interface (QEMU 9.2 to 10), of which no package of Debian
 * has the header.
 */
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
typedef struct {
	struct qemu_plugin_scoreboard *score;
	size_t offset;
} qemu_plugin_u64;
enum qemu_plugin_op { QEMU_PLUGIN_INLINE_ADD_U64 };
enum qemu_plugin_cb_flags { QEMU_PLUGIN_CB_NO_REGS };
struct qemu_info_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;

void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id,
		void (*cb)(qemu_plugin_id_t id, struct qemu_plugin_tb *tb));
void qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(struct qemu_plugin_tb *tb, enum qemu_plugin_op op,
		qemu_plugin_u64 entry, uint64_t imm);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *insn,
		void (*cb)(unsigned int vcpu, void *data), enum qemu_plugin_cb_flags flags, void *data);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *tb, size_t index);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
size_t qemu_plugin_insn_data(const struct qemu_plugin_insn *insn, void *bytes, size_t len);
struct qemu_plugin_scoreboard *qemu_plugin_scoreboard_new(size_t size);
uint64_t qemu_plugin_u64_sum(qemu_plugin_u64 entry);

#define API __attribute__((visibility("default")))
API int qemu_plugin_version = 4;

/* nopl with an offset that no compiler makes, "SMCn": does nothing. count.py executes it. */
static const uint8_t MARK[] = { 0x0f, 0x1f, 0x84, 0x00, 'S', 'M', 'C', 'n' };

/* Where x86-64 Linux has its modules, without KASLR. */
#define FIRST	0xffffffffa0000000ull
#define LAST	0xffffffffff000000ull

/* The size of a place, as a power of two. */
#define SHIFT_MIN 4
#define SHIFT_MAX 12
static unsigned int shift = SHIFT_MAX;

/* Counters for so many places with code that is executed; the first one counts everything. */
#define COUNTERS 65536
static struct qemu_plugin_scoreboard *board;
static uint64_t before[COUNTERS];
static uint64_t address_of[COUNTERS];
static unsigned int used = 1;
/* The counter of a place, or 0. Of the table only what is used takes memory. */
static uint16_t counter_of[(LAST - FIRST) >> SHIFT_MIN];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *out;
static unsigned int phase;

static qemu_plugin_u64 entry(unsigned int counter)
{
	return (qemu_plugin_u64){ board, counter * sizeof(uint64_t) };
}

static void phase_ends(unsigned int vcpu, void *data)
{
	(void)vcpu;
	(void)data;
	pthread_mutex_lock(&lock);
	for (unsigned int i = 0; i < used; i++) {
		uint64_t now = qemu_plugin_u64_sum(entry(i)), count = now - before[i];

		before[i] = now;
		if (!count)
			continue;
		if (i)
			fprintf(out, "%u %#" PRIx64 " %" PRIu64 "\n", phase, address_of[i], count);
		else
			fprintf(out, "%u guest %" PRIu64 "\n", phase, count);
	}
	fprintf(out, "%u end\n", phase++);
	fflush(out);
	pthread_mutex_unlock(&lock);
}

/* Gives 0 for what is not in a module. */
static unsigned int counter_for(uint64_t address)
{
	unsigned int counter;
	uint16_t *known;

	if (address < FIRST || address >= LAST)
		return 0;
	known = &counter_of[(address - FIRST) >> shift];
	pthread_mutex_lock(&lock);
	if (!*known) {
		if (used == COUNTERS) {
			fputs("insns: more code in modules than there are counters for\n", stderr);
			abort();
		}
		address_of[used] = address >> shift << shift;
		*known = used++;
	}
	counter = *known;
	pthread_mutex_unlock(&lock);
	return counter;
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	unsigned int counter = counter_for(qemu_plugin_tb_vaddr(tb));
	size_t count = qemu_plugin_tb_n_insns(tb);
	uint8_t bytes[sizeof(MARK)];

	(void)id;
	qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_ADD_U64, entry(0), count);
	if (counter)
		qemu_plugin_register_vcpu_tb_exec_inline_per_vcpu(tb, QEMU_PLUGIN_INLINE_ADD_U64, entry(counter),
				count);
	for (size_t i = 0; i < count; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

		if (qemu_plugin_insn_size(insn) == sizeof(MARK) &&
		    qemu_plugin_insn_data(insn, bytes, sizeof(bytes)) == sizeof(MARK) &&
		    !memcmp(bytes, MARK, sizeof(MARK)))
			qemu_plugin_register_vcpu_insn_exec_cb(insn, phase_ends, QEMU_PLUGIN_CB_NO_REGS, NULL);
	}
}

API int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info_t *info, int argc, char **argv)
{
	const char *path = NULL;

	(void)info;
	for (int i = 0; i < argc; i++) {
		if (!strncmp(argv[i], "out=", 4))
			path = argv[i] + 4;
		else if (!strncmp(argv[i], "shift=", 6))
			shift = atoi(argv[i] + 6);
		else
			path = NULL;
	}
	if (!path || shift < SHIFT_MIN || shift > SHIFT_MAX) {
		fprintf(stderr, "insns: out=FILE is wanted, and perhaps shift=%d..%d\n", SHIFT_MIN, SHIFT_MAX);
		return -1;
	}
	out = fopen(path, "w");
	if (!out) {
		perror(path);
		return -1;
	}
	board = qemu_plugin_scoreboard_new(COUNTERS * sizeof(uint64_t));
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	return 0;
}

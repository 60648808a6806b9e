# SPDX-License-Identifier: GPL-2.0
"""Shows that what a guest's console says of trouble is found, each kind of it, and nothing else."""

import os
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "vm"))
sys.dont_write_bytecode = True
# pylint: disable=wrong-import-position
from vmlib import console

# Reports, each in the kernel's words, by what they are about.
REPORTS = {
    "a warning": """
------------[ cut here ]------------
WARNING: net/core/sock.c:3170 at sk_stream_kill_queues+0x12/0x40, CPU#1: python3/412""",
    "KASAN": """
==================================================================
BUG: KASAN: slab-use-after-free in _RNvMs_CsExample_5smc_r4conn+0x1c4/0x2f0 [smc_r]
Read of size 8 at addr ffff888104c1a3c8 by task kworker/1:2/88""",
    "KASAN, of a wild pointer": """
KASAN: null-ptr-deref in range [0x0000000000000008-0x000000000000000f]""",
    "KCSAN, ours first": """
==================================================================
BUG: KCSAN: data-race in pump+0x30/0x90 [smc_r] / tcp_rcv_established+0x88/0x900

write to 0xffff888107c0a310 of 4 bytes by task 412 on cpu 0:
 pump+0x30/0x90 [smc_r]
 sendmsg+0x99/0x160 [smc_r]

read to 0xffff888107c0a310 of 4 bytes by interrupt on cpu 1:
 tcp_rcv_established+0x88/0x900

Reported by Kernel Concurrency Sanitizer on:
==================================================================""",
    "KCSAN, ours second": """
==================================================================
BUG: KCSAN: data-race in tcp_rcv_established+0x88/0x900 / pump+0x30/0x90 [smc_r]

read to 0xffff888107c0a310 of 4 bytes by interrupt on cpu 1:
 tcp_rcv_established+0x88/0x900

write to 0xffff888107c0a310 of 4 bytes by task 412 on cpu 0:
 pump+0x30/0x90 [smc_r]
==================================================================""",
    "KCSAN, ours by way of a copy": """
==================================================================
BUG: KCSAN: data-race in __memcpy+0x8/0x20 / smc_diag_fill+0x30/0x90 [smc_diag]

race at unknown origin, with read to 0xffff888107c0a310 of 4 bytes by task 412 on cpu 0:
 __memcpy+0x8/0x20
 smc_diag_fill+0x30/0x90 [smc_diag]
==================================================================""",
    "KCSAN, ours by way of a list": """
==================================================================
BUG: KCSAN: data-race in __list_add_valid_or_report+0x3c/0xf0 / __list_del_entry_valid_or_report+0x20/0x130

write to 0xffff888107c0a310 of 8 bytes by task 412 on cpu 0:
 __list_add_valid_or_report+0x3c/0xf0
 rust_helper_sk_list_add+0x88/0xd0 [smc_r]
 create+0x99/0x160 [smc_r]

read to 0xffff888107c0a310 of 8 bytes by task 413 on cpu 1:
 __list_del_entry_valid_or_report+0x20/0x130
 inet_csk_destroy_sock+0x5b/0x1d0
==================================================================""",
    "lockdep, a circle": """
======================================================
WARNING: possible circular locking dependency detected
7.3.4-smc-debug #1 Not tainted""",
    "lockdep, the lines of a circle alone": """
possible circular locking dependency detected""",
    "lockdep, twice the same": """
possible recursive locking detected""",
    "lockdep, a lock that interrupts take": """
possible irq lock inversion dependency detected""",
    "lockdep, the state of a lock": """
inconsistent lock state
7.3.4-smc-debug #1 Not tainted
inconsistent {SOFTIRQ-ON-W} -> {IN-SOFTIRQ-W} usage.""",
    "lockdep, a sleeping lock where none may sleep": """
=============================
[ BUG: Invalid wait context ]
7.3.4-smc-debug #1 Not tainted""",
    "lockdep, a lock that is freed": """
held lock freed!""",
    "lockdep, a lock that is kept": """
lock held when returning to user space!""",
    "lockdep, a lock without a class": """
INFO: trying to register non-static key.""",
    "lockdep's own arithmetic": """
DEBUG_LOCKS_WARN_ON(lock->magic != lock)""",
    "lockdep is off": """
smc-vm: lockdep is off""",
    "kmemleak": """
kmemleak: 2 new suspected memory leaks (see /sys/kernel/debug/kmemleak)""",
    "kmemleak, what it lists": """
unreferenced object 0xffff888104c1a300 (size 96):""",
    "kmemleak gives up": """
kmemleak: Kernel memory leak detector disabled""",
    "ODEBUG": """
------------[ cut here ]------------
ODEBUG: free active (active state 0) object: ffff888104c1a3c8 object type: work_struct hint: func+0x0/0x40 [smc_r]""",
    "a task that hangs": """
INFO: task kworker/u8:3:412 blocked for more than 120 seconds.""",
    "a processor that does not come back": """
watchdog: BUG: soft lockup - CPU#1 stuck for 123s! [python3:412]""",
    "a processor without interrupts": """
watchdog: Watchdog detected hard LOCKUP on cpu 1""",
    "RCU, on the processor itself": """
rcu: INFO: rcu_preempt self-detected stall on CPU""",
    "RCU, of others": """
rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:""",
    "RCU, of others that somebody waits for in a hurry": """
rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 1-.... } 6060 jiffies s: 412 root: 0x2/.""",
    "UBSAN": """
UBSAN: array-index-out-of-bounds in net/ipv4/tcp_input.c:4012:17""",
    "counted references": """
refcount_t: underflow; use-after-free.""",
    "a list": """
list_del corruption. prev->next should be ffff888104c1a3c8, but was dead000000000100""",
    "another list": """
list_add corruption. next->prev should be prev""",
    "objects that a cache keeps": """
BUG smc_r_cache (Not tainted): Objects remaining on __kmem_cache_shutdown()""",
    "red zones": """
BUG kmalloc-96 (Tainted: G           OE      ): Object corrupt""",
    "what is left when a cache goes": """
Objects remaining in smc_r_cache on __kmem_cache_shutdown()""",
    "pages of a module that went": """
smc_r: rust/ib/memory.rs:88 func:alloc has 4096 allocated at module unload""",
    "pages are not counted": """
memory allocation profiling is disabled due to insufficient memory""",
    "a page fault": """
BUG: unable to handle page fault for address: ffffc90000a0d000""",
    "a page fault, without its beginning": """
unable to handle kernel NULL pointer dereference at 0000000000000008""",
    "an oops": """
Oops: Oops: 0002 [#1] SMP NOPTI""",
    "a protection fault": """
Oops: general protection fault, probably for non-canonical address 0xdead000000000108: 0000 [#1] SMP""",
    "a stack segment": """
stack segment: 0000 [#1] SMP""",
    "a division": """
divide error: 0000 [#1] SMP""",
    "an opcode, that of BUG()": """
kernel BUG at net/core/skbuff.c:212!
invalid opcode: 0000 [#1] SMP""",
    "sleep where none may be": """
BUG: sleeping function called from invalid context at kernel/locking/mutex.c:580""",
    "sleep with a spin lock": """
BUG: scheduling while atomic: swapper/0/0/0x00000100""",
    "a stack": """
Call Trace:
 <TASK>""",
    "the end": """
Kernel panic - not syncing: Fatal exception in interrupt""",
    "a card that somebody holds": """
unregister_netdevice: waiting for veth0 to become free. Usage count = 2""",
    "a namespace that somebody holds": """
ref_tracker: net_refcnt@ffff888104c1a300 has 1/1 users at
     sk_alloc+0x3c4/0x4e0""",
    "a reference that was given back twice": """
ref_tracker: reference already released.""",
    "Rust": """
rust_kernel: panicked at rust/ib/queue.rs:120:9:""",
    "no memory": """
Out of memory: Killed process 412 (python3) total-vm:1200kB""",
    "no memory in a group": """
Memory cgroup out of memory: Killed process 412 (python3)""",
    "netlink": """
netlink: truncated extack""",
    "what a test leaves": """
smc-vm: left behind: /sys/module/smc_r""",
    "the guest itself": """
smc-vm: cannot boot: no root file system""",
}
# What kernels say of themselves, and races that are their own.
HARMLESS = """
Linux version 7.3.4-smc-debug (build@host) (clang version 19.1.7) #1 SMP PREEMPT_DYNAMIC
Command line: console=ttyS0 loglevel=5 panic=-1 oops=panic slab_debug=FZP
kmemleak: Kernel memory leak detector initialized (mem pool available: 31780)
kmemleak: Cannot allocate a scan area, scanning the full object
kmemleak: 0 new suspected memory leaks (see /sys/kernel/debug/kmemleak)
kasan: KernelAddressSanitizer initialized (generic)
kcsan: enabled early
Lock dependency validator: Copyright (c) 2006 Red Hat, Inc., Ingo Molnar
... MAX_LOCKDEP_SUBCLASSES:  8
smc_r: loading out-of-tree module taints kernel.
smc_r: module verification failed: signature and/or required key missing - tainting kernel
smc-vm: begin basic
smc-vm: end basic
rdma_rxe: loaded
rxe_right: added right
NET: Registered PF_SMC protocol family
rcu: Hierarchical SRCU implementation.
workqueue: round-robin CPU selection forced, expect performance impact
IPv6: ADDRCONF(NETDEV_CHANGE): veth0: link becomes ready
python3 (412) drop_caches: 2
==================================================================
BUG: KCSAN: data-race in tcp_rcv_established+0x88/0x900 / tcp_poll+0x30/0x90

read to 0xffff888107c0a310 of 4 bytes by interrupt on cpu 1:
 tcp_rcv_established+0x88/0x900
 data_ready+0x30/0x90 [smc_r]

write to 0xffff888107c0a310 of 4 bytes by task 412 on cpu 0:
 tcp_poll+0x30/0x90
 poll+0x30/0x90 [smc_r]

Reported by Kernel Concurrency Sanitizer on:
==================================================================
BUG: KCSAN: data-race in skb_queue_tail+0x40/0xa0 / _find_next_bit+0x1c/0x80

write to 0xffff888107c0a310 of 8 bytes by interrupt on cpu 1:
 skb_queue_tail+0x40/0xa0
 sock_queue_err_skb+0x98/0x1d0
 sent+0x30/0x90 [smc_r]

read to 0xffff888107c0a310 of 8 bytes by task 412 on cpu 0:
 _find_next_bit+0x1c/0x80
 cpumask_next+0x20/0x40
 pump+0x30/0x90 [smc_r]
==================================================================
"""
# Functions of the kernel whose accesses are those of their callers.
LEAVES = "__memset _copy_to_iter strnlen sized_strscpy __list_del_entry_valid_or_report rb_insert_color _find_next_bit " \
    "_find_first_zero_bit sg_init_one nla_put __nla_put.constprop.0 skb_push pskb_expand_head string rust_helper_atomic_read"
STAMPS = "", "[   12.345678] ", "[   12.345678][  T412] ", "[  112.345678][    C1] "


def said(folder, text, stamp, allow=(), halves=False):
    """What is found in a console's text, whose lines begin with a stamp; it may come in two parts."""
    path = Path(folder, "console.log")
    data = "".join(f"{stamp}{line}\r\n" for line in text.strip("\n").split("\n")).encode()
    path.write_bytes(data[: len(data) // 2] if halves else data)
    read = console.Console(path, allow)
    found = list(read.poll())
    if halves:
        with open(path, "ab") as file:
            file.write(data[len(data) // 2 :])
        found += read.poll()
    assert found == read.trouble, (found, read.trouble)
    assert bool(found) == bool(read.excerpt()), "the lines around it"
    return found


def alternatives(pattern):
    """What an expression looks for: its parts between those `|` that are in no brackets."""
    parts, depth = [""], 0
    for piece in re.findall(r"\\.|\[[^]]*\]|.", pattern, re.DOTALL):
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    return parts


def main():
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        for stamp in STAMPS:
            for halves in False, True:
                for name, text in REPORTS.items():
                    if not said(folder, text, stamp, halves=halves):
                        wrong.append(f"{name} is not found behind {stamp!r}")
                for line in said(folder, HARMLESS, stamp, halves=halves):
                    wrong.append(f"taken for trouble: {line}")
        by_copy = REPORTS["KCSAN, ours by way of a copy"]
        for name in LEAVES.split():
            if not said(folder, by_copy.replace("__memcpy", name), STAMPS[0]):
                wrong.append(f"KCSAN, ours by way of {name}, is not found")
        # What a test allows, alone.
        both = "Out of memory: Killed process 412\n" + REPORTS["UBSAN"].strip()
        if said(folder, both, STAMPS[1], ["[Oo]ut of memory"]) != [STAMPS[1] + REPORTS["UBSAN"].strip()]:
            wrong.append("allowing one thing allows others, or not that one")
    lines = [line for text in REPORTS.values() for line in text.split("\n")]
    parts = alternatives(console.TROUBLE.pattern)
    for part in parts:
        if not any(re.search(part, line, re.VERBOSE) for line in lines):
            wrong.append(f"no report here has {part.strip()}")
    for what in wrong:
        print(f"# {what}")
    print(f"# {len(REPORTS)} reports, {len(parts)} things that are looked for")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

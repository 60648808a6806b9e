/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Headers for which `bindgen` generates the Rust bindings of this tree. What the kernel's own
 * bindings define in full is taken from there, see rust/bindgen.mk. Sorted alphabetically.
 */

/* First, see the note on forward references to `enum` types in the kernel's bindings_helper.h. */
#include <linux/hrtimer_types.h>

#include <linux/inetdevice.h>
#include <linux/ipv6.h>
#include <linux/net.h>
#include <linux/netdevice.h>
#include <linux/netfilter.h>
#include <linux/netlink.h>
#include <linux/poll.h>
#include <linux/reboot.h>
#include <linux/scatterlist.h>
#include <linux/shrinker.h>
#include <linux/sock_diag.h>
#include <linux/socket.h>
#include <linux/sockios.h>
#include <linux/sysctl.h>
#include <linux/tcp.h>
#include <linux/workqueue.h>
#include <net/genetlink.h>
#include <net/inet_sock.h>
#include <net/ipv6.h>
#include <net/net_namespace.h>
#include <net/netlink.h>
#include <net/protocol.h>
#include <net/sock.h>
#include <net/tcp.h>
#include <net/tcp_states.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_verbs.h>
#include <uapi/asm/ioctls.h>

#include "../helpers/helpers.h"

/* Macros which `bindgen` does not evaluate. */
/* Enumerations which bindgen treats differently from kernel to kernel. */
const unsigned int RUST_CONST_HELPER_DMA_TO_DEVICE = DMA_TO_DEVICE;
const unsigned int RUST_CONST_HELPER_DMA_BIDIRECTIONAL = DMA_BIDIRECTIONAL;

const unsigned int RUST_CONST_HELPER_EPOLLIN = (unsigned int)EPOLLIN;
const unsigned int RUST_CONST_HELPER_EPOLLPRI = (unsigned int)EPOLLPRI;
const unsigned int RUST_CONST_HELPER_EPOLLOUT = (unsigned int)EPOLLOUT;
const unsigned int RUST_CONST_HELPER_EPOLLERR = (unsigned int)EPOLLERR;
const unsigned int RUST_CONST_HELPER_EPOLLHUP = (unsigned int)EPOLLHUP;
const unsigned int RUST_CONST_HELPER_EPOLLRDNORM = (unsigned int)EPOLLRDNORM;
const unsigned int RUST_CONST_HELPER_EPOLLRDBAND = (unsigned int)EPOLLRDBAND;
const unsigned int RUST_CONST_HELPER_EPOLLWRNORM = (unsigned int)EPOLLWRNORM;
const unsigned int RUST_CONST_HELPER_EPOLLWRBAND = (unsigned int)EPOLLWRBAND;
const unsigned int RUST_CONST_HELPER_EPOLLRDHUP = (unsigned int)EPOLLRDHUP;
const unsigned int RUST_CONST_HELPER_WQ_UNBOUND_FLAG = WQ_UNBOUND;
const unsigned int RUST_CONST_HELPER_WQ_MEM_RECLAIM_FLAG = WQ_MEM_RECLAIM;
const unsigned int RUST_CONST_HELPER_SIOCINQ_CMD = SIOCINQ;
const unsigned int RUST_CONST_HELPER_SIOCOUTQ_CMD = SIOCOUTQ;
const unsigned int RUST_CONST_HELPER_SIOCOUTQNSD_CMD = SIOCOUTQNSD;
const unsigned int RUST_CONST_HELPER_SIOCATMARK_CMD = SIOCATMARK;

// SPDX-License-Identifier: GPL-2.0

#ifndef __BINDGEN__
#define CREATE_TRACE_POINTS
#endif
#include "../trace/smc.h"

/* Whether anybody traces, so that nothing has to be looked up if not: a jump that is patched. */
__rust_helper bool rust_helper_trace_fallback_enabled(void)
{
	return trace_smc_switch_to_fallback_enabled();
}

__rust_helper bool rust_helper_trace_sent_enabled(void)
{
	return trace_smc_tx_sendmsg_enabled();
}

__rust_helper bool rust_helper_trace_received_enabled(void)
{
	return trace_smc_rx_recvmsg_enabled();
}

__rust_helper bool rust_helper_trace_link_down_enabled(void)
{
	return trace_smcr_link_down_enabled();
}

__rust_helper void rust_helper_trace_fallback(const void *sk, const void *tcp, u64 net, u32 reason)
{
	trace_smc_switch_to_fallback(sk, tcp, net, reason);
}

__rust_helper void rust_helper_trace_sent(const void *sk, u64 net, size_t len, const char *device)
{
	trace_smc_tx_sendmsg(sk, net, len, device);
}

__rust_helper void rust_helper_trace_received(const void *sk, u64 net, size_t len, const char *device)
{
	trace_smc_rx_recvmsg(sk, net, len, device);
}

__rust_helper void rust_helper_trace_link_down(const void *link, const void *group, u64 net, int state,
					       const char *device)
{
	trace_smcr_link_down(link, group, net, state, device, __builtin_return_address(0));
}

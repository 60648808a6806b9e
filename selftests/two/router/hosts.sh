# SPDX-License-Identifier: GPL-2.0
# What both hosts do for themselves.
# shellcheck shell=bash disable=SC2034 # lib.sh and the tests use the addresses

# As led_by_a, with the addresses of the cards to the router.
routed_hosts() {
	led_by_a
	case $VM_ROLE in
	a) A4=$VM_LOCAL2 A6=$VM_LOCAL6_2 B4=$VM_PEER2 B6=$VM_PEER6_2 ;;
	*) A4=$VM_PEER2 A6=$VM_PEER6_2 B4=$VM_LOCAL2 B6=$VM_LOCAL6_2 ;;
	esac
}

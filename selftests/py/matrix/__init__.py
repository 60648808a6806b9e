# SPDX-License-Identifier: GPL-2.0
"""System calls on TCP sockets and on ours: harness, calls that Python lacks, and scripts."""

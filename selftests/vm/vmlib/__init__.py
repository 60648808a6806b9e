# SPDX-License-Identifier: GPL-2.0
"""Boots test guests and judges what they print."""

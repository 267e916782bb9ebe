# SPDX-License-Identifier: Apache-2.0
"""Runs compiled kernels (SASS, the machine code of sm_90) on the host and counts the instructions of their warps."""

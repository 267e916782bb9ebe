# SPDX-License-Identifier: Apache-2.0
"""Inference engines: address maps of their live weights, and receivers that patch them."""

# SPDX-License-Identifier: Apache-2.0
"""Tests that users run against their own installations."""

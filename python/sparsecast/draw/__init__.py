# SPDX-License-Identifier: Apache-2.0
"""Pictures of what ``sparsecast plan --json`` and ``sparsecast log status --json`` print.

    sparsecast log status /shared/log --json | python -m sparsecast.draw - log.svg

Needs the package ``matplotlib``.
"""

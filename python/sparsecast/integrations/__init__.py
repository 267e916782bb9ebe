# SPDX-License-Identifier: Apache-2.0
"""sparsecast inside RL frameworks, through the hooks that they have: docs/integrations.md."""

# SPDX-License-Identifier: Apache-2.0
"""sparsecast in trainers of others, by a flag of theirs: docs/integrations.md."""

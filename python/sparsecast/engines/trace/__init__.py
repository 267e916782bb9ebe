# SPDX-License-Identifier: Apache-2.0
"""How an engine's own loading of a checkpoint is traced to the addresses of its live weights (`loader`)."""

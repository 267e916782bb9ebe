# SPDX-License-Identifier: Apache-2.0
"""Names that SkyRL imports."""

pad_input = unpad_input = None

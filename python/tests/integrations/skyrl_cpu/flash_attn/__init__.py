# SPDX-License-Identifier: Apache-2.0
"""In place of the kernels for CUDA. SkyRL imports two names from here; without padding removed it calls neither."""

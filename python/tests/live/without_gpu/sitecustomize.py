# SPDX-License-Identifier: Apache-2.0
"""PyPI's torchvision is compiled for CUDA, and its registrations fail beside a CPU build of torch. SGLang needs none."""

import sys
import types

sys.modules["torchvision._meta_registrations"] = types.ModuleType("torchvision._meta_registrations")

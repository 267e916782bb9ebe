# SPDX-License-Identifier: Apache-2.0
"""What every rank of the SGLang tests imports, for a fork server to import once for all of them."""

from __future__ import annotations

import sglang_engine

sglang_engine.allow_import_without_gpu()

import sglang.srt.managers.scheduler
import sglang.srt.managers.tp_worker  # noqa: F401
import sglang.srt.models.registry  # noqa: F401

import sparsecast.engines.sglang.plugin  # noqa: F401

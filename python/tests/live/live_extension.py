# SPDX-License-Identifier: Apache-2.0
"""sparsecast's worker extension with a method more, by which tests see the draft of a live vLLM server."""

from __future__ import annotations

import hashlib

import torch

from sparsecast.engines.vllm import WorkerExtension, draft_model


class DraftWatcher(WorkerExtension):
    def draft_hashes(self) -> dict[str, str]:
        """The bytes of every parameter of the draft, as hashes."""
        draft = draft_model(self)
        assert draft is not None
        return {
            name: hashlib.sha256(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()
            for name, tensor in draft.named_parameters()
        }

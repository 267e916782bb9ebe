# SPDX-License-Identifier: Apache-2.0
"""What does a vLLM server serve after an update of its weights has failed? Tries it with any weight-transfer backend.

    python -m sparsecast.testing.weight_transfer --backend sparsecast

docs/reliability.md says what is done, what the verdicts mean, and how a backend that is not known here is tried.
"""

# SPDX-License-Identifier: Apache-2.0
"""What is called in another way in older releases of SGLang, found by the thing itself and not by the version.

This module imports SGLang; it is imported where it is used.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

__all__ = [
    "get_exec",
    "get_lora",
    "get_model",
    "get_parallel",
    "get_serving",
    "get_spec",
    "name_version",
    "named_version",
    "resumption",
]

try:
    from sglang.srt.runtime_context import get_exec, get_lora, get_model, get_parallel, get_serving, get_spec
except ImportError:  # Before 0.5.18 one object has all arguments of the server.
    from sglang.srt.server_args import get_global_server_args

    get_lora = get_model = get_serving = get_spec = get_global_server_args

    def get_exec() -> Any:
        arguments = get_global_server_args()
        return SimpleNamespace(features=arguments, moe=arguments)

    def get_parallel() -> Any:
        """Without `dp_rank`, which the scheduler has. With attention by replicas, all ranks hold the model together."""
        arguments = get_global_server_args()
        replicas = 1 if arguments.enable_dp_attention else arguments.dp_size
        return SimpleNamespace(tp_size=arguments.tp_size, pp_size=arguments.pp_size, dp_size=replicas)


def resumption() -> Any:
    """Returns the message that resumes generation, and leaves torch's cache of memory as it is."""
    from sglang.srt.managers.io_struct import ContinueGenerationReqInput

    try:
        return ContinueGenerationReqInput(torch_empty_cache=False)
    except TypeError:  # Before 0.5.12 it always leaves it.
        return ContinueGenerationReqInput()


async def name_version(tokenizer: Any, version: str) -> None:
    """Makes the server name `version` as that of its weights; `tokenizer` is its tokenizer manager."""
    from sglang.srt.managers.io_struct import UpdateWeightVersionReqInput

    message = UpdateWeightVersionReqInput(new_version=version, abort_all_requests=False)
    if hasattr(tokenizer, "update_weight_version"):
        await tokenizer.update_weight_version(message)
    else:  # The work is in the route.
        from sglang.srt.entrypoints.http_server import update_weight_version

        await update_weight_version(message, None)


def named_version(tokenizer: Any) -> str:
    """Returns the version that the server names; `tokenizer` is its tokenizer manager."""
    if hasattr(tokenizer, "config_value"):
        return str(tokenizer.config_value("weight_version"))
    return str(tokenizer.server_args.weight_version)

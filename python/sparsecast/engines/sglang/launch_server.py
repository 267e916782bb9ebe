# SPDX-License-Identifier: Apache-2.0
"""SGLang's server with this plug-in, for releases that have no plug-ins and so do not find it:

    python -m sparsecast.engines.sglang.launch_server --model-path MODEL ...

The arguments are those of `python -m sglang.launch_server`. SGLang starts its processes anew, and each of them runs the
main module of its parent as `__mp_main__`: that is how the hooks come into all of them. A program that starts SGLang
itself imports this module in its main module, for the same effect.
"""

from __future__ import annotations

import runpy

from sparsecast.engines.sglang.installed import check_version, defines, install
from sparsecast.engines.sglang.plugin import hooks

if not defines("sglang.srt.plugins", "load_plugins"):  # Else SGLang loads the plug-in itself.
    check_version()
    install(hooks())

if __name__ == "__main__":
    runpy.run_module("sglang.launch_server", run_name="__main__")

# SPDX-License-Identifier: Apache-2.0
"""An S3 server at the address that is the argument: prints as JSON what its clients need in their environment, and
serves until its standard input ends.
"""

import json
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from s3_server import S3Server  # noqa: E402

signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
with S3Server(sys.argv[1]) as server:
    print(json.dumps({**server.environment, "no_proxy": sys.argv[1]}), flush=True)
    sys.stdin.read()

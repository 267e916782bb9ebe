# SPDX-License-Identifier: Apache-2.0
"""Hosts on one machine, as network namespaces, with a wide-area network between them (wide_area_link.cpp).

    links = {"bucket": Link(), "far": Link(mbit=100, delay_ms=20, loss_percent=0.1)}
    with Network("build/release/bin/wide_area_link", links) as network:
        server = network.start("bucket", ["python3", "server.py", network.address("bucket")])

A packet passes the link of its sender, then that of its receiver, so that the round trip between two hosts takes twice
the sum of their delays. Needs root, iproute2 and /dev/net/tun; no netem.
"""

import ctypes
import dataclasses
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import threading
import time

PREFIX = "sparsecast-wan"


class Unavailable(Exception):
    """Why there are no network namespaces on this machine, or not for this user."""


@dataclasses.dataclass(frozen=True)
class Link:
    """How a host is connected, in both directions. `mbit` 0: without a limit."""

    mbit: float = 0
    delay_ms: float = 0
    jitter_ms: float = 0
    loss_percent: float = 0


class Program:
    """A running process, and the lines that it writes to its standard output. It ends with this process.

    `heard` is the time (since 1970, in seconds) at which it wrote the line that wait_for() returned last.
    """

    def __init__(self, command, **more):
        more.setdefault("stdin", subprocess.PIPE)
        self.process = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, text=True, bufsize=1, preexec_fn=_end_with_parent, **more
        )
        self.name = " ".join(map(str, command))
        self.heard = None
        self._lines = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self._lines.put((time.time(), line.rstrip("\n")))
        self._lines.put((time.time(), None))

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def wait_for(self, wanted, seconds=120):
        """The next line for which `wanted` is true; those before it are dropped. Raises TimeoutError, or EOFError when
        the process has ended without such a line; both with the lines that came instead.
        """
        deadline = time.monotonic() + seconds
        others = []
        while True:
            try:
                self.heard, line = self._lines.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"{self.name}: not within {seconds} s, only {others[-20:]}") from None
            if line is None:
                self._lines.put((self.heard, None))
                raise EOFError(f"{self.name}: it has ended, with status {self.process.wait()}, after {others[-20:]}")
            if wanted(line):
                return line
            others.append(line)

    def wait(self, seconds=120):
        """Waits until the process has ended, and returns its status. One that does not end in time is killed."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self._reader.join()
            self.process.stdin.close()
            self.process.stdout.close()

    def end(self):
        """Asks the process to end (SIGTERM), and waits until it has."""
        self.process.terminate()
        self.wait(20)


def _end_with_parent():
    """In the child: the kernel kills it when this process is gone (PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _ip(*arguments):
    done = subprocess.run(["ip", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"ip {' '.join(map(str, arguments))}: {done.stderr.strip()}")
    return done.stdout


class Network:
    """Namespaces, one for each name in `links`, from `with` to its end. Raises Unavailable where there can be none.

    `mtu` is that of all hosts: 9000 for rates that the machine would not reach with packets of 1500 bytes.
    """

    def __init__(self, program, links, mtu=1500):
        self._program = program
        self._links = links
        self._mtu = mtu
        self._hosts = list(links)
        self._relay = None

    def __enter__(self):
        if os.geteuid() != 0:
            raise Unavailable("network namespaces need root")
        if shutil.which("ip") is None:
            raise Unavailable("no program ip (package iproute2)")
        if not os.path.exists("/dev/net/tun"):
            raise Unavailable("no /dev/net/tun")
        _remove_left_over()
        try:
            self._set_up()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _set_up(self):
        command = [self._program]
        for host in self._hosts:
            _ip("netns", "add", self.space(host))
            link = self._links[host]
            command += [self.space(host), link.mbit, link.delay_ms, link.jitter_ms, link.loss_percent]
        self._relay = Program(command, stderr=subprocess.STDOUT)
        try:
            self._relay.wait_for(lambda line: line == "ready")
        except EOFError as error:
            raise Unavailable(str(error)) from None
        for host in self._hosts:
            inside = ("-n", self.space(host))
            _ip(*inside, "link", "set", "lo", "up")
            _ip(*inside, "addr", "add", f"{self.address(host)}/24", "dev", "wan0")
            _ip(*inside, "link", "set", "wan0", "mtu", self._mtu, "txqueuelen", 10000, "up")

    def __exit__(self, *_):
        if self._relay is not None:
            self._relay.end()
        for host in self._hosts:
            subprocess.run(["ip", "netns", "del", self.space(host)], capture_output=True, check=False)

    def space(self, host):
        """The name of the host's namespace."""
        return f"{PREFIX}-{os.getpid()}-{host}"

    def address(self, host):
        return f"10.99.0.{self._hosts.index(host) + 1}"

    def command(self, host, command):
        """The command, to be run on the host."""
        return ["ip", "netns", "exec", self.space(host), *map(str, command)]

    def start(self, host, command, **more):
        """The command as a Program on the host."""
        return Program(self.command(host, command), **more)

    def cut(self, host):
        """Drops all packets to and from the host."""
        self._say("cut", host)
        self.wait_until_cut(host)

    def cut_after(self, host, size):
        """Cuts the host when so many more bytes have reached it; wait_until_cut() waits for that."""
        self._say("cut", host, size)

    def wait_until_cut(self, host):
        self._hear(f"cut {self._hosts.index(host)}")

    def heal(self, host):
        self._say("heal", host)
        self._hear(f"healed {self._hosts.index(host)}")

    def bytes_of(self, host):
        """How many bytes of packets have reached the host, and how many have left it."""
        self._say("bytes", host)
        line = self._relay.wait_for(lambda line: line.startswith(f"bytes {self._hosts.index(host)} "))
        return tuple(map(int, line.split()[2:]))

    def wait_until_lost(self, sender, receiver, attempts=1):
        """Until so many attempts of the sender to connect to the receiver have been lost at a cut link."""
        begin = f"lost {self._hosts.index(sender)} {self._hosts.index(receiver)} "
        ports = set()
        while len(ports) < attempts:
            ports.add(self._relay.wait_for(lambda line: line.startswith(begin)))

    def _say(self, word, host, *more):
        self._relay.tell(" ".join(map(str, (word, self._hosts.index(host), *more))))

    def _hear(self, line):
        self._relay.wait_for(lambda heard: heard == line)


def _remove_left_over():
    """Removes namespaces of processes that were killed."""
    for line in _ip("netns", "list").splitlines():
        name = line.split()[0]
        process = name.removeprefix(PREFIX + "-").split("-")[0]
        if name.startswith(PREFIX + "-") and not pathlib.Path("/proc", process).exists():
            _ip("netns", "del", name)

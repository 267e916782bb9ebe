# SPDX-License-Identifier: Apache-2.0
"""The parts of the test of weight transfers that need no server: verdicts, the wire, memory limits, the table."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from sparsecast.testing.weight_transfer import backends
from sparsecast.testing.weight_transfer.__main__ import row
from sparsecast.testing.weight_transfer.harness import FAULTS, Outcome
from sparsecast.testing.weight_transfer.memory import DevicePeak, forget_peak, little_memory, status
from sparsecast.testing.weight_transfer.server import free_port
from sparsecast.testing.weight_transfer.verdicts import distance, prompts, which
from sparsecast.testing.weight_transfer.wire import Wire, connected_sockets

OLD, NEW = [-1.0, -2.0, -3.0], [-1.5, -2.0, -3.5]


def test_a_server_serves_the_checkpoint_whose_log_probabilities_it_gives() -> None:
    assert which(OLD, OLD, NEW) == "old"
    assert which(NEW, OLD, NEW) == "new"
    assert which([-1.0, -2.0, -3.25], OLD, NEW) == "torn"
    assert which([float("nan"), -2.0, -3.0], OLD, NEW) == "torn"
    assert which(OLD[:2], OLD, NEW) == "torn"


def test_a_tolerance_widens_what_counts_as_equal_but_not_over_both_checkpoints() -> None:
    assert which([-1.01, -2.0, -3.0], OLD, NEW, tolerance=0.02) == "old"
    with pytest.raises(ValueError, match="no test"):
        which(OLD, OLD, NEW, tolerance=0.25)


def test_probes_without_a_number_are_equal_to_none() -> None:
    assert distance([], []) == float("inf")
    assert distance([float("nan")], [float("nan")]) == float("inf")


def test_prompts_are_the_same_in_every_process_and_below_the_vocabulary() -> None:
    assert prompts(50) == prompts(50)
    assert all(3 <= token < 50 for prompt in prompts(50) for token in prompt)
    assert len(set(prompts(50)[-1])) > 20


class Ends:
    """A TCP connection between two sockets of this process; the wire takes that of `own` alone."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.own = socket.create_connection(listener.getsockname(), timeout=10)
            self.peer = listener.accept()[0]
        self.peer.settimeout(10)
        self.wire = Wire()
        self.wire._splice(self.own.fileno())

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count and (more := self.peer.recv(count - len(data))):
            data += more
        return data


@pytest.fixture
def ends() -> Ends:
    return Ends()


def test_a_wire_carries_both_directions_and_counts_what_leaves(ends: Ends) -> None:
    ends.own.sendall(bytes(200_000))
    assert ends.read(200_000) == bytes(200_000)
    ends.peer.sendall(b"answer")
    assert ends.own.recv(6) == b"answer"
    assert ends.wire.sent == 200_000
    ends.own.close()
    assert ends.peer.recv(1) == b""


def test_a_wire_flips_the_chosen_byte_and_goes_on(ends: Ends) -> None:
    ends.own.sendall(b"head")
    assert ends.read(4) == b"head"
    ends.wire.fail_at("flipped", 5)
    ends.own.sendall(bytes(10))
    assert ends.read(10) == bytes(5) + b"\x10" + bytes(4)


def test_a_wire_that_is_cut_ends_at_both_ends_after_the_chosen_byte(ends: Ends) -> None:
    ends.wire.fail_at("cut", 3)
    ends.own.sendall(b"abcdef")
    assert ends.read(10) == b"abc"
    assert ends.wire.is_cut and ends.own.recv(1) == b""
    assert ends.wire.failed.wait(10)  # It goes on with other sockets of the process.


def test_a_wire_that_stalls_says_nothing_more_in_either_direction(ends: Ends) -> None:
    ends.wire.fail_at("stalled", 3)
    ends.own.sendall(b"abcdef")
    assert ends.read(3) == b"abc"
    ends.peer.sendall(b"answer")
    for end in (ends.peer, ends.own):
        end.settimeout(0.2)
        with pytest.raises(TimeoutError):
            end.recv(1)


def test_a_wire_that_kills_has_sent_what_came_before() -> None:
    program = """
import socket, sys
from sparsecast.testing.weight_transfer.wire import Wire
own = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
wire = Wire()
assert wire.take() == 1
wire.fail_at("killed", 3)
own.sendall(b"abcdef")
own.recv(1)
"""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = subprocess.Popen([sys.executable, "-c", program, str(listener.getsockname()[1])])
        peer = listener.accept()[0]
    peer.settimeout(30)
    assert peer.recv(10) == b"abc" and peer.recv(10) == b""
    assert process.wait(30) == -9


def test_a_wire_leaves_the_ports_that_it_is_told(ends: Ends) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as one, listener.accept()[0] as other:
            found = {descriptor for descriptor, here, there in connected_sockets() if port in (here, there)}
            assert found == {one.fileno(), other.fileno()}
            others = {port for _, *ports in connected_sockets() for port in ports} - {port}
            assert Wire().take({port, *others}) == 0


def test_a_process_with_little_memory_fails_until_the_limit_is_lifted() -> None:
    program = "import sys\nfor line in sys.stdin:\n try: bytearray(1 << 26); print('got', flush=True)\n except MemoryError: print('no', flush=True)"
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdin is not None and process.stdout is not None

    def ask() -> str:
        process.stdin.write("\n")  # type: ignore[union-attr]
        return process.stdout.readline().strip()  # type: ignore[union-attr]

    assert ask() == "got"
    with little_memory(process.pid, 1 << 24):
        assert ask() == "no"
    assert ask() == "got"
    forget_peak(process.pid)
    assert status(process.pid)["VmHWM"] < 1 << 26
    ask()
    assert status(process.pid)["VmHWM"] > 1 << 26
    process.stdin.close()
    process.wait(30)


def test_device_memory_of_a_process_is_what_nvidia_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    peak = DevicePeak(4711)
    peak.begin()
    assert peak.end() == {}  # There is none.
    program, said = tmp_path / "nvidia-smi", tmp_path / "said"
    program.write_text(f"#!{sys.executable}\nprint(open({str(said)!r}).read())")
    program.chmod(0o755)
    said.write_text("12, 7\n4711, 100\n")
    peak = DevicePeak(4711)
    peak.begin()
    said.write_text("12, 900\n4711, 130\n")
    time.sleep(1)
    assert peak.end() == {"device_before_bytes": 100 << 20, "device_peak_bytes": 130 << 20}


def test_a_broadcast_over_tcp_fills_the_tensors_of_the_worker() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm")
    from sparsecast.testing.weight_transfer.nccl_on_cpu import TcpGroup

    port = free_port()
    made: list[TcpGroup] = []
    thread = threading.Thread(target=lambda: made.append(TcpGroup("127.0.0.1", port, 1, 2)))
    thread.start()
    trainer = TcpGroup("127.0.0.1", port, 0, 2)
    thread.join(30)
    sent, got = torch.arange(12, dtype=torch.bfloat16).view(3, 4), torch.zeros(3, 4, dtype=torch.bfloat16)
    trainer.broadcast(sent, src=0)
    made[0].broadcast(got, src=0)
    assert torch.equal(sent, got)
    trainer.destroy()
    with pytest.raises(ConnectionError, match="after 0 of 24 bytes"):
        made[0].broadcast(got, src=0)


def test_a_backend_that_cannot_be_tried_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match="'ipc': hands over CUDA memory.*--start MODULE:FUNCTION"):
        backends.find("ipc")
    assert backends.find("mine", "os.path:join").start is __import__("os").path.join


def test_the_changed_checkpoint_differs_in_every_tensor_and_nowhere_else(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    save_file = pytest.importorskip("safetensors.torch").save_file
    from sparsecast.testing.weight_transfer import checkpoints

    first = tmp_path / "first"
    first.mkdir()
    (first / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 77}}))
    save_file({"a": torch.ones(100), "b": torch.ones(5, 5), "n": torch.arange(3)}, first / "model.safetensors")
    second = checkpoints.load(checkpoints.change(first, tmp_path / "second"))
    one = checkpoints.load(first)
    assert {name: int((second[name] != one[name]).sum()) for name in one} == {"a": 3, "b": 1, "n": 0}
    assert checkpoints.vocabulary(tmp_path / "second") == 77
    with pytest.raises(ValueError, match="in safetensors files"):
        checkpoints.change(_empty(tmp_path), tmp_path / "none")


def _empty(directory: Path) -> Path:
    empty = directory / "empty"
    empty.mkdir()
    return empty


def test_a_line_of_the_table_has_no_bar_or_line_break_of_an_error() -> None:
    line = row(Outcome(next(iter(FAULTS)), "paused", "1", None, "a|b\nc", "restart"))
    assert line.count("|") == 7 and "\n" not in line and "**paused**" in line

# SPDX-License-Identifier: Apache-2.0
"""The life of a process around calls that wait: its end, and signals."""

from __future__ import annotations

import textwrap

import pytest
from sparsecast_programs import interrupt, run

#: On a busy machine; the deadlines of the calls are 30 seconds.
SOON = 2.0


@pytest.mark.parametrize("end", ["", "sys.exit(0)"])
@pytest.mark.parametrize("call", ["meet(0)", "meet(1)", "hub.all_gather(b'')", "member.all_gather(b'')"])
def test_a_program_ends_in_silence_while_a_daemon_thread_waits(call: str, end: str) -> None:
    # The wait ends after the interpreter has begun to: the thread then wants a lock that nobody gives it any more.
    ended = run(f"""
        hub, member = pair() if "all_gather" in {call!r} else (None, None)
        def wait():
            try:
                {call.replace(")", ", timeout=1.0)")}
            except errors.Error:
                pass  # On a busy machine the wait is over before the interpreter begins to end.
        threading.Thread(target=wait, daemon=True).start()
        time.sleep(0.5)
        class Late:
            def __del__(self, sleep=time.sleep): sleep(1.0)
        sys.late = Late()
        {end}
    """)
    assert (ended.returncode, ended.stderr) == (0, ""), ended


#: Calls that wait for somebody who does not come, and what is to be there before.
WAITS = {
    "rank 0 waits for the others": ("", "meet(0)"),
    "a rank waits for rank 0": ("", "meet(1)"),
    "a rank waits for the rest of the group": (
        """
        def hub():
            try: meet(0, 5.0, size=3)
            except errors.Error: pass
        threading.Thread(target=hub, daemon=True).start()
        """,
        "meet(1, size=3)",
    ),
    "the hub waits in a collective": ("hub, member = pair()", "hub.all_gather(b'', timeout=30.0)"),
    "a member waits in a collective": ("hub, member = pair()", "member.broadcast(b'', timeout=30.0)"),
    "a store does not answer": (
        """
        import numpy as np, socket
        deaf = socket.create_server(("127.0.0.1", 0))
        os.environ.update(AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b",
                          AWS_ENDPOINT_URL=f"http://127.0.0.1:{deaf.getsockname()[1]}")
        tensor = np.zeros(4, np.float32)
        table = sc.TensorTable([("a", "F32", (4,))])
        """,
        'sc.LogFollower("s3://bucket/log", table, [sc.describe(tensor)], state_path="no-state", scratch=".")',
    ),
}


@pytest.mark.parametrize("what", WAITS)
def test_ctrl_c_ends_a_wait_at_once_and_is_what_the_caller_gets(what: str) -> None:
    prepare, call = WAITS[what]
    seconds, printed, err = interrupt(
        textwrap.dedent(prepare)
        + textwrap.dedent(f"""
        print("ready", flush=True)
        try:
            {call}
        except BaseException as caught:
            print(type(caught).__name__, isinstance(caught.__context__, errors.Error), flush=True)
        """)
    )
    assert (printed, err) == ("KeyboardInterrupt True\n", "")
    assert seconds < SOON


def test_after_ctrl_c_the_other_ranks_hear_why_and_the_channel_is_broken() -> None:
    _, printed, err = interrupt("""
        hub, member = pair()
        def other():
            try:
                member.broadcast(b"", timeout=30.0)
            except errors.PeerFailedError as error:
                print("interrupted by a signal" in str(error), flush=True)
        thread = in_thread(other)
        print("ready", flush=True)
        try:
            hub.all_gather(b"", timeout=30.0)
        except KeyboardInterrupt:
            thread.join()
        print(hub.aborted())
        try:
            hub.all_gather(b"")
        except errors.PeerFailedError:
            print("broken")
    """)
    assert err == ""
    assert printed.startswith("True\n") and "interrupted by a signal" in printed.splitlines()[1], printed
    assert printed.endswith("broken\n")


def test_handlers_of_signals_run_during_a_wait_which_goes_on_unless_they_raise() -> None:
    seconds, printed, err = interrupt("""
        signal.signal(signal.SIGINT, lambda *_: print("handled", flush=True))
        print("ready", flush=True)
        try:
            meet(0, timeout=3.0)
        except errors.DeadlineError:
            print("deadline")
    """)
    assert (printed, err) == ("handled\ndeadline\n", "")
    assert seconds < SOON


def test_other_threads_wait_on_while_the_main_one_is_interrupted() -> None:
    _, printed, err = interrupt("""
        hub, member = pair()
        got = []
        thread = in_thread(lambda: got.append(member.broadcast(b"", timeout=30.0)))
        print("ready", flush=True)
        try:
            meet(0)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        hub.broadcast(b"late", timeout=30.0)
        thread.join()
        print(got)
    """)
    assert (printed, err) == ("interrupted\n[b'late']\n", "")


#: In a forked child, `act`; prints what it says, how the child ended, and goes on in the parent.
FORK = """
def fork(act):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            act()
        except errors.UsageError as error:
            print("refused", f"made in process {os.getppid()}; a forked child cannot use it" in str(error), flush=True)
        sys.exit(0)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return print("child", status, flush=True)
        time.sleep(0.05)
    os.kill(child, signal.SIGKILL)
    print("child hangs", flush=True)
"""


@pytest.mark.parametrize(
    ("act", "said"),
    [
        ("lambda: None", ""),
        ("lambda: hub.all_gather(b'')", "refused True\n"),
        ("lambda: member.agree(0)", "refused True\n"),
        ("lambda: hub.abort('of the child')", ""),
        ("lambda: print(member.aborted())", "it belongs to the parent of this process\n"),
    ],
)
def test_a_forked_child_leaves_the_channels_of_its_parent_alone(act: str, said: str) -> None:
    ended = run(f"""{FORK}
hub, member = pair()
fork({act})
thread = in_thread(lambda: member.all_gather(b"", timeout=20.0))
print(hub.all_gather(b"", timeout=20.0))
thread.join()
""")
    assert (ended.stdout, ended.stderr) == (said + "child 0\n[b'', b'']\n", "")


def test_a_forked_child_can_meet_others_by_itself() -> None:
    ended = run(f"""{FORK}
hub, member = pair()
def others():
    hub, member = pair()
    thread = in_thread(lambda: member.all_gather(b"m", timeout=20.0))
    print(hub.all_gather(b"h", timeout=20.0), flush=True)
    thread.join()
fork(others)
print(hub.aborted())
""")
    assert (ended.stdout, ended.stderr) == ("[b'h', b'm']\nchild 0\nNone\n", "")

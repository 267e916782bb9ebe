# SPDX-License-Identifier: Apache-2.0
"""A process that forks after publishers and followers were made: the child ends, and the parent goes on."""

from __future__ import annotations

import pytest
from sparsecast_programs import run

ENDS = """
import dataclasses, faulthandler, gc, tempfile
import torch, sparsecast.torch as st

trainer = torch.nn.Linear(4, 4)
engine = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(trainer.parameters(), 0.1)

def step():
    trainer(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()

def live():
    world = st.World("127.0.0.1", PORT, "a secret of sixteen or more", size=2, timeout=20)
    follow = dataclasses.replace(world, rank_offset=1)
    return st.Publisher(trainer, optimizer, transport=world), st.Subscriber(engine, transport=follow, needs_anchor=True)

def log():
    d = tempfile.mkdtemp()
    log = st.Log(d + "/log", mirror=d + "/m.safetensors", state=d + "/state", timeout=20)
    publisher = st.Publisher(trainer, optimizer, transport=log)
    return publisher, st.Subscriber(engine, transport=log)

def sync():
    if isinstance(subscriber._transport, st.World):
        thread = in_thread(subscriber.update)
        publisher.publish()
        thread.join()
    else:
        publisher.publish()
        subscriber.update()
    print(publisher.version == subscriber.version, torch.equal(trainer.weight, engine.weight), flush=True)

def refused(call):
    try:
        call()
    except errors.UsageError as error:
        print(f"made in process {os.getppid()}; a forked child cannot use it" in str(error), flush=True)

def child():
    global publisher, subscriber
    for call in ACTS:
        call()

def fork():
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        faulthandler.dump_traceback_later(15)  # Says where it hangs, if it does.
        child()
        sys.exit(0)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return print("child", status, flush=True)
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)
    print("child hangs", flush=True)

def drop():
    global publisher, subscriber
    del publisher, subscriber
    gc.collect()
"""


@pytest.mark.parametrize("kind", ["live", "log"])
@pytest.mark.parametrize("in_flight", [False, True])
def test_a_forked_child_is_refused_and_ends_while_the_parent_goes_on(kind: str, in_flight: bool) -> None:
    calls = ["publisher.publish", "publisher.wait", "publisher.regroup", "subscriber.update", "subscriber.regroup"]
    ended = run(f"""{ENDS}
publisher, subscriber = {kind}()
sync()
step()
ACTS = [lambda: None]
fork()  # And ends as it is.
if {in_flight}:
    publisher.publish(wait=False)
ACTS = [lambda: refused({"), lambda: refused(".join(calls)}), step, lambda: publisher.close(), drop]
fork()
if {in_flight}:
    if {kind == "live"}:
        subscriber.update()
    publisher.wait()
step()
sync()
""")
    said = "True True\nchild 0\n" + "True\n" * len(calls) + "child 0\nTrue True\n"
    assert (ended.stdout, ended.stderr) == (said, "")

# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C while a trainer and an engine wait for each other: both go on afterwards, from the version that they hold."""

from __future__ import annotations

from sparsecast_programs import interrupt

ENDS = """
import dataclasses
import torch, sparsecast.torch as st

world = st.World("127.0.0.1", PORT, "a secret of sixteen or more", size=2, timeout=30)
trainer = torch.nn.Linear(4, 4)
engine = torch.nn.Linear(4, 4)
publisher = st.Publisher(trainer, transport=world)
subscriber = st.Subscriber(engine, transport=dataclasses.replace(world, rank_offset=1), needs_anchor=True)

def step():
    with torch.no_grad():
        trainer.weight += 1

def sync():
    thread = in_thread(subscriber.update)
    publisher.publish()
    thread.join()
    return publisher.version, subscriber.version, torch.equal(trainer.weight, engine.weight)
"""


def test_a_publisher_that_waits_for_its_engines_meets_them_after_ctrl_c() -> None:
    _, printed, err = interrupt(
        ENDS
        + """
print("ready", flush=True)
try:
    publisher.publish()
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(*sync())
"""
    )
    assert (printed, err) == ("interrupted\n1 1 True\n", "")


def test_a_sync_that_ctrl_c_has_ended_fails_on_both_sides_and_the_next_one_meets_anew() -> None:
    for waits, other in (("subscriber.update", "publisher.publish"), ("publisher.publish", "subscriber.update")):
        _, printed, err = interrupt(
            ENDS
            + f"""
sync()
step()
print("ready", flush=True)
try:
    {waits}()
except KeyboardInterrupt:
    print("interrupted", flush=True)
try:
    {other}()
except errors.PeerFailedError as error:
    print("interrupted by a signal" in str(error))
step()
print(*sync())
"""
        )
        assert (printed, err) == ("interrupted\nTrue\n3 3 True\n", ""), waits

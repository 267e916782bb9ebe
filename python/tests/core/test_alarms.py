# SPDX-License-Identifier: Apache-2.0
"""Which syncs are warned of, among those before them."""

from __future__ import annotations

from sparsecast.alarms import KEPT, SyncAlarms

MIB = 1 << 20


def after(syncs: int = 5) -> SyncAlarms:
    """Alarms that have seen syncs of 100 MiB/s and 1 % density."""
    alarms = SyncAlarms()
    for _ in range(syncs):
        assert alarms.look(10 * MIB, 0.1, 0.01) == []
    return alarms


def test_a_rate_below_a_tenth_and_a_density_of_ten_times_are_warned_of_with_the_numbers() -> None:
    assert after().look(10 * MIB, 0.9, 0.09) == []
    slow, dense = after().look(10 * MIB, 1.1, 0.11)
    assert "10485760 bytes took 1.1 s" in slow and "9.53 MB/s" in slow and "last 5 syncs had 105 MB/s" in slow
    assert dense.startswith("11.000% of the weights changed, where the last 5 syncs had 1.000%")


def test_the_first_syncs_small_ones_and_small_densities_are_not_judged() -> None:
    assert after(2).look(10 * MIB, 100.0, 1.0) == []
    assert after().look(MIB - 1, 100.0, 0.01) == []
    alarms = SyncAlarms()
    for _ in range(5):
        alarms.look(0, 0.0, 0.0001)
    assert alarms.look(0, 0.0, 0.019) == []
    assert len(alarms.look(0, 0.0, 0.02)) == 1


def test_a_seed_of_all_weights_hides_no_later_jump_and_a_change_that_stays_is_the_new_usual() -> None:
    alarms = SyncAlarms()
    alarms.look(1000 * MIB, 10.0, 1.0)
    for _ in range(3):
        assert alarms.look(10 * MIB, 0.1, 0.01) == []
    assert alarms.look(10 * MIB, 10.0, 0.5)
    said = sum(bool(alarms.look(10 * MIB, 10.0, 0.5)) for _ in range(2 * KEPT))
    assert 0 < said < KEPT

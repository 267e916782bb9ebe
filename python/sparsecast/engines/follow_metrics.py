# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of a server that follows a delta log, made from its status when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from sparsecast.engines.log_receiver import State

_OF_REPLICA = {
    "version": ("version", "Version of the log that the weights hold"),
    "staged": ("staged_version", "Version that is staged, and not yet written"),
    "head": ("head_version", "Newest version that was seen in the log"),
    "lag": ("lag_versions", "Versions behind the newest one that was seen"),
    "lag_seconds": ("lag_seconds", "Seconds for which a newer version has been known"),
    "head_age": ("head_age_seconds", "Seconds since the log was looked at"),
    "pause_seconds": ("write_seconds", "Duration of the last write of the weights"),
}


def metrics_text(status: Mapping[str, Any]) -> bytes:
    """Returns the metrics of `LogFollowing.status` in the text format of Prometheus. Replicas are labels; values that
    are not known yet are left out.
    """
    registry = CollectorRegistry()
    registry.register(_Status(status))
    return generate_latest(registry)


class _Status:
    """Prometheus collector of the metrics of one `LogFollowing.status`."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status, workers = self._status, self._status["workers"]
        if status["served"] is not None:
            yield GaugeMetricFamily("sparsecast_follow_served_version", "The server's version", status["served"])
        yield GaugeMetricFamily("sparsecast_follow_paused", "1 while generation is paused for it", status["paused"])
        text = "Duration of the last pause, in which no token was generated"
        yield GaugeMetricFamily("sparsecast_follow_pause_seconds", text, status["pause_seconds"])
        leaders = [worker for worker in workers if worker["rank"] == 0]
        for field, (name, text) in _OF_REPLICA.items():
            gauge = GaugeMetricFamily(f"sparsecast_follow_{name}", text, labels=["replica"])
            for worker in leaders:
                if worker.get(field) is not None:
                    gauge.add_metric([str(worker["replica"])], worker[field])
            yield gauge
        for field, text in (("bytes_read", "Bytes read from the log"), ("reseeded", "Anchors that were taken")):
            counter = CounterMetricFamily(f"sparsecast_follow_{field}", text, labels=["replica"])
            for worker in leaders:
                counter.add_metric([str(worker["replica"])], worker.get(field, 0))
            yield counter
        states = GaugeMetricFamily("sparsecast_follow_state", "1 for its state", labels=["replica", "rank", "state"])
        for worker in workers:
            for state in (*get_args(State), "asleep"):
                place = [str(worker["replica"]), str(worker["rank"]), state]
                states.add_metric(place, float(worker["state"] == state))
        yield states

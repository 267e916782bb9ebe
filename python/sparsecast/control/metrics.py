# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics of syncs, in a registry of their own."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily

from sparsecast.control.errors import DIGEST_CODES
from sparsecast.control.plane import ControlPlane
from sparsecast.control.report import State, SyncReport

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_STAGES = ("encode", "wire", "stage", "apply")


class ControlMetrics:
    """Prometheus metrics of the syncs of `plane` from now on, and of its state. At most one for each plane."""

    def __init__(self, plane: ControlPlane) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self._syncs = Counter("sparsecast_syncs", "Syncs by result", ["result"], registry=registry)
        for result in ("ok", "partial", "failed"):
            self._syncs.labels(result)
        self._seconds = Histogram("sparsecast_sync_seconds", "A whole sync", buckets=_SECONDS, registry=registry)
        self._regroup = Histogram(
            "sparsecast_regroup_seconds", "Making a group, seeding included", buckets=_SECONDS, registry=registry
        )
        self._stages = Histogram(
            "sparsecast_trainer_seconds",
            "Stages of a sync as the trainer saw them",
            ["step"],
            buckets=_SECONDS,
            registry=registry,
        )
        for stage in _STAGES:
            self._stages.labels(stage)
        self._density = Gauge("sparsecast_density", "Changed of all elements in the last sync", registry=registry)
        self._changed = Counter("sparsecast_changed_elements", "Elements that changed", registry=registry)
        self._sent = Counter("sparsecast_sent_bytes", "Bytes that the trainer sent", registry=registry)
        self._pause = self._by_endpoint("pause", "Generation was stopped for a sync")
        self._apply = self._by_endpoint("endpoint_apply", "The apply, as called over HTTP")
        self._failures = Counter(
            "sparsecast_endpoint_failures", "Steps that failed", ["endpoint", "step", "code"], registry=registry
        )
        self._digests = Counter(
            "sparsecast_digest_failures", "Syncs that an endpoint's bytes did not pass", ["endpoint"], registry=registry
        )
        registry.register(_Now(plane))
        plane.observe(self.observe)

    def _by_endpoint(self, name: str, text: str) -> Histogram:
        return Histogram(f"sparsecast_{name}_seconds", text, ["endpoint"], buckets=_SECONDS, registry=self.registry)

    def observe(self, report: SyncReport) -> None:
        """Adds the figures of one sync to the metrics."""
        self._syncs.labels(report.result).inc()
        self._seconds.observe(report.seconds)
        if report.regrouped:
            self._regroup.observe(report.regroup_seconds)
        self._observe_source(report.source)
        for endpoint in report.endpoints:
            if endpoint.pause_seconds:
                self._pause.labels(endpoint.name).observe(endpoint.pause_seconds)
            if endpoint.apply_seconds:
                self._apply.labels(endpoint.name).observe(endpoint.apply_seconds)
            if endpoint.code:
                self._failures.labels(endpoint.name, endpoint.step, endpoint.code).inc()
            if endpoint.code in DIGEST_CODES:
                self._digests.labels(endpoint.name).inc()

    def _observe_source(self, figures: dict[str, Any]) -> None:
        for stage in _STAGES:
            seconds = figures.get(f"{stage}_seconds")
            if isinstance(seconds, (int, float)):
                self._stages.labels(stage).observe(seconds)
        if isinstance(figures.get("density"), (int, float)):
            self._density.set(figures["density"])
        self._changed.inc(max(0, figures.get("changed", 0)))
        self._sent.inc(max(0, figures.get("sent_bytes", 0)))

    def text(self) -> bytes:
        """Returns all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)


class _Now:
    """Collector of metrics that are read from the control plane at every scrape. Removed endpoints do not appear in
    them.
    """

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane

    def collect(self) -> list[GaugeMetricFamily]:
        status = self._plane.status()
        version = GaugeMetricFamily("sparsecast_version", "The trainer's committed version")
        version.add_metric([], status["version"])
        generation = GaugeMetricFamily("sparsecast_generation", "Changes of the membership")
        generation.add_metric([], status["generation"])
        at = GaugeMetricFamily(
            "sparsecast_endpoint_version", "Version that the endpoint has verified", labels=["endpoint"]
        )
        lag = GaugeMetricFamily("sparsecast_endpoint_lag_versions", "Versions behind the trainer", labels=["endpoint"])
        states = GaugeMetricFamily("sparsecast_endpoint_state", "1 for its state", labels=["endpoint", "state"])
        for entry in status["endpoints"]:
            if entry["version"] is not None:
                at.add_metric([entry["name"]], entry["version"])
                lag.add_metric([entry["name"]], entry["lag"])
            for state in State:
                states.add_metric([entry["name"], state.value], float(entry["state"] == state.value))
        return [version, generation, at, lag, states]

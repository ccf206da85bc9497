"""What is counted for Prometheus."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from tuner.errors import TunerError
from tuner.service.snapshots import SnapshotCache
from tuner.store import Store, jobs

#: Upper limits of the classes of times, seconds.
TIMES_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.06, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """Counts requests, answers, jobs."""

    def __init__(self, store: Store, cache: SnapshotCache) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "tuner_requests", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "tuner_request_seconds", "Seconds until a request was answered.", ("route",), buckets=TIMES_S,
            registry=self.registry,
        )  # fmt: skip
        self._answers = Counter(
            "tuner_answers", "Answers of lookups, by what they rest on.", ("match",), registry=self.registry
        )
        self._refused = Counter("tuner_refused_tokens", "Wrong tokens presented.", registry=self.registry)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.registry.register(_State(store, cache))

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Counts a request."""
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def answer(self, match: str) -> None:
        """Counts an answer."""
        self._answers.labels(match).inc()

    def refused(self) -> None:
        """Counts a wrong token."""
        self._refused.inc()

    def text(self) -> bytes:
        """All figures in Prometheus' format."""
        return generate_latest(self.registry)


class _State(Collector):
    """The state of database and jobs, at the moment of asking."""

    def __init__(self, store: Store, cache: SnapshotCache) -> None:
        self._store, self._cache = store, cache

    def describe(self) -> list[Any]:
        """Nothing: figures are made when they are asked for."""
        return []

    def collect(self) -> Iterator[Any]:
        """The figures."""
        manifest = self._cache.present.manifest
        number = GaugeMetricFamily("tuner_snapshot", "Number of the present snapshot.")
        number.add_metric([], manifest.number)
        yield number
        rows = GaugeMetricFamily("tuner_rows", "Last row of a table in the present snapshot.", labels=["table"])
        for table, last in manifest.positions.items():
            rows.add_metric([table.removeprefix("tuner_")], last)
        yield rows
        looked = GaugeMetricFamily(
            "tuner_looked_seconds_ago", "Seconds since the database was last looked at with success."
        )
        looked.add_metric([], time.monotonic() - self._cache.looked_s)
        yield looked
        by_state = GaugeMetricFamily("tuner_jobs", "Jobs, by state.", labels=["state"])
        try:
            for state, count in jobs.counts(self._store).items():
                by_state.add_metric([state], count)
        except TunerError:
            return
        yield by_state

"""Metrics for Prometheus: counted as things happen, or looked up when they are read. No label names a tenant."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """Of one application, with a registry of its own: a process may hold several in tests."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "gpuaas_http_requests", "Requests answered.", ("method", "route", "status"), registry=self.registry
        )
        self._seconds = Histogram(
            "gpuaas_http_request_seconds",
            "Time to the end of the answer.",
            ("method", "route"),
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.in_flight = Gauge("gpuaas_http_requests_in_flight", "Requests being answered.", registry=self.registry)
        self._anonymous_denials = Counter(
            "gpuaas_anonymous_denials",
            "Requests refused because nobody known asked; the audit trail has those of known principals.",
            ("route",),
            registry=self.registry,
        )

        self.streams_opened = Counter(
            "gpuaas_streams_opened", "Byte streams to machines that were opened.", registry=self.registry
        )
        self._streams_ended = Counter(
            "gpuaas_streams_ended", "Byte streams to machines that ended.", ("cut",), registry=self.registry
        )
        self._stream_bytes = Counter(
            "gpuaas_stream_bytes", "Bytes through streams that ended.", ("direction",), registry=self.registry
        )
        self._stream_seconds = Counter(
            "gpuaas_stream_seconds", "How long streams that ended were open.", registry=self.registry
        )

    def stream_ended(self, cut: bool, to_machine: int, from_machine: int, seconds: float) -> None:
        self._streams_ended.labels("yes" if cut else "no").inc()
        self._stream_bytes.labels("to_machine").inc(to_machine)
        self._stream_bytes.labels("from_machine").inc(from_machine)
        self._stream_seconds.inc(seconds)

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        # The life of a connection is not the time of an answer.
        if method != "WS":
            self._seconds.labels(method, route).observe(seconds)
        if status == 401:
            self._anonymous_denials.labels(route).inc()

    def render(self, present: dict[str, float]) -> bytes:
        """`present` holds what only the moment knows, by the names in `GAUGES`."""
        moment = CollectorRegistry()
        moment.register(_Present(present))
        return generate_latest(self.registry) + generate_latest(moment)


GAUGES = {
    "database_up": "1 while PostgreSQL answers.",
    "secrets_server_up": "1 while OpenBao answers.",
    "database_pool_size": "Connections to PostgreSQL.",
    "database_pool_available": "Connections that nobody uses.",
    "database_pool_waiting": "Requests that wait for a connection.",
    "feed_unsequenced_changes": "Committed changes that wait for their place in the feed.",
    "feed_lag_seconds": "Age of the oldest change that waits for its place in the feed.",
    "audit_unsealed_entries": "Audit entries that wait for their place in the chain.",
    "agents_connected": "Node agents that are connected to this process.",
    "streams_open": "Byte streams to machines through this process.",
}


class _Present(Collector):
    def __init__(self, values: dict[str, float]) -> None:
        self._values = values

    def collect(self) -> Iterator[Metric]:
        for name, value in self._values.items():
            yield GaugeMetricFamily(f"gpuaas_{name}", GAUGES[name], value=value)

"""Prometheus metrics of the service."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """The metrics of one service."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter("vitrail_requests", "Requests answered.", ["path", "status"], registry=registry)
        self.request_seconds = Histogram(
            "vitrail_request_seconds", "Time per request.", ["path"], buckets=SECONDS, registry=registry
        )
        self.batch_images = Histogram(
            "vitrail_batch_images", "Images per batch.", buckets=(1, 2, 4, 8, 16, 32), registry=registry
        )
        self.batch_seconds = Histogram("vitrail_batch_seconds", "Time per batch.", buckets=SECONDS, registry=registry)
        self.in_flight = Gauge("vitrail_requests_inside", "Requests in flight.", registry=registry)
        self.queued_images = Gauge("vitrail_queue_images", "Images in the queue.", registry=registry)
        self.restarts = Gauge("vitrail_worker_restarts", "Worker restarts.", registry=registry)

    def observe_batch(self, num: int, seconds: float) -> None:
        """Record a processed batch."""
        self.batch_images.observe(num)
        self.batch_seconds.observe(seconds)

    def render(self) -> bytes:
        """All metrics in the Prometheus text format."""
        return generate_latest(self.registry)

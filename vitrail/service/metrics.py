"""What the service counts, in the words of Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """The counters of one service."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        self.requests = Counter("vitrail_requests", "Requests answered.", ["path", "status"], registry=registry)
        self.seconds = Histogram(
            "vitrail_request_seconds", "From the first byte to the last.", ["path"], buckets=SECONDS, registry=registry
        )
        self.batches = Histogram(
            "vitrail_batch_images", "Pictures a batch.", buckets=(1, 2, 4, 8, 16, 32), registry=registry
        )
        self.batch_seconds = Histogram("vitrail_batch_seconds", "A batch.", buckets=SECONDS, registry=registry)
        self.inside = Gauge("vitrail_requests_inside", "Requests that are not answered.", registry=registry)
        self.waiting = Gauge("vitrail_queue_images", "Pictures that wait.", registry=registry)
        self.restarts = Gauge("vitrail_worker_restarts", "Workers that were replaced.", registry=registry)

    def batch(self, num: int, seconds: float) -> None:
        """A batch was looked at."""
        self.batches.observe(num)
        self.batch_seconds.observe(seconds)

    def text(self) -> bytes:
        """All of it, as it is scraped."""
        return generate_latest(self.registry)

"""Prometheus metrics of decoding and tiling, which vLLM's route ``/metrics`` serves.

vLLM itself counts the requests of every route by status (``http_requests_total``).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import Counter, Gauge, Histogram

from vllm_mmout.engine.observer import KINDS, OTHER, SILENT, Observer, kind_of, mark_counted, was_counted
from vllm_mmout.serving.errors import ApiError

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Bucket bounds of the histogram of decode times, in seconds."""


@dataclass(frozen=True, slots=True)
class Collectors:
    """Prometheus collectors that all engines of this process share."""

    seconds: Histogram
    pending: Gauge
    pending_bytes: Gauge
    tiles: Counter
    pixels: Counter
    failures: Counter
    waiting: Gauge
    waiting_seconds: Gauge


@functools.cache
def collectors() -> Collectors:
    """Return the Prometheus collectors of this process. The first call creates the collectors.

    Prometheus does not allow two metrics of the same name. vLLM unregisters its own metrics by name when it creates
    them again. The metrics of this package stay registered.
    """
    model, processor = ("model_name",), ("model_name", "processor")
    live: Final = "livesum"  # the sum over the living processes of the server
    return Collectors(
        Histogram(
            "mmout:decode_seconds",
            "Seconds to decode the output of a request or block of tiles.",
            processor,
            buckets=SECONDS,
        ),
        Gauge(
            "mmout:decodes_pending",
            "Outputs of requests and tiles that wait for decoding or are being decoded.",
            model,
            multiprocess_mode=live,
        ),
        Gauge("mmout:decodes_pending_bytes", "Bytes of these outputs.", model, multiprocess_mode=live),
        Counter("mmout:tiles", "Tiles that are part of the results of scenes, those without any data too.", model),
        Counter("mmout:pixels", "Pixels of scenes, height times width, of these tiles; overlaps count once.", model),
        Counter("mmout:failures", "Requests that failed, by processor and kind of error.", (*processor, "kind")),
        Gauge(
            "mmout:tiles_waiting",
            "Tiles of scenes, and single inputs, that were taken in and are not done.",
            model,
            multiprocess_mode=live,
        ),
        Gauge(
            "mmout:seconds_waiting",
            "Seconds that these take, by what the last ones took; 0 before any was done.",
            model,
            multiprocess_mode="livemax",  # the API servers of one engine wait for the same tiles
        ),
    )


class Metrics(Observer):
    """Observer that counts the work of one engine in Prometheus metrics.

    Every series is made here, so that it starts at 0 and nothing that may fail is left for the middle of the work.
    """

    def __init__(self, model_name: str, processors: Iterable[str]) -> None:
        made, names = collectors(), tuple(processors)
        self._pending = made.pending.labels(model_name)
        self._pending_bytes = made.pending_bytes.labels(model_name)
        self._waiting = made.waiting.labels(model_name)
        self._waiting_seconds = made.waiting_seconds.labels(model_name)
        self._tiles = made.tiles.labels(model_name)
        self._pixels = made.pixels.labels(model_name)
        self._seconds = {name: made.seconds.labels(model_name, name) for name in names}
        self._failures = {
            (name, kind): made.failures.labels(model_name, name, kind) for name in ("", *names) for kind in KINDS
        }

    def waits(self, nbytes: int) -> None:
        """Record that an output of ``nbytes`` bytes has arrived and waits to be decoded."""
        self._pending.inc()
        self._pending_bytes.inc(nbytes)

    def settled(self, nbytes: int) -> None:
        """Record that an output of ``nbytes`` bytes is settled: decoded, failed or cancelled."""
        self._pending.dec()
        self._pending_bytes.dec(nbytes)

    def decoded(self, processor: str, seconds: float) -> None:
        """Record that ``processor`` decoded a result in ``seconds``."""
        self._seconds[processor].observe(seconds)

    def tile(self, pixels: int) -> None:
        """Count a processed tile and its number of pixels."""
        self._tiles.inc()
        self._pixels.inc(pixels)

    def backlog(self, tiles: int, seconds: float) -> None:
        """Set the number of unfinished tiles, and the estimated seconds to process these tiles."""
        self._waiting.set(tiles)
        self._waiting_seconds.set(seconds)

    def failed(self, processor: str, kind: str) -> None:
        """Count a failed request."""
        known = processor if (processor, OTHER) in self._failures else ""
        self._failures[known, kind if kind in KINDS else OTHER].inc()


def count_refusal(observer: Observer, error: Exception) -> None:
    """Count a refused request as a failed request in the metrics, unless ``error`` was already counted."""
    if was_counted(error):
        return
    kind = kind_of(error if error.__cause__ is None else error.__cause__)
    if kind == OTHER and isinstance(error, ApiError) and 400 <= error.status < 500:
        kind = error.type if error.type in KINDS else "InputError"
    observer.failed("", kind)
    mark_counted(error)


def observe(engine: Any, model_name: str) -> Observer:
    """Register an engine's metrics under ``model_name``, and return the observer that updates them."""
    if not engine.log_stats:
        return SILENT
    router = engine.output_processor
    counted = router.observer = Metrics(model_name, router.binding.processors)
    return counted

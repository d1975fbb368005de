"""The metrics as a collector of Prometheus' client library, which is an extra and is imported at first use."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from ...base.histogram import Distribution
from ...errors import ConfigError
from ..watched_store import WatchedStore
from .catalogue import COUNTER, HISTOGRAM, METRICS, Metric
from .samples import Sample, samples


def registry_for(watched: WatchedStore) -> Any:
    """Return a ``prometheus_client.CollectorRegistry`` with the metrics of an open store.

    The values are collected at each scrape, from the counters of this process and from the local disk. A scrape costs
    no request to the bucket.

    Raises
    ------
    ConfigError
        prometheus-client is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry
    except ModuleNotFoundError as error:
        raise ConfigError(f"metrics need prometheus-client ({error}): pip install 'tiered[daemon]'") from None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(watched))
    return registry


def exposition(registry: Any) -> tuple[bytes, str]:
    """Return the answer to a scrape of `registry`, and its content type.

    Raises
    ------
    ConfigError
        prometheus-client is not installed.
    """
    try:
        from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
    except ModuleNotFoundError as error:
        raise ConfigError(f"metrics need prometheus-client ({error}): pip install 'tiered[daemon]'") from None
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _Collector:
    """Makes a family of each metric that has values; the library calls it at each scrape."""

    def __init__(self, watched: WatchedStore) -> None:
        self._watched = watched

    def describe(self) -> list[Any]:
        """Return nothing: the names are checked at a scrape, not at the registration."""
        return []

    def collect(self) -> Iterator[Any]:
        by_name: dict[str, list[Sample]] = {}
        for sample in samples(self._watched):
            by_name.setdefault(sample.name, []).append(sample)
        for metric in METRICS:
            if metric.name in by_name:
                yield _family(metric, by_name[metric.name])


def _family(metric: Metric, values: list[Sample]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {COUNTER: CounterMetricFamily, HISTOGRAM: HistogramMetricFamily}
    family = kinds.get(metric.kind, GaugeMetricFamily)(metric.name, metric.help, labels=metric.labels)
    for sample in values:
        if isinstance(sample.value, Distribution):
            family.add_metric(sample.labels, _buckets(sample.value), sample.value.total_seconds)
        else:
            family.add_metric(sample.labels, sample.value)
    return family


def _buckets(durations: Distribution) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in durations.bounds), "+Inf"]
    return list(zip(bounds, accumulate(durations.counts), strict=True))

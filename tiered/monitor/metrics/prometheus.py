"""Samples as Prometheus' client library takes them; the library is an extra, and is imported when asked for."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from ...base.histogram import Distribution
from ...errors import ConfigError
from ..watched import Watched
from .catalogue import COUNTER, HISTOGRAM, METRICS, Metric
from .samples import Sample, samples


def registry_for(watched: Watched) -> Any:
    """Return a ``prometheus_client.CollectorRegistry`` with the metrics of an open store.

    They are collected when it is scraped, from what this process has counted and from a look at the local disk;
    the bucket is asked nothing.

    Parameters
    ----------
    passes
        The loop whose passes are among the metrics.

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
    """Return what a scrape of `registry` is answered, and its content type.

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
    """Makes one family a metric that has values; called by the library at each scrape."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def describe(self) -> list[Any]:
        """Return nothing: names are looked at when they are collected, not when this is registered."""
        return []

    def collect(self) -> Iterator[Any]:
        by_name: dict[str, list[Sample]] = {}
        for sample in samples(self._watched):
            by_name.setdefault(sample.name, []).append(sample)
        for metric in METRICS:
            if metric.name in by_name:
                yield _family(metric, by_name[metric.name])


def _family(metric: Metric, found: list[Sample]) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds = {COUNTER: CounterMetricFamily, HISTOGRAM: HistogramMetricFamily}
    family = kinds.get(metric.kind, GaugeMetricFamily)(metric.name, metric.help, labels=metric.labels)
    for sample in found:
        if isinstance(sample.value, Distribution):
            family.add_metric(sample.labels, _buckets(sample.value), sample.value.total_seconds)
        else:
            family.add_metric(sample.labels, sample.value)
    return family


def _buckets(found: Distribution) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in found.bounds), "+Inf"]
    return list(zip(bounds, accumulate(found.counts), strict=True))

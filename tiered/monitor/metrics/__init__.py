"""The metrics of a store for Prometheus; their values are collected at each scrape. See `registry_for`."""

from __future__ import annotations

from .catalogue import METRICS, Metric
from .prometheus import exposition, registry_for

__all__ = ["METRICS", "Metric", "exposition", "registry_for"]

"""Stores to look at, their passes by hand, and metrics as a scraper reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

import tiered
from tests.support.clock import Clock
from tests.support.s3_server import S3Process
from tiered.engine.host import Host
from tiered.monitor.metrics import exposition, registry_for
from tiered.settings.schedule import jittered_interval
from tiered.tiering.pass_loop import PassLoop

POLICY = {
    "roll": {"bytes": "256MiB", "age": "off"},
    "compress": "off",
    "offload": {"after": "1h", "tail_interval": "10s"},
    "local_retention": {"age": "2h", "bytes": "off"},
    "merge": "off",
    "scrub": {"every": "1d", "bytes_per_pass": "1GiB"},
}


@contextmanager
def scene(
    path: Path, cold: str | None, clock: Clock, **policy: Any
) -> Iterator[tuple[tiered.Store, PassLoop]]:
    """An open store, and its loop of passes without threads."""
    settings = tiered.Settings.model_validate(
        {"store": {"sync_interval": "1h"}, "policies": {"default": POLICY | policy}}
    )
    with tiered.open(path, cold=cold, settings=settings, host=Host(clock=clock)) as store:
        yield (
            store,
            PassLoop(
                store.tierer,
                store.topics,
                settings.policy_for,
                schedule=jittered_interval(60, draw=lambda: 0.5),
                clock=clock,
                monotonic=lambda: clock() / 1e6,
                draw=lambda: 0.5,
            ),
        )


def run(passes: PassLoop) -> None:
    """Run both kinds of pass now."""
    passes._schedule_tails(0.0)
    passes.trigger()
    passes.run_due()


def scraped(store: tiered.Store, passes: PassLoop | None = None) -> dict[tuple[str, ...], float]:
    """The samples of a scrape, by name and ``label=value`` in the order of the labels' names."""
    text = exposition(registry_for(store.watched(passes)))[0].decode()
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def requests_of(server: S3Process) -> dict[str, int]:
    """What the server was asked; refusals are under their own names."""
    return {name: count for name, count in server.counts().items() if not name.startswith("bytes")}


def families(store: tiered.Store, passes: PassLoop | None = None) -> dict[str, Any]:
    """Families of a scrape as the parser of the library reads them, by name."""
    text = exposition(registry_for(store.watched(passes)))[0].decode()
    return {family.name: family for family in text_string_to_metric_families(text)}

"""Stores that are restored to a time, for tests of erasures beside that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiered
from tests.support.clock import Clock
from tests.support.stores import stepwise
from tiered.engine.host import Host

MERGING = stepwise(
    offload={"after": "0s", "tail_interval": "off"},
    local_retention={"age": "1h"},
    merge={"after": "4h", "target_bytes": "1MiB"},
)


def restored(url: str, path: Path, clock: Clock, moment: int, **host: Any) -> tiered.Store:
    return tiered.restore(url, path, settings=MERGING, host=Host(clock=clock, **host), at=moment)

"""Repairs of a damaged store, and what must hold of it afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiered
from tests.support.damage import Damage
from tests.support.stores import stepwise
from tests.support.tally import tally
from tests.support.verified_store import Place, read
from tiered.cli.verify import open_tiers
from tiered.errors import TieredError
from tiered.repair.repair import repair_store
from tiered.settings.settings import Settings
from tiered.verify.report import Repair, VerifyReport
from tiered.verify.verifier import verify_store


def access_of(place: Place, **cold: str) -> Any:
    values: dict[str, Any] = {"store": {"path": str(place.data)}}
    return open_tiers(Settings.model_validate({**values, "cold": cold} if cold else values))


def repair(place: Place, *, rebuild_manifest: bool = False, **cold: str) -> VerifyReport:
    tally("repair", runs=1)
    return repair_store(access_of(place, **cold), deep=True, rebuild_manifest=rebuild_manifest)


def spoil(path: Path, damage: Damage) -> bytes:
    data = path.read_bytes()
    spoilt = damage(data)
    if spoilt is None:
        path.unlink()
    else:
        path.write_bytes(spoilt)
    return spoilt or b""


def done(report: VerifyReport) -> list[Repair]:
    return [item for item in report.repairs if item.result == "done"]


def check_whole(place: Place, report: VerifyReport) -> None:
    """No problem is left, every record is there, and the store takes appends."""
    assert report.problems == (), [str(item) for item in report.problems]
    assert verify_store(access_of(place), deep=True).problems == ()
    for (partition, start, end), values in read(place).items():
        assert not isinstance(values, TieredError), values
        assert values == place.truth[partition][start:end]
    with tiered.open(place.data, settings=stepwise()) as store:
        offset = store.topic("orders").append(b"more", partition=0, sync=True).offset
        assert offset == len(place.truth[0])

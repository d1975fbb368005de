"""A crash after any operation, whatever it takes with it, breaks no promise (P1 to P7).

Each life is recorded once; every crash of it is then computed, opened, and held against the model. One crash point
is one operation on the disk or the bucket; one crash is a point and a loss.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.check import Count, Sample, check
from tests.crash.scenarios import check_failed_sync, check_old_image, check_rot
from tests.crash.workload import record
from tests.support.budget import rounds, seconds_of
from tests.support.store_actor import Actor
from tests.support.tally import tally

# Under `never` a power cut is allowed to take what was not flushed; what was must be there under every mode.
MODES = ("always", "interval", "never")


def sample_of(mode: str) -> Sample:
    """What a quick run looks at; each mode starts elsewhere, so that together they meet most operations."""
    return Sample(stride=54, first=18 * MODES.index(mode), pass_every=5, again_every=16)


@pytest.mark.extended
@pytest.mark.parametrize("mode", MODES)
def test_a_crash_loses_nothing(tmp_path: Path, mode: str) -> None:
    """Acknowledged records are there once and in order, offsets dense, blocks whole; appends and tiering go on."""
    run(record(tmp_path / "life", mode), sample_of(mode))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shard", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_many_crashes_lose_nothing(tmp_path: Path, mode: str, shard: int) -> None:
    """The same for minutes, with more losses, and with crashes in many of the recoveries; others at every run."""
    actor = record(tmp_path / "life", mode)
    for dice in rounds(seconds_of(0.13, 2 * len(MODES))):
        first, salt = 24 * shard + dice.randrange(24), dice.randrange(1 << 32)
        run(actor, Sample(seeds=3, salt=salt, stride=48, first=first, again_every=4))


def run(actor: Actor, sample: Sample) -> None:
    count = Count()
    check(actor, sample, count)
    assert count.states > count.crash_points > len(actor.recorder.journal) // (2 * sample.stride)
    tally(
        "power cut",
        crash_points=count.crash_points,
        crashes=count.crashes,
        states=count.states,
        second_crashes=count.second_crashes,
    )


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["always", "interval"])
def test_damage_to_synced_bytes_is_never_cut_off(tmp_path: Path, mode: str) -> None:
    """A bit that flips in front of bytes known to have been synced is corruption, for readers and for the writer."""
    tried = check_rot(tmp_path, mode)
    assert tried > 10
    tally("rot in synced bytes", tried=tried)


def test_an_old_image_of_the_disk_never_passes_for_the_published_log(tmp_path: Path) -> None:
    """Offsets that the bucket has from another lineage prove nothing about local records: none of them is evicted."""
    check_old_image(tmp_path)


@pytest.mark.extended
@pytest.mark.parametrize("mode", ["always", pytest.param("interval", marks=pytest.mark.slow), "never"])
def test_a_failed_sync_acknowledges_nothing(tmp_path: Path, mode: str) -> None:
    """The partition is poisoned; a reopen finds what is true; no power cut takes what was acknowledged."""
    tally("failed sync", crashes=check_failed_sync(tmp_path, mode))

"""The commit protocol, explored: no interleaving of tierers, sweepers, restores and readers breaks a promise.

What is modelled
    A bucket (`bucket.py`) whose requests take effect at one moment each. An answer can be lost, a PUT or DELETE can land at
    any later step, or never, or twice, and a client can meet the 412 of its own success; clients go on meanwhile. Time
    is the server's, and may leap over the grace period at any step. Any actor may stall anywhere, for as long as it
    takes. Actors run the real code (`engine.py`) of claims, commits, pages, offload, tail shipping, eviction, retention,
    sweep, restore, snapshots and reading, over disks, documents and Parquet files that are plain values. `scenarios.py`
    has the stories.

What is checked, at every step or at every end (`invariants.py`)
    P1  what is published is dense, and no offset ever leads to two different records; lineages lie where they belong
    P5  no segment leaves a disk unless the head, read by authority, leads to each of its records; this stays so
    P6  nothing that the head leads to, or led to within the grace period, is deleted; no name has two contents
    P7  commits build on one another, epochs never go back; who was restored elsewhere changes nothing any more
    P8  a reader gets everything, once and right, or `OffsetOutOfRange`, or an error that says to try again
    and: a commit that was acknowledged is in the head; when all is quiet, a last pass and two sweeps leave exactly the
    live objects, and what lands even after that changes nothing.

Bounds
    Two tierers, or one and a sweeper, a restore, readers; one to four segments of one or two records; heads spill into
    pages at three entries; two attempts a commit. `BOUNDS` says how many faults each story is explored with: every
    interleaving, and every place and kind of so many faults; in the long run as far as the time goes. Besides,
    schedules with two and three faults are drawn at random.
    The explorer prunes states met before and orders of steps that commute (`explorer.py` says why nothing is missed).

What is not modelled
    Local locks (as if there were none), the hot tier, crashes of a process other than stalling for ever (`tests/crash` and
    `tests/recovery/test_restore.py` have those), damaged bytes (`tests/faults`), multipart uploads, several partitions, listings that are not
    one moment, buckets without conditional writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.protocol import scenarios
from tests.protocol.engine import engine, small_pages
from tests.protocol.explorer import Result, World, explore, walk
from tests.support.budget import rounds, seconds_of
from tests.support.tally import tally

# Story to faults in a quick run, which is explored to the end, and in a long one, which has its time.
BOUNDS: dict[Callable[[World], None], tuple[int, int]] = {
    scenarios.same_segment: (0, 1),
    scenarios.same_disk: (0, 0),
    scenarios.late_head: (1, 2),
    scenarios.late_head_of_the_fenced: (0, 1),
    scenarios.late_object: (0, 1),
    scenarios.spill: (0, 1),
    scenarios.claims: (0, 1),
    scenarios.claim_again: (0, 1),
    scenarios.first_reader: (0, 1),
    scenarios.claim_alone: (1, 2),
    scenarios.late_head_swept: (1, 2),
    scenarios.stalled_upload: (0, 1),
    scenarios.sweep_at_once: (0, 1),
    scenarios.slow_upload: (0, 1),
    scenarios.sweep_and_claim: (0, 1),
    scenarios.tail_replaced: (0, 1),
    scenarios.tails_beside_a_full_pass: (0, 1),
    scenarios.tails_by_two: (0, 1),
    scenarios.retention: (0, 0),
    scenarios.retention_swept: (0, 1),
    scenarios.evicted_while_listed: (0, 0),
    scenarios.restored_twin: (0, 1),
    scenarios.evicted_under_a_twin: (0, 1),
    scenarios.evicted_from_an_image: (0, 1),
    scenarios.two_copies: (0, 1),
    scenarios.first_pass_and_restore: (0, 0),
    scenarios.two_restores: (0, 1),
    scenarios.two_restores_in_turn: (0, 1),
    scenarios.restore_beside_a_busy_host: (1, 2),
    scenarios.restore_that_dies: (0, 1),
    scenarios.announced_beside_a_restore: (0, 1),
    scenarios.created_again: (0, 1),
}
STORIES = [pytest.param(story, id=story.__name__) for story in BOUNDS]


@pytest.fixture(scope="module", autouse=True)
def real_code() -> Iterator[None]:
    with engine() as patch:
        small_pages(patch, 2)
        yield


def count(result: Result) -> None:
    tally("protocol", schedules=result.schedules, ends=result.ends, states=result.states, steps=result.steps)


# So many interleavings that their end takes more than a few seconds.
WIDE = (
    "restored_twin",
    "first_pass_and_restore",
    "two_restores_in_turn",
    "restore_that_dies",
    "announced_beside_a_restore",
)


@pytest.mark.extended
@pytest.mark.parametrize(
    "story",
    [
        pytest.param(story, id=story.__name__, marks=[pytest.mark.slow] if story.__name__ in WIDE else [])
        for story in BOUNDS
    ],
)
def test_every_interleaving_keeps_the_promises(story: Callable[[World], None]) -> None:
    result = explore(story, faults=BOUNDS[story][0])
    count(result)
    assert not result.violation, str(result)
    assert result.complete
    assert result.ends


@pytest.mark.extended
@pytest.mark.parametrize("story", STORIES)
def test_schedules_with_two_faults_keep_the_promises(story: Callable[[World], None]) -> None:
    result = walk(story, faults=2, schedules=25)
    count(result)
    assert not result.violation, str(result)


LONG = [story for story in STORIES if len(set(BOUNDS[story.values[0]])) > 1]  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("story", LONG)
def test_every_interleaving_with_faults_keeps_the_promises(story: Callable[[World], None]) -> None:
    """To the end where there is time for it; the count says for how many stories there was."""
    result = explore(story, faults=BOUNDS[story][1], seconds_max=seconds_of(0.08, len(LONG)))
    count(result)
    tally("protocol", stories_with_faults=1, of_them_complete=int(result.complete))
    assert not result.violation, str(result)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("story", STORIES)
def test_many_schedules_with_three_faults_keep_the_promises(story: Callable[[World], None]) -> None:
    for dice in rounds(seconds_of(0.04, len(STORIES))):
        result = walk(story, faults=3, schedules=100, seed=dice.randrange(1 << 32))
        count(result)
        assert not result.violation, str(result)

"""One answer of the bucket is spoilt on its way: whoever judges asks again, and nothing that is sound is accused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tiered
from tests.support.budget import thinned
from tests.support.clock import Clock
from tests.support.faulty_store import FaultyStore
from tests.support.stores import HOUR_US, committer_of
from tests.tiering.merged_store import bits, fill, merging, offload_all
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.cold.object_store.connect import open_object_store
from tiered.cold.upkeep.rebuild import plan_rebuild
from tiered.cold.upkeep.rewrite import rewrite_objects
from tiered.cold.upkeep.whole_object import verified_chunks
from tiered.engine.host import Host
from tiered.table.data_files import NamedObject, read_footer

PARTS = 2
# A listing has no checksum, and what a writer is told of its own upload makes it upload again.
SPOILT = {"get": ("flipped", "truncated"), "get_range": ("flipped", "truncated"), "stat": ("truncated",)}
# Of an object that the manifest names, a second answer is asked for that it is gone, too.
GONE = {"get_range": ("gone",), "stat": ("gone",)}


class Place:
    """A store whose records are in the bucket alone, behind faults that a test orders by the number of a request."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.url, self.path, self.clock = f"file://{path}/bucket", path, clock
        self.faulty = FaultyStore(open_object_store(self.url))
        self.host = Host(clock=clock, open_bucket=lambda url, options: self.faulty)
        rules = merging(merge="off", scrub={"every": "1h"})
        # Nothing that was fetched stays.
        store = {**rules.to_json()["store"], "cache_bytes": 0, "cache_memory_bytes": 0}
        self.settings = tiered.Settings.model_validate({**rules.to_json(), "store": store})
        with tiered.open(path / "data", cold=self.url, host=self.host, settings=self.settings) as store:
            topic = fill(store, PARTS)
            offload_all(store, clock)
            self.meta, self.rows = topic.opened.meta, bits(topic.scan())
        # Without the blocks that a writer keeps in memory.
        self.store = tiered.open(path / "data", host=self.host, settings=self.settings)
        self.rounds = self.restores = 0

    @property
    def cold(self) -> PartitionManifest:
        return PartitionManifest(self.faulty, "t", self.meta.topic_id, 0)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    found = Place(tmp_path_factory.mktemp("spoilt"), Clock())
    yield found
    found.store.close()


def scan(place: Place) -> object:
    topic = place.store.topic("t")
    assert bits(topic.scan()) == place.rows
    return bits(topic.scan(columns=["amount", "offset"]))


def scrub(place: Place) -> object:
    place.rounds += 1
    report = place.store.tier((place.clock() + (3 + 2 * place.rounds) * HOUR_US) // 1000)
    assert [action.kind for action, _ in report.done] == ["scrub"]
    with place.faulty.quiet():
        return report.failed, [row.damaged for row in place.store.status()]


def verify(place: Place) -> object:
    report = place.store.verify(deep=True)
    return report.problems, report.unknown


def rebuild(place: Place) -> object:
    with place.faulty.quiet():
        head = place.cold.load().head
    planned = plan_rebuild(place.cold, store_id=place.store.store_id, schemas=head.schemas)
    return planned.left_out, planned.problems, replace(planned.head, commit_id="")


def merge(place: Place) -> object:
    loaded = place.cold.load()
    entries = place.cold.entries(loaded.head)
    name = committer_of(place.store, place.meta, 0).new_object_name(0)
    return rewrite_objects(place.cold, entries, place.meta.schemas[0], name).record_count


def copy(place: Place) -> object:
    """What promote, a change of class and an export read."""
    entry = place.cold.entries(place.cold.load().head)[1]
    key = place.cold.keys.data(entry.name)
    return b"".join(verified_chunks(place.faulty, key, entry)), read_footer(
        place.faulty, NamedObject(0, key, entry)
    ).num_rows


def pages(place: Place) -> object:
    head = place.cold.load().head
    entries = head.inline
    ref = place.cold.save_page(entries)
    return PartitionManifest(place.faulty, "t", place.meta.topic_id, 0).load_page(ref) == entries


def restore(place: Place) -> object:
    place.restores += 1
    with tiered.restore(
        place.url, place.path / f"restored-{place.restores}", host=place.host, settings=place.settings
    ) as found:
        return bits(found.topic("t").scan())


@pytest.mark.extended
@pytest.mark.parametrize("judge", [scan, scrub, verify, rebuild, merge, copy, pages, restore])
def test_no_single_answer_is_believed(place: Place, judge: Callable[[Place], object]) -> None:
    """Each request of each judge in turn is answered by other bytes, fewer bytes, or another size."""
    judge(place)  # what is asked for once only
    asked = len(place.faulty.operations)
    right = judge(place)
    verbs = [item.verb for item in place.faulty.operations[asked:]]
    kinds = {
        **SPOILT,
        **({verb: SPOILT[verb] + GONE[verb] for verb in GONE} if judge in (scrub, verify) else {}),
    }
    faults = [(number, kind) for number, verb in enumerate(verbs) for kind in kinds.get(verb, ())]
    assert faults
    for number, kind in thinned(faults, 5 if judge is restore else 1):
        before = place.faulty.struck.total()
        place.faulty.faults = {len(place.faulty.operations) + number: kind}
        assert judge(place) == right, f"{kind} at {verbs[number]} {number}"
        assert place.faulty.struck.total() == before + 1

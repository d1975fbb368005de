"""Of a large manifest only some pages are read to plan; what is done in the end is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiered
from tests.support.clock import Clock
from tests.support.manifest_values import MemoryPages, empty_head, entry
from tests.support.stores import open_store, stepwise, tier
from tiered.format import manifest_changes
from tiered.format.manifest import Head
from tiered.format.manifest_changes import add_objects, spill
from tiered.survey import published_manifest
from tiered.survey.published_manifest import pages_in_question

SEGMENTS = 30


def small_pages(patch: pytest.MonkeyPatch, *, pages_read: int) -> None:
    """Let two objects fill a page, and a manifest of so many pages be a large one."""
    patch.setattr(manifest_changes, "INLINE_ENTRIES_MAX", 1)
    patch.setattr(manifest_changes, "PAGE_ENTRIES_MAX", 2)
    patch.setattr(published_manifest, "SMALL_MANIFEST_PAGES", pages_read)


def history(
    path: Path, clock: Clock, patch: pytest.MonkeyPatch, pages_read: int, **rules: Any
) -> tiered.Store:
    """A store of many small segments in the bucket and few on disk."""
    with patch.context() as while_open:
        small_pages(while_open, pages_read=pages_read)
        settings = stepwise(
            offload={"after": "0s", "tail_interval": "off"}, local_retention={"age": "0s"}, **rules
        )
        store = open_store(path, f"file://{path}-bucket", clock, settings=settings)
        topic = store.create_topic("t")
        for part in range(SEGMENTS):
            topic.append_many([b"%d-%d" % (part, row) * (1 + part % 3) for row in range(20)])
            topic.roll()
            clock.advance(600)
            tier(store, clock, 0)
    return store


RULES = {
    "nothing expires": {},
    "by age": {"retention": {"age": "3h"}},
    "by bytes": {"retention": {"bytes": "20KiB"}},
    "merged": {"merge": {"after": "1h", "target_bytes": "16KiB"}},
    "scrubbed": {"scrub": {"every": "1h", "bytes_per_pass": "8KiB"}},
}
LONGER = ("by bytes", "scrubbed")


@pytest.mark.extended
@pytest.mark.parametrize(
    "rules",
    [pytest.param(RULES[name], marks=[pytest.mark.slow] if name in LONGER else []) for name in RULES],
    ids=RULES,
)
def test_a_store_comes_to_the_same_rest(
    rules: dict[str, Any], tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether all pages are read or the ones in question: the same records and the same holdings, after some passes."""
    ends = []
    for name, pages_read in (("all", 1000), ("some", 0)):
        clock.now_us = 1_750_000_000_000_000
        store = history(tmp_path / name, clock, monkeypatch, pages_read, **rules)
        with store, monkeypatch.context() as patch:
            small_pages(patch, pages_read=pages_read)
            for _ in range(12):
                tier(store, clock, 0)
            status = store.status().partitions[0]
            rows = store.topic("t").scan().to_arrow().drop_columns(["timestamp"])
            assert store.plan().actions == ()
        ends.append((rows, status.start_offset, status.end_offset, status.cold.records, status.scrubbed_us))
        if name == "some" and not rules:
            assert status.cold.segments == SEGMENTS
    assert ends[0] == ends[1]


def test_a_plan_reads_few_pages(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    with history(tmp_path / "s", clock, monkeypatch, 0) as store:
        access = store.context.tiers
        cold = access.cold(store.topic("t").opened.meta, 0)
        loaded = cold.load()
        assert loaded is not None
        total = len(loaded.head.pages)
        assert total > 10
        small_pages(monkeypatch, pages_read=4)
        read: list[str] = []
        monkeypatch.setattr(
            cold, "load_pages", lambda refs: [read.append(ref.name) or cold.load_page(ref) for ref in refs]
        )
        store.plan()
        assert 0 < len(read) <= 12
        read.clear()
        status = store.status().partitions[0].cold
        assert (status.segments, status.records) == (SEGMENTS, SEGMENTS * 20)
        assert len(read) <= 12


def test_a_bucket_is_told_of_a_start_offset_within_an_object(tmp_path: Path, clock: Clock) -> None:
    """Who reads the bucket alone does not see what was deleted, once a pass has run."""
    bucket = f"file://{tmp_path}/bucket"
    settings = stepwise(offload={"after": "0s", "tail_interval": "off"}, local_retention={"age": "0s"})
    with open_store(tmp_path / "s", bucket, clock, settings=settings) as store:
        topic = store.create_topic("t")
        topic.append_many([b"%d" % row for row in range(20)])
        topic.roll()
        topic.append(b"newest", sync=True)
        tier(store, clock, 0)
        topic.delete_before(7)
        for _ in range(3):
            tier(store, clock, 0)
        assert store.plan().actions == ()
    with tiered.open(bucket) as elsewhere:
        assert elsewhere.topic("t").offsets()[0].start == 7


@given(st.data())
def test_what_is_in_question_is_read(data: st.DataObject) -> None:
    """Both ends, what is local, where the scrub goes on, the smallest objects: never more than a few pages else."""
    pages, head = MemoryPages(), empty_head()
    count = data.draw(st.integers(1, 60))
    with pytest.MonkeyPatch.context() as patch:
        small_pages(patch, pages_read=data.draw(st.sampled_from([0, 4, 16])))
        sizes = data.draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
        for i, groups in enumerate(sizes):
            head = spill(add_objects(head, [entry(10 * i, 10 * i + 10, i + 1, groups=groups)], pages), pages)
        local = data.draw(st.none() | st.integers(0, 10 * count))
        scrub = data.draw(st.integers(0, 10 * count))
        names = pages_in_question(head, local, scrub)
        limit = published_manifest.SMALL_MANIFEST_PAGES
    _check_question(head, names, local, scrub, limit)


def _check_question(head: Head, names: set[str], local: int | None, scrub: int, limit: int) -> None:
    refs = head.pages
    assert names <= {ref.name for ref in refs}
    if len(refs) <= limit:
        assert len(names) == len(refs)
        return
    for ref in (*refs[:2], *refs[-2:]):
        assert ref.name in names
    for ref in refs:
        assert local is None or ref.end_offset <= local or ref.name in names
        assert not ref.base_offset <= scrub < ref.end_offset or ref.name in names
    below = [ref for ref in refs if local is None or ref.end_offset <= local]
    assert len(names) - (len(refs) - len(below)) <= 10

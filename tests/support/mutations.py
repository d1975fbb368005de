"""Mechanisms of the engine taken out, one at a time: what tests that crash and kill must notice."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.support.delegate import Delegate
from tests.support.recorder import Recorder
from tiered.format.manifest import ObjectEntry
from tiered.hot.partition_writer import PartitionWriter
from tiered.reader.same_log import Likeness, SameLog
from tiered.survey import plan_facts
from tiered.tiering.local_actions import LocalActions
from tiered.tiering.partition_handle import PartitionHandle
from tiered.tiering.publish_actions import PublishActions
from tiered.tiering.store_claim import StoreClaim
from tiered.warm import filesystem, reencode
from tiered.warm.catalog import Catalog
from tiered.warm.segment_writer import SegmentWriter

Mutation = Callable[[], AbstractContextManager[object]]


class Without(Delegate):
    """A file system on which some operations do nothing."""

    def __init__(self, fs: Any, *names: str) -> None:
        super().__init__(fs)
        self._names = names

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: None) if name in self._names else super().__getattr__(name)


def _create_without(*names: str) -> Mutation:
    create = SegmentWriter.create

    def changed(fs: Any, directory: Any, header: Any) -> SegmentWriter:
        made = create(Without(fs, *names), directory, header)
        made._fs = fs
        return made

    return lambda: mock.patch.object(SegmentWriter, "create", changed)


@contextmanager
def _write_atomically_without(*names: str) -> Any:
    def changed(fs: Any, path: Any, data: bytes) -> None:
        filesystem_write(Without(fs, *names), path, data)

    filesystem_write = filesystem.write_atomically
    with mock.patch("tiered.warm.document_file.write_atomically", changed):
        yield


def _method_without(cls: type, name: str, *operations: str) -> Mutation:
    """A method of an object that keeps its file system in ``_fs``."""
    method = getattr(cls, name)

    def changed(self: Any, *args: Any, **options: Any) -> Any:
        fs = self._fs
        self._fs = Without(fs, *operations)
        try:
            return method(self, *args, **options)
        finally:
            self._fs = fs

    return lambda: mock.patch.object(cls, name, changed)


def _rewrite_without(*names: str) -> Mutation:
    def changed(fs: Any, *args: Any, **options: Any) -> Any:
        return reencode.rewrite_segment(Without(fs, *names), *args, **options)

    return lambda: mock.patch("tiered.tiering.local_actions.rewrite_segment", changed)


def _show_what_is_not_durable() -> AbstractContextManager[object]:
    view = PartitionWriter.view

    def changed(self: Any, *, flush: bool = True) -> Any:
        self._options = replace(self._options, sync_on_scan=False)
        return view(self, flush=flush)

    return mock.patch.object(PartitionWriter, "view", changed)


def _delete_before_publishing() -> AbstractContextManager[object]:
    publish = PublishActions._publish

    def changed(self: Any, handle: Any, committer: Any, segment: Any, facts: Any, *, sealed: bool) -> int:
        if sealed:
            unlink(self, handle, segment)
        return publish(self, handle, committer, segment, facts, sealed=sealed)

    return mock.patch.object(PublishActions, "_publish", changed)


def unlink(actions: PublishActions, handle: PartitionHandle, segment: Any) -> None:
    """Remove a file as an eviction does, without its checks."""
    evictor = SimpleNamespace(_tiers=actions._tiers, _fs=actions._claims._fs)
    LocalActions._unlink(evictor, handle, segment)  # type: ignore[arg-type]


@contextmanager
def evict_by_offsets() -> Any:
    """What covers a segment is looked up by offsets, not by its id and its hash: for the plan, and before deleting."""

    def covered(entries: Iterable[ObjectEntry], segment_id: object, base: int, end: int) -> bool:
        return any(entry.base_offset <= base and entry.end_offset >= end for entry in entries)

    def by_segment(entries: Iterable[ObjectEntry]) -> Any:
        everything[:] = entries
        return real_by_segment(everything)

    def fact_of(*arguments: Any, **options: Any) -> Any:
        fact = segment_fact(*arguments, **options)
        found = covered(everything, None, fact.base_offset, fact.end_offset)
        return replace(fact, in_manifest=fact.sealed and found)

    everything: list[ObjectEntry] = []
    real_by_segment, segment_fact = plan_facts._by_segment, plan_facts._segment_fact
    with (
        mock.patch.object(plan_facts, "_by_segment", by_segment),
        mock.patch.object(plan_facts, "_segment_fact", fact_of),
        mock.patch("tiered.cold.manifest.partition_manifest.covers", covered),
        mock.patch.object(SameLog, "compare", return_value=Likeness.SAME),
        mock.patch.object(SameLog, "at_end", return_value=Likeness.SAME),
    ):
        yield


def retry_failed_sync() -> AbstractContextManager[object]:
    """A sync that failed is tried again on the same descriptor, and succeeds."""
    sync = SegmentWriter.sync

    def changed(self: Any) -> None:
        try:
            sync(self)
        except OSError:
            self._sync_failed = False
            sync(self)

    return mock.patch.object(SegmentWriter, "sync", changed)


def cut_at_any_damage() -> AbstractContextManager[object]:
    """Whatever does not verify is taken for a torn tail."""
    return mock.patch("tiered.warm.segment_scan._check_torn_tail", return_value=None)


EVICT_EARLY = "the local file deleted before the commit"
FLUSH_ONLY = "a flush without a sync"

MUTATIONS: dict[str, Mutation] = {
    "a new segment, its directory not synced": _create_without("sync_directory"),
    "a new segment, its header not synced": _create_without("sync"),
    "a document, its directory not synced": lambda: _write_atomically_without("sync_directory"),
    "a document, its bytes not synced": lambda: _write_atomically_without("sync"),
    FLUSH_ONLY: _method_without(SegmentWriter, "sync", "sync"),
    "a seal without a sync": _method_without(SegmentWriter, "seal", "sync"),
    "a deleted topic, its rename not synced": lambda: mock.patch.object(Catalog, "sync_deletions"),
    "a deleted topic, its tombstone before the rename": lambda: mock.patch.object(
        StoreClaim, "check_may_write_tombstone", StoreClaim.write_tombstone
    ),
    "a re-encoded file, its bytes not synced": _rewrite_without("sync"),
    "a re-encoded file, its name not synced": _rewrite_without("sync_directory"),
    "a reader that does not sync": lambda: mock.patch.object(Recorder, "_sync_of_reader"),
    "a scan that does not flush": _show_what_is_not_durable,
    EVICT_EARLY: _delete_before_publishing,
}

# Where only what is done late in the life shows it: a part of a name that is made there.
LATE = {
    "a deleted topic, its rename not synced": ".deleting-",
    "a deleted topic, its tombstone before the rename": ".deleting-",
    "a re-encoded file, its bytes not synced": "-1.log",
    "a re-encoded file, its name not synced": "-1.log",
}

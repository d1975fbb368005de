"""Leftovers of killed processes: half-written files, older generations, files of deleted topics, copies without a topic."""

from __future__ import annotations

import shutil

from ..base.units import to_us
from ..cold.manifest.keys import PartitionKeys, topic_prefix
from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..engine.writers import is_gone
from ..errors import TieredError, as_tiered_error
from ..warm.partition_directory import list_segments, remove_half_written
from ..warm.reencode import remove_leftover
from .partition_handle import PartitionHandle
from .sweep_state import remove_half_swept


def remove_leftovers(context: StoreContext, topics: OpenTopics) -> list[TieredError]:
    """Remove all leftovers; return the errors. The caller holds the tiering lock."""
    problems: list[TieredError] = []
    root = context.tiers.locations.root
    assert root is not None  # the tiering lock lies in it
    try:
        remove_half_swept(context.fs, root)
        context.catalog.remove_deleted()
    except (TieredError, OSError) as error:
        problems.append(as_tiered_error(error))
    unread: list[str] = []  # the survey reports their errors
    for meta, partition in topics.partitions(lambda topic, _: unread.append(topic)):
        try:
            handle = PartitionHandle.of(topics, meta, partition)
            if handle.directory.is_dir():
                _tidy_copies(context, handle)
                _tidy_directory(context, handle)
        except (TieredError, OSError) as error:
            if not is_gone(context, meta):
                problems.append(as_tiered_error(error))
    if not unread:
        _remove_copies_of_others(context, topics)
    return problems


def _tidy_directory(context: StoreContext, handle: PartitionHandle) -> None:
    remove_half_written(context.fs, handle.directory)
    for name in list_segments(handle.directory).leftovers:
        with handle.hold_topic():
            remove_leftover(context.fs, handle.directory, name)


def _tidy_copies(context: StoreContext, handle: PartitionHandle) -> None:
    """Remove the half-written copies of a partition, and the counts of fetches that are too old."""
    copies, meta = context.tiers.copies, handle.meta
    if copies is not None:
        within = context.settings.policy_for(meta.name).promote.within
        keys = PartitionKeys.of(meta.name, meta.topic_id, handle.partition)
        copies.tidy(keys.data_prefix, context.clock() - to_us(within))


def _remove_copies_of_others(context: StoreContext, topics: OpenTopics) -> None:
    """Remove the copies of topics that do not exist any more."""
    copies = context.tiers.copies
    folders = copies.folders() if copies is not None else []
    if folders:
        prefixes = {topic_prefix(meta.name, meta.topic_id) for meta, _ in topics.partitions()}
        for prefix, folder in folders:
            if prefix not in prefixes:
                shutil.rmtree(folder, ignore_errors=True)

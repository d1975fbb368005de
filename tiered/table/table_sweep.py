"""The part of a sweep that concerns the live table of one topic.

The *newest version* is the one that readers find. While the pointer is behind it, as after a crash, some readers find the
version of the pointer, which counts as well. The sweep answers two questions from them:

- *Which objects of the topic does it name?* They stay, although no manifest has named them for the grace. A publication
  commits nothing from heads that it read longer ago than half the grace. So a snapshot names an orphan that is due only if
  its manifest list is older than half the grace: that happens where nothing was published for so long.
- *Which files of the folder are of no use any more?* Take the newest of our versions, the *base*, that was committed longer
  than the grace ago. A file that was written before the base, and that neither the base nor the newest version names, was
  named by no version since. Writers name only files that they wrote after the last version, or that it names. So no later
  version names it, and whoever read it through a version did so longer than the grace ago. Versions below the base were
  replaced at the latest by it; they go from the oldest one on, as readers walk from one to the next.

If the base is the newest version, a manifest or a list that is older than the grace and that it does not name goes, too: its
publication cannot commit any more.

All times are the server's. Without a base nothing is deleted, and if a version or a list cannot be read, neither a file of
the folder nor an object of the topic is (promise P10).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import Any
from uuid import UUID

from ..cold.object_store.protocol import ObjectInfo, ObjectStore, object_url
from ..cold.upkeep.sweep import PartSweep, SweepRules
from ..errors import CorruptionError
from .summary_offsets import offsets_file
from .table_folder import version_of
from .table_metadata import TAKE, ForeignCommit
from .table_reader import TableReader

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_OURS = re.compile(rf"(manifest|snap)-{_UUID}-[0-9a-f]{{8}}\.avro|offsets-{_UUID}\.json")


class TableSweep:
    """The sweep of one topic's table. Its answers are those of the time at which they are first asked for.

    Parameters
    ----------
    topic
        The name of the topic.
    """

    def __init__(self, store: ObjectStore, topic: str, topic_id: UUID, rules: SweepRules) -> None:
        self._store = store
        self._topic = topic
        self._rules = rules
        self._reader = TableReader.of(store, topic, topic_id)
        self._folder = self._reader.folder

    def named_objects(self) -> frozenset[str]:
        """Return the keys of the objects that old snapshots of the newest version name: a sweep must not delete them.

        Raises
        ------
        ConfigError
            Another program committed the newest version, or the bucket is a copy.
        CorruptionError, ColdStorageError
        """
        return self._named_objects

    @cached_property
    def _named_objects(self) -> frozenset[str]:
        listed = self._listed  # before the newest version is looked for
        young = {
            info.key
            for info in listed
            if self._rules.now_seconds - info.modified_seconds < self._rules.grace_seconds / 2
        }
        old = [
            snapshot
            for _, metadata in self._found()
            for snapshot in metadata.snapshots
            if self._reader.files.key(snapshot.manifest_list) not in young
        ]
        prefix = object_url(self._store, "")
        return frozenset(
            entry.data_file.file_path.removeprefix(prefix)
            for manifest in self._reader.manifests(old)
            for entry in self._reader.files.read_manifest(manifest)
        )

    @cached_property
    def _listed(self) -> list[ObjectInfo]:
        return list(self._store.list(self._folder.prefix))

    def _found(self) -> list[tuple[int, Any]]:
        """Return the versions that readers find, the newest one first; none if there is no table.

        Raises
        ------
        CorruptionError
            There are later versions, which a writer will go on from.
        """
        last = max((version_of(info.key) for info in self._listed), default=0)
        found = self._reader.found_by_readers()
        if found and found[0][0] < last:
            raise CorruptionError(
                f"readers find no version of a table between {found[0][0]} and {last}; {TAKE}",
                where=self._folder.url(last),
            )
        return found

    def run(self, rules: SweepRules, *, dry_run: bool) -> PartSweep:
        """Delete the files of the folder that are of no use any more.

        Parameters
        ----------
        rules
            With how many objects the run may still delete.
        dry_run
            Delete nothing.

        Raises
        ------
        ConfigError, CorruptionError, ColdStorageError
            As for `named_objects`.
        """
        ours = sorted(
            (info for info in self._listed if _is_ours(info.key)),
            key=lambda info: (info.modified_seconds, version_of(info.key)),
        )
        versions = self._found() if ours else []
        if not versions:
            return PartSweep(self._topic, None, table=True)
        version = versions[0][0]
        named = {key for item in versions for key in self._files_of(*item)}
        base = self._base(version)
        due: list[ObjectInfo] = []
        if base is not None:
            number, modified_seconds = base
            named |= self._files_of(number, self._reader.read(number))
            # Those after a named one stay. A log may lack some: the host's clock jumped, or the version took over from
            # another program's.
            oldest = min(filter(None, map(version_of, named)))
            due = [
                info
                for info in ours
                if info.key not in named
                and version_of(info.key) < oldest
                and (
                    _is_before(info, number, modified_seconds)
                    or (number == version and self._is_left_over(info))
                )
            ]
        unnamed = [info for info in ours if info.key not in named and version_of(info.key) <= version]
        limit = max(0, rules.objects_max)
        deleted, left = due[:limit], due[limit:]
        if deleted and not dry_run:
            self._store.delete(info.key for info in deleted)
        waiting = set(unnamed) - set(due)
        return PartSweep(
            self._topic,
            None,
            deleted=tuple(info.key for info in deleted),
            bytes=sum(info.size for info in deleted),
            left=len(left),
            waiting=len(waiting),
            waiting_bytes=sum(info.size for info in waiting),
            table=True,
        )

    def _is_left_over(self, info: ObjectInfo) -> bool:
        """Whether a file that the newest version does not name is of a publication that did not commit in time."""
        return not version_of(info.key) and info.modified_seconds <= self._latest

    @property
    def _latest(self) -> float:
        """The time before which a reader has no use for a file that was replaced then."""
        latest = self._rules.now_seconds - self._rules.grace_seconds
        leased = self._rules.leased_since_seconds
        return latest if leased is None else min(latest, leased)

    def _base(self, newest: int) -> tuple[int, float] | None:
        """Return the newest version of ours that was committed longer than the grace ago, and when."""
        versions = {
            version: info.modified_seconds
            for info in self._listed
            if 0 < (version := version_of(info.key)) <= newest and info.modified_seconds <= self._latest
        }
        for version in sorted(versions, reverse=True):
            try:
                self._reader.read(version)
            except ForeignCommit:
                continue
            return version, versions[version]
        return None

    def _files_of(self, version: int, metadata: Any) -> set[str]:
        """Return the keys of the files that a version names, and of itself."""
        urls = {self._folder.url(version), *(item.metadata_file for item in metadata.metadata_log)}
        for snapshot in metadata.snapshots:
            urls.add(snapshot.manifest_list)
            if (url := offsets_file(snapshot.summary.additional_properties)) is not None:
                urls.add(url)
        urls |= {manifest.manifest_path for manifest in self._reader.manifests(metadata.snapshots)}
        return set(map(self._reader.files.key, urls))


def stale_files(
    store: ObjectStore,
    topic: str,
    topic_id: UUID,
    changed_seconds: float,
    live: Collection[str],
    *,
    grace_seconds: float,
) -> Iterator[str]:
    """Yield why files of a topic's table still show values of an earlier time: bounds of columns lie in manifests.

    Parameters
    ----------
    changed_seconds
        The objects of the topic had changed by this time (Unix, the server's clock). For half the grace after it, a publication
        may still have had older heads.
    live
        The names of all objects that the topic's heads name.

    Raises
    ------
    ConfigError, CorruptionError, ColdStorageError
    """
    before_seconds = changed_seconds + grace_seconds / 2
    reader = TableReader.of(store, topic, topic_id)
    listed = [info for info in store.list(reader.folder.prefix) if _is_ours(info.key)]
    newest = reader.newest() if listed else None
    if newest is None:
        for info in listed:
            yield f"{info.key} is of a table that is no more; a sweep deletes it"
        return
    current = newest[1].current_snapshot()
    manifests = list(reader.manifests([] if current is None else [current]))
    # The objects of a topic that goes on are replaced after each publication.
    if current is not None and _written(listed, reader.files.key(current.manifest_list)) < before_seconds:
        named_objects = (
            entry.data_file.file_path.rpartition("/")[2]
            for manifest in manifests
            for entry in reader.files.read_manifest(manifest)
        )
        if any(name not in live for name in named_objects):
            yield f"{reader.folder.url(newest[0])} names objects from before, with bounds of their columns"
    named = {reader.files.key(manifest.manifest_path) for manifest in manifests}
    for info in listed:
        name = info.key.rpartition("/")[2]
        if name.startswith("manifest-") and info.key not in named and info.modified_seconds < before_seconds:
            yield f"{info.key} is of an old snapshot and has values of columns; it goes after sweep.grace"


def _written(listed: Iterable[ObjectInfo], key: str) -> float:
    """Return when a file was written (Unix, the server's clock); 0, as for the oldest one, if the listing lacks it."""
    return next((info.modified_seconds for info in listed if info.key == key), 0.0)


def _is_ours(key: str) -> bool:
    return version_of(key) > 0 or _OURS.fullmatch(key.rpartition("/")[2]) is not None


def _is_before(info: ObjectInfo, version: int, modified_seconds: float) -> bool:
    """Whether a file was written before a version; servers truncate their times to seconds."""
    number = version_of(info.key)
    return number < version if number else info.modified_seconds < int(modified_seconds)

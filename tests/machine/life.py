"""One machine with its store, and the model of the lineage it is in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tiered
from tests.machine.shared_bucket import Cloud, MachineDisk
from tests.support.clock import Clock
from tests.support.disk_model import Image
from tests.support.store_actor import COLD, Actor, look
from tests.support.topic_model import Expected, Log, TopicModel, Violation, survivor
from tiered.policies.actions import Expire, Offload, ShipTail
from tiered.tiering.deletions import finish_deletions
from tiered.warm.catalog import deletions

Published = dict[tuple[str, int], int]


class Life(Actor):
    """A user of one store on one machine; see `Actor`.

    Attributes
    ----------
    published
        By topic and partition, the offset up to which the bucket has the log for certain.
    deleted
        By name, the topics that were deleted on this machine or one before it.
    """

    recorder: MachineDisk

    def __init__(
        self,
        root: Path,
        cloud: Cloud,
        clock: Clock,
        sync: str,
        grace: str,
        deleted: dict[str, list[TopicModel]],
        image: Image | None = None,
    ) -> None:
        root.mkdir()
        super().__init__(MachineDisk(root, cloud, image), clock, sync)
        self.cloud = cloud
        self.grace = grace
        self.deleted = deleted
        self.published: Published = {}
        self.restored: set[str] = set()

    def settings(self, **rules: Any) -> tiered.Settings:
        bucket = {
            "retention": {"age": "1d"},
            "merge": {"after": "5h", "target_bytes": "10KiB"},
            "cut": {"deleted": 0.2},
        }
        found = super().settings(**(bucket | rules)).to_json()
        return tiered.Settings.model_validate(found | {"sweep": {"grace": self.grace}})

    # -- after a crash, after a restore ------------------------------------------------------------

    def survive(self, expected: Expected, *, kill: bool) -> None:
        """Look, as a reader, at what a crash left; the model is what was found from here on.

        Raises
        ------
        Violation
        """
        self.model.expect(expected)
        with self.reader() as store:
            names = store.topics()
            if set(names) - expected.topics.keys():
                raise Violation(f"there are topics that nobody created: {names}")
            for name, alternatives in expected.topics.items():
                found = look(store.topic(name)) if name in names else None
                likely = tuple(
                    (topic, bounds)
                    for topic, bounds in alternatives
                    if topic is None or found is None or len(topic.logs) == len(found)
                )
                topic = survivor(name, likely, found, kill=kill)
                if topic is not None and topic.columns:
                    topic.columns = tuple(store.topic(name).schema.names)
                self.model.topics[name] = (topic,)
                if topic is None:
                    self._unpublish(name)
                for partition, log in enumerate(topic.logs if topic else ()):
                    if log.end < self.published.get((name, partition), 0):
                        raise Violation(f"{name!r}/{partition} ends at {log.end}, before what the bucket has")
                    # In the bucket alone it may be there already.
                    highs = [bounds[partition].start[1] for _, bounds in likely if partition < len(bounds)]
                    log.start = (log.start[0], max(log.start[1], *highs))
        self.model.created = True
        self.model.mark()

    def adopt(self, source: Mapping[str, TopicModel], published: Published) -> None:
        """Hold what a restore made against the log it was restored from; the model is what was found.

        Raises
        ------
        Violation
        """
        names = self.store.topics()
        missing = {name for (name, _), end in published.items() if end} - set(names)
        if missing or set(names) - source.keys():
            raise Violation(f"{names} were restored; published were {published}, there are {list(source)}")
        for name in names:
            topic = self.store.topic(name)
            columns = tuple(topic.schema.names) if source[name].columns else ()
            logs = []
            for partition, (start, end, values) in enumerate(look(topic)):
                log = source[name].logs[partition]
                low = published.get((name, partition), 0)
                if not low <= end <= log.end or start > log.start[1] or values != log.values[start:end]:
                    raise Violation(
                        f"{name!r}/{partition} was restored as [{start}, {end}): {values}, not as "
                        f"[{log.start}, {low}..{log.end}): {log.values[start:end]}"
                    )
                self.published[name, partition] = end
                logs.append(Log(log.values[:end], {0, end}, end, end, (start, start)))
            self.restored.add(name)
            self.model.topics[name] = (TopicModel(name, logs, columns),)
        self.model.created = True
        self.model.mark()

    # -- what an `Actor` does not do ---------------------------------------------------------------

    def topics(self) -> dict[str, TopicModel]:
        """The topics that are there."""
        return {name: topic for name, (topic,) in self.model.topics.items() if topic is not None}

    def create(self, name: str, partitions: int = 1, columns: tuple[str, ...] = ()) -> None:
        self.restored.discard(name)
        try:
            super().create(name, partitions, columns)
        except tiered.ColdStorageError:
            if not self.cloud.struck or name not in self.deleting():
                raise
            self.model.topics[name] = (None,)  # the bucket has to hear of the deletion first
            self.model.mark()

    def deleting(self) -> set[str]:
        """The names of topics that are gone here, and of which the bucket has not heard that yet."""
        return {item.name for item in deletions(self.path)}

    def settle(self) -> None:
        """Let the bucket hear of every deletion, or a restore brings topics back that the model does not know."""
        unheard = finish_deletions(self.store.tierer.claims, self.store.context.catalog)
        if unheard:
            raise Violation(f"the bucket answers, and has not heard: {unheard}")

    def delete(self, name: str) -> None:
        topic = self.model.topic(name)
        self.deleted.setdefault(name, []).append(topic)
        try:
            super().delete(name)
        except tiered.ColdStorageError:
            if not self.cloud.struck:
                raise
            # It was asked for what nobody can say now, so nothing was done. Whoever wants the topic gone asks again.
            self.model.topics[name] = (topic,)
            self.model.mark()
            return
        self._unpublish(name)

    def _unpublish(self, name: str) -> None:
        self.published = {key: end for key, end in self.published.items() if key[0] != name}

    def add_partition(self, name: str) -> None:
        topic = self.model.topic(name)
        grown = TopicModel(name, [*topic.logs, Log()], topic.columns)
        self.model.topics[name] = (topic, grown)
        self.model.mark()
        try:
            self.store.topic(name).add_partitions(len(grown.logs))
        except tiered.ColdStorageError:
            if not self.cloud.struck or name not in self.restored:
                raise
            self.model.topics[name] = (topic,)  # nobody knows which lineages the new partition has had
            self.model.mark()
            return
        self.model.topics[name] = (grown,)
        self.model.mark()

    def pass_(self, ahead_us: int, store: tiered.Store | None = None) -> None:
        """Run one pass as if `ahead_us` had passed, in this process or in `store`, a tierer beside it.

        An error is right only where a request failed.
        """
        store = store or self.store
        self._drain()
        now = (self.clock() + ahead_us) // 1000
        try:
            expiring = [
                (self.model.topic(action.topic).logs[action.partition], action.end_offset)
                for action in store.plan(now).actions
                if isinstance(action, Expire)
            ]
        except tiered.ColdStorageError:
            if not self.cloud.struck:
                raise
            expiring = []
        for log, offset in expiring:
            log.start = (log.start[0], max(log.start[1], offset))
        self.model.mark()
        try:
            report = store.tier(now)
        except tiered.ColdStorageError:
            if not self.cloud.struck:
                raise
            return
        for action, _ in report.done:
            if isinstance(action, (Expire, Offload, ShipTail)):
                key = action.topic, action.partition
                self.published[key] = max(self.published.get(key, 0), action.end_offset)
        if report.failed:
            if all(message.startswith("Fenced") for _, message in report.failed):
                raise tiered.Fenced(report.failed[0][1])
            if not self.cloud.struck:
                raise Violation(f"tiering failed: {report.failed}")
            return
        if store is self.store:
            for log, _ in expiring:
                log.start = (log.start[1], log.start[1])
        self.model.mark()

    def sweep(self) -> None:
        """Sweep the bucket; an error is right only where a request failed."""
        try:
            report = self.store.sweep()
        except tiered.ColdStorageError:
            if not self.cloud.struck:
                raise
            return
        if report.problems and not self.cloud.struck:
            raise Violation(f"the sweep failed: {report.problems}")

    def verify(self, *, deep: bool) -> None:
        """There is nothing to be found, but deletions of which the bucket has not heard."""
        report = self.store.verify(deep=deep)
        if report.problems:
            raise Violation(f"verify finds: {'; '.join(map(str, report.problems))}")
        waiting = [item for item in report.unknown if "/.deleting-" in item.where]
        if len(waiting) != len(self.deleting()):
            raise Violation(f"verify names {waiting}; there are {self.deleting()}")
        if len(report.unknown) > len(waiting) and not self.cloud.struck:
            raise Violation(f"verify does not know: {'; '.join(map(str, report.unknown))}")

    def bucket_reader(self) -> tiered.Store:
        """Open the bucket alone."""
        return tiered.open(COLD, host=self.host)

    def tierer(self) -> tiered.Store:
        """Open as another process would, for tiering."""
        return tiered.open(self.path, tierer=True, settings=self.settings(), host=self.host)

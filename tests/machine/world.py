"""A bucket, the machine that owns its lineage, perhaps a twin that does not know better, and who reads."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import tiered
from tests.machine.held import HeldScan
from tests.machine.life import Life, Published
from tests.machine.shared_bucket import Cloud
from tests.support.clock import Clock
from tests.support.disk_model import Delete, Disk, Loss, Objects, Put
from tests.support.store_actor import COLD, look
from tests.support.stores import let_go
from tests.support.topic_model import TopicModel, Violation
from tiered.cold.manifest.commit import Committer
from tiered.cold.manifest.keys import STORE_KEY
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.format import manifest_changes
from tiered.policies.executor import Executor
from tiered.warm import file_end, segment_reader


@contextmanager
def repeatable() -> Iterator[None]:
    """No pauses, one order, small files, and the same ids at every run."""
    numbers = itertools.count()

    def random_bytes(size: int) -> bytes:
        return hashlib.shake_128(str(next(numbers)).encode()).digest(size)

    with ExitStack() as stack:
        for kind in (Committer, StoreDocuments):
            stack.enter_context(
                mock.patch.dict(kind.__init__.__kwdefaults__, {"sleep": lambda seconds: None})
            )
        stack.enter_context(mock.patch.dict(Executor.__init__.__kwdefaults__, {"concurrency": 1}))
        stack.enter_context(mock.patch.object(manifest_changes, "INLINE_ENTRIES_MAX", 2))
        stack.enter_context(mock.patch.object(file_end, "_AHEAD_BYTES_MIN", 1024))
        stack.enter_context(mock.patch.object(os, "urandom", random_bytes))
        yield


@dataclass
class Step:
    """What the world was like when the step began that may be cut short by a crash.

    Attributes
    ----------
    source
        Of a restore: the log that it restores.
    """

    index: int
    objects: Objects
    published: Published
    late: list[Put | Delete]
    source: tuple[dict[str, TopicModel], Published] | None = None


@dataclass
class World:
    """See the module.

    Attributes
    ----------
    life
        The machine whose store the bucket belongs to.
    twin
        The machine it was restored from, where that lives on.
    deleted
        By name, the topics that were deleted here: the bucket has their objects until a sweep.
    """

    sync: str
    grace: str
    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="machine-")))
    clock: Clock = field(default_factory=Clock)
    cloud: Cloud = field(default_factory=Cloud)
    held: list[HeldScan] = field(default_factory=list)
    twin: Life | None = None
    deleted: dict[str, list[TopicModel]] = field(default_factory=dict)
    _machines: int = 0

    def __post_init__(self) -> None:
        self._patches = ExitStack()
        self._patches.enter_context(repeatable())
        self._patches.enter_context(mock.patch.object(segment_reader, "sync_data", self._sync_of_reader))
        self.life = self.new_life(self.clock)
        self.life.open()
        self.begin()

    def new_life(self, clock: Clock, **options: object) -> Life:
        """A machine of its own."""
        self._machines += 1
        root = self.root / str(self._machines)
        return Life(root, self.cloud, clock, self.sync, self.grace, self.deleted, **options)  # type: ignore[arg-type]

    def _sync_of_reader(self, fd: int) -> None:
        inode = os.fstat(fd).st_ino
        for life in filter(None, (self.life, self.twin)):
            if life.recorder.sync_of_reader(inode):
                return

    def close(self) -> None:
        try:
            for scan in self.held:
                scan.close()
            for life in filter(None, (self.life, self.twin)):
                if hasattr(life, "store"):  # else it did not come back
                    let_go(life.store)
        finally:
            self._patches.close()
            shutil.rmtree(self.root)

    @property
    def claimed(self) -> bool:
        """Whether the bucket has a store."""
        return STORE_KEY in self.cloud.objects

    # -- steps -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """From here on, a crash cuts short what comes."""
        self.cloud.struck = self.cloud.away
        self.step = Step(
            len(self.life.recorder.journal),
            dict(self.cloud.objects),
            dict(self.life.published),
            list(self.cloud.late),
        )

    def crash(self, share: float, loss: Loss, *, late: bool) -> None:
        """End the machine in the middle of the last step; it comes back with what `loss` leaves.

        Parameters
        ----------
        late
            Whether the next request was already under way, and arrives at some later time.
        """
        old, step = self.life, self.step
        journal = old.recorder.journal
        index = step.index + round(share * (len(journal) - step.index))
        whole = index == len(journal)
        if not whole:
            self.cloud.go_back(step.objects, journal[step.index : index])
            self.cloud.late[:] = step.late
            following = journal[index]
            if late and isinstance(following, (Put, Delete)):
                self.cloud.late.append(following)
        self.cloud.away = False
        self.cloud.faults.clear()
        disk = Disk(old.recorder.start)
        for op in journal[:index]:
            disk.apply(op)
        image = disk.image(loss)
        expected = old.model.at(index)
        self._forget(old)
        self.life = life = self.new_life(self.clock, image=image)
        life.published = dict(old.published if whole else step.published)
        self._hand_over(old)
        if step.source is not None and not whole:
            self._restore_again(*step.source)
        else:
            life.survive(expected, kill=loss.kills_the_process_only)
            life.open()
        for name, alternatives in expected.topics.items():
            if (None in [topic for topic, _ in alternatives]) and name in life.topics():
                # Its creation or deletion had not returned: whoever asked for it decides anew.
                life.delete(name)
        self.begin()

    def _forget(self, life: Life) -> None:
        """End all that ran on a machine."""
        for scan in [scan for scan in self.held if scan.life is life and not scan.of_bucket]:
            scan.close()
            self.held.remove(scan)
        self._unheard(lambda: let_go(life.store))
        shutil.rmtree(life.recorder.root)

    def _hand_over(self, old: Life) -> None:
        """Who reads the bucket alone goes on."""
        for scan in self.held:
            if scan.life is old and scan.of_bucket:
                scan.life = self.life

    def _unheard(self, work: Callable[[], None]) -> None:
        """Do something on a machine that is gone, of which the bucket sees nothing."""
        away, self.cloud.away = self.cloud.away, True
        try:
            work()
        finally:
            self.cloud.away = away

    # -- restores ----------------------------------------------------------------------------------

    def restore(self, *, keep: bool, skew_seconds: float) -> None:
        """Restore on another machine; the old one is lost, or lives on as a twin.

        Parameters
        ----------
        skew_seconds
            How far the other machine's clock is ahead.
        """
        old = self.life
        if self.twin is not None:
            self._forget(self.twin)
            self.twin = None
        source = {name: _copy(topic) for name, topic in old.topics().items()}
        published = dict(old.published)
        self.clock = copy(self.clock)
        self.clock.advance(skew_seconds)
        fresh = self.new_life(self.clock)
        if keep:
            self.twin = old
        else:
            self._forget(old)
        self.life = fresh
        self._hand_over(old)
        self.begin()
        self.step.source = source, published
        self._restore_into(fresh, source, published)

    def _restore_again(self, source: dict[str, TopicModel], published: Published) -> None:
        """Repeat what a crash cut short, with the same arguments; or open it, where it was as good as done."""
        life = self.life
        if (life.path / "store.json").exists():
            life.open()
            life.model.topics.clear()
            life.adopt(source, published)
        else:
            self._restore_into(life, source, published)

    def _restore_into(self, life: Life, source: dict[str, TopicModel], published: Published) -> None:
        life.store = tiered.restore(COLD, life.path, settings=life.settings(), host=life.host)
        life.adopt(source, published)

    # -- the twin ----------------------------------------------------------------------------------

    def check_twin(self) -> None:
        """The twin has every record that it acknowledged, and none but its own where it has any."""
        twin = self.twin
        assert twin is not None
        for name, topic in twin.topics().items():
            try:
                found = look(twin.store.topic(name))
            except tiered.TieredError:
                if self.cloud.struck or not self._same_topic(name):
                    continue  # what is in the bucket alone cannot be had now, or was deleted there
                raise
            for partition, (log, (start, end, values)) in enumerate(zip(topic.logs, found, strict=True)):
                shared = twin.published.get((name, partition), 0)
                if log.end == 0 and values and self._bucket_has(name, partition, start, values):
                    continue  # a partition of which it has nothing, and which it can no longer append to
                if not log.acknowledged <= end <= log.end or values != log.values[start:end]:
                    raise Violation(f"the twin reads [{start}, {end}) of {name!r}/{partition}: {values}")
                if start > max(log.start[1], shared):
                    raise Violation(
                        f"the twin's {name!r}/{partition} starts at {start}: {log.start}, shared {shared}"
                    )

    def _bucket_has(self, name: str, partition: int, start: int, values: list[object]) -> bool:
        """Whether these are records of the twin's topic as the new lineage has it, or had it when it was deleted."""
        heirs = [*self.deleted.get(name, ()), *([self.life.topics()[name]] if self._same_topic(name) else ())]
        logs = [heir.logs[partition].values for heir in heirs if partition < len(heir.logs)]
        return any(log[start : start + len(values)] == values for log in logs)

    def _same_topic(self, name: str) -> bool:
        """Whether the twin's topic is there still, and not another one of its name."""
        assert self.twin is not None
        if name not in self.life.topics():
            return False
        return (
            self.life.store.topic(name).opened.meta.topic_id
            == self.twin.store.topic(name).opened.meta.topic_id
        )

    def twin_changes_nothing(self, work: Callable[[], object]) -> None:
        """Whatever the twin does, the bucket stays as it is."""
        before = dict(self.cloud.objects)
        with suppress(tiered.Fenced, tiered.ColdStorageError):
            work()
        if self.cloud.objects != before:
            changed = {
                key
                for key in before.keys() | self.cloud.objects
                if before.get(key) != self.cloud.objects.get(key)
            }
            raise Violation(f"the twin changed the bucket: {sorted(changed)}")


def _copy(topic: TopicModel) -> TopicModel:
    logs = [copy(log) for log in topic.logs]
    for log in logs:
        log.values = list(log.values)
    return TopicModel(topic.name, logs, topic.columns)

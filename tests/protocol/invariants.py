"""What must hold in the model, after every step and at the end: promises P1 and P5 to P8.

The bucket is looked at as it is, by authority: not through anybody's head in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache

from tests.protocol.bucket import Sent
from tests.protocol.engine import META, Meta, Model, ModelAccess, Process, Segment, read_all, records_of
from tests.protocol.explorer import OK, Violation
from tiered.cold.manifest.keys import PartitionKeys, parse_object_name, topic_key
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.errors import (
    ColdStorageError,
    CorruptionError,
    Fenced,
    OffsetOutOfRange,
    StoreLocked,
    TieredError,
    TopicNotFound,
)
from tiered.format.manifest import Head, ObjectEntry
from tiered.format.manifest_checks import check_entries
from tiered.format.manifest_codec import decode_head, decode_page
from tiered.policies.actions import Action

GRACE = 100.0

_decode_head = lru_cache(100_000)(decode_head)
_decode_page = lru_cache(100_000)(decode_page)
_records_of = lru_cache(100_000)(records_of)


def hold(condition: object, words: str) -> None:
    if not condition:
        raise Violation(words)


class Watch:
    """Watches one partition of a model.

    Attributes
    ----------
    heads
        Every head that stood in the bucket, with the time at which it was written.
    published
        What the head leads to, by offset.
    truth
        What was ever published, by offset.
    """

    def __init__(self, model: Model, meta: Meta = META, grace: float = GRACE) -> None:
        self.model, self.meta, self.grace = model, meta, grace
        self.keys = PartitionKeys.of(meta.name, meta.topic_id, 0)
        self.heads: list[tuple[float, Head]] = []
        self.published: dict[int, str] = {}
        self.truth: dict[int, str] = {}
        self.writers: dict[str, str] = {}
        self.buried = False
        self._checked: object = None
        model.bucket.written = _both(model.bucket.written, self._written)
        model.bucket.deleting = _both(model.bucket.deleting, self._deleting)
        for disk in set(model.disks.values()):
            if disk.meta == meta:
                disk.evicting = self._evicting
        model.bucket.watched += (self.keys.head,)
        model.world.checks.append(self.check)
        model.world.fingerprints.append(self._fingerprint)
        model.check_failures = self.check_failures
        model.check_error = self.check_error

    def _fingerprint(self) -> Hashable:
        # What a check depends on: the heads that readers may still go by, and what was ever published.
        ends = [*(when for when, _ in self.heads[1:]), float("inf")][: len(self.heads)]
        recent = [
            (end, frozenset(self.live(head)))
            for (_, head), end in zip(self.heads, ends, strict=True)
            if self.model.bucket.now - end < self.grace
        ]
        return tuple(recent), frozenset(self.truth.items()), frozenset(self.writers.items()), self.buried

    # -- as it happens ---------------------------------------------------------------------------

    def _written(self, sent: Sent, key: str, data: bytes) -> None:
        if key.startswith((self.keys.data_prefix, self.keys.pages_prefix)):
            hold(self.writers.setdefault(key, sent.id) == sent.id, f"P6: the name {key[-20:]} was used again")
        elif key == topic_key(self.meta.name, self.meta.topic_id):
            self.buried = self.buried or b"deleted_us" in data
        elif key == self.keys.head:
            head = _decode_head(data, where=key)
            if self.heads:
                self._check_follows(self.heads[-1][1], head)
            rows = self.rows(head)
            for offset, record in self.published.items():
                if offset >= head.start_offset:
                    hold(offset in rows, f"P5: published offset {offset} is lost")
                    hold(rows[offset] == record, f"P1: offset {offset} was {record} and is {rows[offset]}")
            self.published = rows
            self.truth.update(rows)
            self.heads.append((self.model.bucket.now, head))

    def _check_follows(self, old: Head, new: Head) -> None:
        hold(new.commit_id != old.commit_id, "a commit took effect twice")
        hold(
            new.previous_commit_ids[:1] == (old.commit_id,), "a commit was lost: the head was not built on it"
        )
        hold(new.epoch >= old.epoch, f"P7: epoch {new.epoch} was published after {old.epoch}")
        hold(new.start_offset >= old.start_offset, "the start offset went back")
        hold(new.end_offset >= old.end_offset, "P1: the end offset went back")
        hold(new.lineages[: len(old.lineages)] == old.lineages, "a lineage vanished")

    def _deleting(self, sent: Sent, key: str) -> None:
        if not key.startswith(self.keys.prefix) or not self.heads or self.buried:
            return
        hold(key != self.keys.head, "P6: the head was deleted")
        now = self.model.bucket.now
        ends = [*(when for when, _ in self.heads[1:]), now]
        for (_, head), end in zip(self.heads, ends, strict=True):
            if now - end < self.grace:
                hold(key not in self.live(head), f"P6: a live object was deleted: {key[-30:]}")
        name = parse_object_name(key.removeprefix(self.keys.data_prefix))
        if name is not None:
            newest = self.heads[-1][1].epoch
            hold(name.epoch <= newest, "P7: an object of a higher epoch was deleted")

    def _evicting(self, segment: Segment) -> None:
        hold(self.heads, "P5: evicted before anything was published")
        head = self.heads[-1][1]
        for offset, record in enumerate(segment.records, start=segment.header.base_offset):
            if offset >= head.start_offset:
                hold(
                    self.published.get(offset) == record,
                    f"P5: {record} was evicted, the bucket has {self.published.get(offset)}",
                )

    # -- after every step ------------------------------------------------------------------------

    def check(self) -> None:
        """What the head names is there, whole, and holds what was written."""
        if not self.heads or self.buried:
            return
        look = (self.heads[-1][1].commit_id, len(self.model.bucket.objects))
        if look == self._checked:
            return
        self._checked = look
        self.rows(self.heads[-1][1])

    def rows(self, head: Head) -> dict[int, str]:
        """Return what a head leads to, by offset, each of it where it belongs."""
        objects, entries = self.model.bucket.objects, self.entries(head)
        problems = check_entries(head, entries)
        hold(not problems, f"P1: {problems}")
        rows: dict[int, str] = {}
        for entry in entries:
            if entry.end_offset <= head.start_offset:
                continue
            key = self.keys.data(entry.name)
            hold(key in objects, f"P6: the head names {entry.name[-20:]}, which is gone")
            found = _records_of(objects[key].data)
            hold(sorted(found) == list(range(entry.base_offset, entry.end_offset)), "an object is not dense")
            rows.update((offset, record) for offset, record in found.items() if offset >= head.start_offset)
        for offset, record in rows.items():
            lineage = [epoch for epoch, start in head.lineages if start <= offset][-1]
            hold(record.startswith(f"{lineage}:{offset}:"), f"P1: {record} at {offset} in lineage {lineage}")
        return rows

    def entries(self, head: Head) -> list[ObjectEntry]:
        found: list[ObjectEntry] = []
        for ref in head.pages:
            key = self.keys.page(ref.name)
            hold(key in self.model.bucket.objects, "P6: a page of the head is gone")
            found += _decode_page(self.model.bucket.objects[key].data, ref, where=key)
        return [*found, *head.inline]

    def live(self, head: Head) -> set[str]:
        """Return the keys that a head leads to."""
        pages = [ref for ref in head.pages if self.keys.page(ref.name) in self.model.bucket.objects]
        found = {self.keys.page(ref.name) for ref in head.pages}
        for ref in pages:
            key = self.keys.page(ref.name)
            entries = _decode_page(self.model.bucket.objects[key].data, ref, where=key)
            found |= {self.keys.data(item.name) for item in entries if item.end_offset > head.start_offset}
        return found | {self.keys.data(item.name) for item in head.inline}

    # -- what actors were told -------------------------------------------------------------------

    def acknowledged(self, segment: Segment, end: int | None = None) -> None:
        """A publication returned, so its records are published."""
        head = self.heads[-1][1]
        for offset, record in enumerate(segment.records, start=segment.header.base_offset):
            if head.start_offset <= offset < (segment.end_offset if end is None else end):
                hold(self.published.get(offset) == record, f"an acknowledged commit is lost: {record}")

    def check_failures(self, failed: Iterable[tuple[Action, str]]) -> None:
        """An action may only fail with an error that says what to do next."""
        for action, message in failed:
            hold(
                message.startswith(
                    (
                        "Fenced",
                        "ColdStorageError",
                        "TopicNotFound",
                        "ObjectNotFound",
                        "PreconditionFailed",
                        "RestoreUnderWay",
                    )
                ),
                f"{action.kind} failed with {message}",
            )

    def check_error(self, error: TieredError) -> None:
        """The same for what a caller was told."""
        allowed = Fenced | StoreLocked | ColdStorageError | TopicNotFound | OffsetOutOfRange
        hold(isinstance(error, allowed), f"{error!r}")
        hold(not isinstance(error, CorruptionError), f"{error!r}")

    def read(
        self, access: ModelAccess, start: int | None = None, local: dict[int, str] | None = None
    ) -> None:
        """Read everything; what is given is dense, and each record the right one (promise P8)."""
        before = self.heads[-1][1] if self.heads else None
        try:
            first, end, rows = read_all(access, self.meta, start)
        except OffsetOutOfRange as error:
            hold(error.start > (start or 0), f"P8: nothing was expired, yet {error}")
            return
        except ColdStorageError as error:
            hold(error.retryable, f"P8: {error!r}")
            return
        except CorruptionError as error:
            raise Violation(f"P8: {error}") from error
        hold([offset for offset, _ in rows] == list(range(first, end)), f"P8: {first} to {end} gave {rows}")
        if local is None and before is not None:
            hold(end >= before.end_offset, "P8: a snapshot ends before what was published when it was taken")
        for offset, record in rows:
            right = {self.truth.get(offset), (local or {}).get(offset)}
            hold(record in right, f"P8: {record} at {offset} instead of {right}")

    # -- when everything is quiet ----------------------------------------------------------------

    def quiet(self, process: Process) -> None:
        """A last pass and two sweeps leave exactly what is live; what was still under way may then land, too."""
        offsets = dict(self.published)
        process.offload()
        self._tidy(process)
        start = self.heads[-1][1].start_offset
        hold(all(item in self.published.items() for item in offsets.items() if item[0] >= start), "P5: lost")
        self._check_local(process)
        late = list(self.model.world.underway.values())
        for request in late:
            request.take(OK)
        if late:
            self._tidy(process)

    def _tidy(self, process: Process) -> None:
        for _ in range(2):
            process.sweep(self.grace)
            self.model.bucket.now += self.grace
        process.sweep(self.grace)
        self._checked = None
        self.check()
        below = {key for key in self.model.bucket.objects if key.startswith(self.keys.prefix)}
        wanted = self.live(self.heads[-1][1]) | {self.keys.head}
        hold(below <= wanted, f"orphans stay: {sorted(key[-40:] for key in below - wanted)}")
        hold(below >= wanted, "P6: a live object is gone")
        self.read(ModelAccess(self.model, None))

    def _check_local(self, process: Process) -> None:
        """Every record that was appended on the disk of the last process is there, or in the bucket."""
        disk = process.disk
        for segment in disk.segments.values():
            for offset, record in enumerate(segment.records, start=segment.header.base_offset):
                hold(disk.appended[offset] == record, "P1: a local record changed")
        here = {
            offset
            for segment in disk.segments.values()
            for offset in range(segment.header.base_offset, segment.end_offset)
        }
        start = max(self.heads[-1][1].start_offset, disk.start)
        for offset, record in disk.appended.items():
            hold(
                offset < start or offset in here or self.published.get(offset) == record,
                f"P5: {record} is nowhere",
            )


def _both(first: Callable[..., None], second: Callable[..., None]) -> Callable[..., None]:
    def call(*arguments: object) -> None:
        first(*arguments)
        second(*arguments)

    return call


def head_of(model: Model, meta: Meta = META) -> Head:
    """Return the head as it lies in the bucket."""
    loaded = PartitionManifest(model.store(), meta.name, meta.topic_id, 0).load()
    assert loaded is not None
    return loaded.head

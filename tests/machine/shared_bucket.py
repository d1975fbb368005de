"""One bucket that several machines share: with a clock of its own, outages, lost answers and late requests."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.disk_model import Delete, Image, Objects, Put, Sync
from tests.support.recorder import Recorder, RecordingBucket
from tiered.cold.object_store.protocol import Bytes, ObjectInfo
from tiered.errors import ColdStorageError

_etags = itertools.count(1)


@dataclass
class Cloud:
    """What the server holds.

    Attributes
    ----------
    away
        No request is answered.
    faults
        What happens to the next PUTs, the last one first: ``answer lost`` (it took effect), ``late``, or ``outage`` (from
        it on no request is answered).
    late
        Requests under way that nobody waits for any more.
    struck
        Whether a request failed since this was last reset.
    """

    objects: Objects = field(default_factory=dict)
    away: bool = False
    faults: list[str] = field(default_factory=list)
    late: list[Put | Delete] = field(default_factory=list)
    struck: bool = False
    _modified: dict[str, float] = field(default_factory=dict)
    _seconds: float = 1_900_000_000.0

    def tick(self, seconds: float = 0.001) -> float:
        """Let time pass on the server, which never goes back; return what it is then."""
        self._seconds += seconds
        return self._seconds

    def touch(self, key: str) -> None:
        self._modified[key] = self.tick()

    def modified(self, key: str) -> float:
        return self._modified[key]

    def go_back(self, objects: Objects, since: Iterable[object]) -> None:
        """Hold `objects`, and what the requests `since` made of them."""
        self.objects.clear()
        self.objects.update(objects)
        for op in since:
            if isinstance(op, Put):
                self.objects[op.key] = (op.data, op.etag)
            elif isinstance(op, Delete):
                self.objects.pop(op.key, None)


class MachineDisk(Recorder):
    """The disk of one machine; its requests to the bucket are in the same journal."""

    bucket: BucketClient

    def __init__(self, root: Path, cloud: Cloud, start: Image | None = None) -> None:
        super().__init__(root, start)
        self.bucket = BucketClient(self, cloud)

    def sync_of_reader(self, inode: int) -> bool:
        """Note the sync of a file by a reader; False where the file is another machine's, or deleted."""
        node = self._inodes.get(inode)
        if node is not None:
            self.note(Sync(node))
        return node is not None

    def unlink(self, path: Path) -> None:
        self._forget(path)
        super().unlink(path)

    def rename(self, source: Path, target: Path) -> None:
        if not target.is_dir():
            self._forget(target)
        super().rename(source, target)

    def _forget(self, path: Path) -> None:
        """The number of the inode is used again for other files, also those of other machines."""
        if path.exists():
            self._inodes.pop(path.stat().st_ino, None)


class BucketClient(RecordingBucket):
    """One machine's connection to the bucket."""

    def __init__(self, recorder: Recorder, cloud: Cloud) -> None:
        super().__init__(recorder, cloud.objects)
        self._cloud = cloud

    def _meet(self, verb: str, key: str) -> str | None:
        if self._cloud.away:
            self._cloud.struck = True
            raise ColdStorageError("the bucket does not answer (injected)", retryable=True)
        return None

    def put(self, key: str, data: Bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        self._meet("put", key)
        fault = self._cloud.faults.pop() if self._cloud.faults else None
        if fault is None:
            return super().put(key, data, if_match=if_match, if_none_match=if_none_match)
        self._cloud.struck = True
        if fault == "outage":
            self._cloud.away = True
            self._meet("put", key)
        if fault == "answer lost":
            super().put(key, data, if_match=if_match, if_none_match=if_none_match)
        else:
            etag = f"late-etag-{next(_etags)}"
            self._cloud.late.append(Put(key, bytes(data), etag, if_match, if_none_match))
        raise ColdStorageError(f"no answer to the PUT of {key} (injected)", retryable=True)

    def land(self, op: Put) -> bool:
        landed = super().land(op)
        if landed:
            self._cloud.touch(op.key)
        return landed

    def stat(self, key: str) -> ObjectInfo:
        data, etag = self._find(key)
        return ObjectInfo(key, len(data), etag, self._cloud.modified(key))

    def folders(self, prefix: str) -> list[str]:
        self._meet("list", prefix)
        return super().folders(prefix)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        self._meet("list", prefix)
        return super().list(prefix)

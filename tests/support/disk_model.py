"""What a power cut leaves of a disk: bytes apart from names, live state apart from durable state.

The model is the weakest that POSIX and real file systems allow. Bytes and the length of a file are durable once the
file was synced; an entry of a directory once the directory was synced, which says nothing about the bytes behind it.
What was not synced survives or not, whatever came after it: writes sector by sector, or cut at a byte, with zeros
where a later one survived. Changes of entries that share a name keep their order, and a rename is one change.
A sector that was synced keeps its bytes when its neighbour in the page is written.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tiered.errors import CorruptionError
from tiered.format.document import decode_document, encode_document
from tiered.warm.bucket_binding import COLD_FILE

SECTOR_BYTES = 512
ROOT = 0


class Link(NamedTuple):
    """A new name in directory `parent`."""

    parent: int
    name: str
    node: int
    directory: bool


class Unlink(NamedTuple):
    parent: int
    name: str


class Rename(NamedTuple):
    """One change: `target` is what `source` was, and `source` is gone."""

    parent: int
    source: str
    target: str


class Write(NamedTuple):
    node: int
    position: int
    data: bytes


class Truncate(NamedTuple):
    """The length is set: what lies beyond it is cut off, or it grows by zeros."""

    node: int
    length: int


class Sync(NamedTuple):
    node: int


class FailedSync(NamedTuple):
    """The kernel gave the unsynced pages up and calls them clean: no later sync writes them."""

    node: int


class SyncDirectory(NamedTuple):
    node: int


class Put(NamedTuple):
    """An object arrived in the bucket; ``if_match`` and ``if_none_match`` are its conditions."""

    key: str
    data: bytes
    etag: str
    if_match: str | None
    if_none_match: bool


class Delete(NamedTuple):
    key: str


Op = Link | Unlink | Rename | Write | Truncate | Sync | FailedSync | SyncDirectory | Put | Delete
Objects = dict[str, tuple[bytes, str]]


@dataclass(frozen=True, slots=True)
class Image:
    """Everything that a crash left: directories and files by their path, the objects of the bucket."""

    directories: tuple[str, ...] = ()
    files: dict[str, bytes] = field(default_factory=dict)
    objects: Objects = field(default_factory=dict)

    def key(self) -> int:
        """Equal for equal images."""
        parts = (self.directories, tuple(sorted(self.files.items())))
        return hash((*parts, tuple(sorted((key, etag) for key, (_, etag) in self.objects.items()))))

    def write_to(self, root: Path) -> None:
        """Make these files under `root`, which is empty."""
        for directory in self.directories:
            (root / directory).mkdir()
        for path, data in self.files.items():
            target = root / path
            target.write_bytes(_moved(data, target.parent) if target.name == COLD_FILE else data)


def _moved(data: bytes, root: Path) -> bytes:
    """What a store remembers of its bucket, as if it had always been at `root`: this is its disk, and no copy."""
    try:
        values = decode_document(data, where=COLD_FILE)
    except CorruptionError:
        return data
    return encode_document({**values, "home": str(root)})


class File:
    """One file: what is durable, what a process reads, and the changes in between."""

    __slots__ = ("durable", "live", "pending")

    def __init__(self, data: bytes = b"") -> None:
        self.durable = bytes(data)
        self.live = bytearray(data)
        self.pending: list[Write | Truncate] = []

    def change(self, op: Write | Truncate) -> None:
        self.pending.append(op)
        apply(self.live, op)

    def written(self) -> bytes:
        """What a sync would make durable; after a failed one that is not all that a process reads."""
        content = bytearray(self.durable)
        for op in self.pending:
            apply(content, op)
        return bytes(content)

    def sync(self) -> None:
        self.durable, self.pending = self.written(), []


class Directory:
    """One directory: entries by name, durable ones and live ones, and the changes in between."""

    __slots__ = ("durable", "live", "pending")

    def __init__(self) -> None:
        self.durable: dict[str, int] = {}
        self.live: dict[str, int] = {}
        self.pending: list[Link | Unlink | Rename] = []

    def change(self, op: Link | Unlink | Rename) -> None:
        self.pending.append(op)
        rename(self.live, op)

    def sync(self) -> None:
        self.durable = dict(self.live)
        self.pending = []


def apply(content: bytearray, op: Write | Truncate) -> None:
    """Change bytes; what lies between the end and a write beyond it is zeros."""
    if isinstance(op, Truncate):
        if op.length < len(content):
            del content[op.length :]
        else:
            content.extend(bytes(op.length - len(content)))
        return
    if op.position > len(content):
        content.extend(bytes(op.position - len(content)))
    content[op.position : op.position + len(op.data)] = op.data


def rename(entries: dict[str, int], op: Link | Unlink | Rename) -> None:
    """Change entries."""
    if isinstance(op, Link):
        entries[op.name] = op.node
    elif isinstance(op, Unlink):
        entries.pop(op.name, None)
    elif op.source in entries:
        entries[op.target] = entries.pop(op.source)


class Disk:
    """Replays a journal, and says at each point of it what a crash could leave."""

    def __init__(self, start: Image) -> None:
        self.files: dict[int, File] = {}
        self.directories = {ROOT: Directory()}
        self.objects: Objects = dict(start.objects)
        nodes = numbered(start)
        for path, node in nodes.items():
            parent, _, name = path.rpartition("/")
            if path in start.files:
                self.files[node] = File(start.files[path])
            else:
                self.directories[node] = Directory()
            directory = self.directories[nodes[parent] if parent else ROOT]
            directory.durable[name] = directory.live[name] = node

    def apply(self, op: Op) -> None:
        """Take the next step of the journal."""
        match op:
            case Write() | Truncate():
                self.files[op.node].change(op)
            case Sync():
                self.files[op.node].sync()
            case FailedSync():
                self.files[op.node].pending = []
            case Link():
                if op.directory:
                    self.directories[op.node] = Directory()
                else:
                    self.files[op.node] = File()
                self.directories[op.parent].change(op)
            case Unlink() | Rename():
                self.directories[op.parent].change(op)
            case SyncDirectory():
                self.directories[op.node].sync()
            case Put():
                self.objects = self.objects | {op.key: (op.data, op.etag)}
            case Delete():
                self.objects = {key: value for key, value in self.objects.items() if key != op.key}

    def image(self, loss: Loss) -> Image:
        """Return what is left after a crash now."""
        directories: list[str] = []
        files: dict[str, bytes] = {}

        def walk(node: int, prefix: str) -> None:
            for name, child in sorted(loss.entries(self.directories[node]).items()):
                path = f"{prefix}{name}"
                if child in self.directories:
                    directories.append(path)
                    walk(child, f"{path}/")
                else:
                    files[path] = loss.content(self.files[child])

        walk(ROOT, "")
        return Image(tuple(directories), files, self.objects)

    def live_files(self) -> Iterator[tuple[str, File, Directory]]:
        """Every file that a process sees, with its path and its directory."""

        def walk(node: int, prefix: str) -> Iterator[tuple[str, File, Directory]]:
            for name, child in self.directories[node].live.items():
                if child in self.directories:
                    yield from walk(child, f"{prefix}{name}/")
                else:
                    yield f"{prefix}{name}", self.files[child], self.directories[node]

        return walk(ROOT, "")


def numbered(start: Image) -> dict[str, int]:
    """Give each path of an image a node number, parents first."""
    return {path: i for i, path in enumerate([*start.directories, *sorted(start.files)], start=ROOT + 1)}


@dataclass(frozen=True, slots=True)
class Loss:
    """What a crash takes: of the bytes of a file, and of the entries of a directory."""

    name: str
    content: Callable[[File], bytes]
    entries: Callable[[Directory], dict[str, int]]

    @property
    def kills_the_process_only(self) -> bool:
        """Whether the operating system lived on."""
        return self.name == "everything survives"


def _last_alone(file: File) -> bytes:
    content = bytearray(file.durable)
    for op in file.pending[-1:]:
        apply(content, op)
    return bytes(content)


EVERYTHING = Loss("everything survives", lambda file: bytes(file.live), lambda directory: directory.live)
NOTHING = Loss("nothing unsynced survives", lambda file: file.durable, lambda directory: directory.durable)
NAMES = Loss("names survive, bytes do not", lambda file: file.durable, lambda directory: directory.live)
BYTES = Loss("bytes survive, names do not", File.written, lambda directory: directory.durable)
LAST = Loss("of each file the last write alone survives", _last_alone, lambda directory: directory.live)


def some(seed: object) -> Loss:
    """A part survives, drawn from `seed`: sectors, torn writes, lengths without bytes, entries."""
    draw = random.Random(str(seed))
    odds = draw.choice((0.15, 0.5, 0.85))

    def content(file: File) -> bytes:
        data = bytearray(file.durable)
        for op in file.pending:
            for piece in _pieces(op, draw, odds) if isinstance(op, Write) else [op]:
                if draw.random() < odds:
                    apply(data, piece)
        if len(data) < len(file.live) and file.pending and draw.random() < 0.25:
            data.extend(bytes(len(file.live) - len(data)))
        return bytes(data)

    def entries(directory: Directory) -> dict[str, int]:
        found, lost = dict(directory.durable), set[str]()
        for op in directory.pending:
            names = {op.source, op.target} if isinstance(op, Rename) else {op.name}
            if names & lost or draw.random() >= odds:
                lost |= names
            else:
                rename(found, op)
        return found

    return Loss(f"a part survives (seed {seed})", content, entries)


def _pieces(op: Write, draw: random.Random, odds: float) -> Iterator[Write]:
    """Cut a write: not at all, at one byte, or into sectors."""
    end = op.position + len(op.data)
    how = draw.random()
    if how < 0.3 or not op.data:
        yield op
    elif how < 0.6:
        cut = draw.randrange(len(op.data))
        yield Write(op.node, op.position, op.data[:cut])
        if draw.random() < odds / 2:
            yield Write(op.node, op.position + cut, op.data[cut:])
    else:
        start = op.position
        while start < end:
            stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
            yield Write(op.node, start, op.data[start - op.position : stop - op.position])
            start = stop

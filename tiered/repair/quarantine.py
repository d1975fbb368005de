"""Damaged originals are kept where no reader looks: beside their place, under a name that begins with a dot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from ..reader.tiers import Tiers
from ..tiering.claims import Claims
from ..warm.filesystem import FileSystem

PREFIX = ".damaged-"


@dataclass(frozen=True, slots=True)
class Workshop:
    """What a repair works with; the locks of the store are held, and `claims` are for its bucket."""

    access: Tiers
    fs: FileSystem
    clock: Callable[[], int]
    store_id: UUID | None
    claims: Claims | None


def aside_name(path: Path) -> Path:
    """Return a free name for a damaged file."""
    return path.with_name(f"{PREFIX}{path.name}-{uuid4().hex[:8]}")


def copy_aside(fs: FileSystem, path: Path) -> str:
    """Copy a small damaged file aside, durably; its place is about to be taken. ``""`` where there is none."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return ""
    target = aside_name(path)
    fd = fs.create(target)
    try:
        fs.write(fd, 0, [data])
        fs.sync(fd)
    finally:
        fs.close(fd)
    fs.sync_directory(path.parent)
    return str(target)


def link_aside(fs: FileSystem, path: Path) -> Path | None:
    """Give a damaged file another name, durably, and return that; None where the file system has no hard links."""
    target = aside_name(path)
    try:
        fs.link(path, target)
    except OSError:
        return None
    fs.sync_directory(path.parent)
    return target


def move_aside(fs: FileSystem, path: Path) -> Path:
    """Rename a damaged file, durably, and return its new name."""
    target = aside_name(path)
    fs.rename(path, target)
    fs.sync_directory(path.parent)
    return target

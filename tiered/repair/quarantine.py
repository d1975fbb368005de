"""The quarantine of damaged files: they stay in their directory under a name with a dot, which readers ignore."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

from ..errors import CorruptionError
from ..policies.policy import Policy
from ..reader.tiers import Tiers
from ..survey.erasure_places import DAMAGED_PREFIX
from ..tiering.claims import Claims
from ..warm.filesystem import FileSystem, read_whole


@dataclass(frozen=True, slots=True)
class RepairContext:
    """The parts of a store that repairs need. The caller holds the store's locks; `claims` guards the bucket."""

    access: Tiers
    fs: FileSystem
    clock: Callable[[], int]
    store_id: UUID | None
    claims: Claims | None
    policy_for: Callable[[str], Policy]


def aside_name(path: Path) -> Path:
    """Return a new name for a damaged file."""
    return path.with_name(f"{DAMAGED_PREFIX}{path.name}-{uuid4().hex[:8]}")


def copy_aside(fs: FileSystem, path: Path) -> str:
    """Keep a small damaged file durably before it is replaced; return the path, or ``""`` if there is no file."""
    try:
        data = read_whole(path)
    except FileNotFoundError:
        return ""
    except CorruptionError:  # too long to copy
        return str(link_aside(fs, path) or move_aside(fs, path))
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
    """Give a damaged file a second name durably and return it; None if the file system has no hard links."""
    target = aside_name(path)
    try:
        fs.link(path, target)
    except OSError:
        return None
    fs.sync_directory(path.parent)
    return target


def move_aside(fs: FileSystem, path: Path) -> Path:
    """Rename a damaged file durably; return its new name."""
    target = aside_name(path)
    fs.rename(path, target)
    fs.sync_directory(path.parent)
    return target

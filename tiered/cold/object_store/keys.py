"""Checks of keys, prefixes, ranges and conditions that all backends share, and the listing of directories."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from ...errors import CorruptionError, PreconditionFailed
from .protocol import GET_BYTES_MAX, ObjectInfo

# A name directly below a folder, and its object; ``None`` marks a folder.
Child: TypeAlias = tuple[str, ObjectInfo | None]
Children: TypeAlias = list[Child]


def is_key(key: str) -> bool:
    """Whether this is a valid key: it cannot leave the prefix, and all backends read it alike."""
    return "\0" not in key and not any(part in ("", ".", "..") for part in key.split("/"))


def check_key(key: str) -> str:
    """Return `key`, or raise `ValueError` if it is not valid; see `is_key`."""
    if not is_key(key):
        raise ValueError(f"{key!r} is not an object's key: relative, with names between slashes")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix`, or raise `ValueError` if it has no final slash: ``a`` would list (and sweep) ``ab/`` too."""
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"prefix {prefix!r} must end in a slash")
    if prefix:
        check_key(prefix[:-1])
    return prefix


def check_range(start: int, length: int) -> None:
    """Raise `ValueError` for a range that no object can have."""
    if start < 0 or length < 0:
        raise ValueError(f"a range has no negative start or length: {start}, {length}")


def oversize_error(where: str, size: int) -> CorruptionError:
    """Return the error for an object that is too large to be read whole."""
    return CorruptionError(f"an object of {size} bytes, at most {GET_BYTES_MAX} are read whole", where=where)


def check_conditions(if_match: str | None, if_none_match: bool) -> bool:
    """Return whether a write is conditional; raise `ValueError` for both conditions at once."""
    if if_match is not None and if_none_match:
        raise ValueError("if_match and if_none_match exclude each other")
    if if_match == "":
        raise ValueError("if_match needs the ETag that a get or put returned")
    return if_match is not None or if_none_match


def check_precondition(where: str, etag: str | None, if_match: str | None, if_none_match: bool) -> None:
    """Raise `PreconditionFailed` unless an object with `etag` (``None``: no object) satisfies the condition."""
    if if_none_match and etag is not None:
        raise PreconditionFailed(f"{where} exists already (ETag {etag})")
    if if_match is not None and etag is None:
        raise PreconditionFailed(f"{where} is not there, expected ETag {if_match}")
    if if_match is not None and etag != if_match:
        raise PreconditionFailed(f"{where} has changed: its ETag is {etag}, expected {if_match}")


def walk(prefix: str, children: Callable[[str], Children]) -> Iterator[ObjectInfo]:
    """Yield every object below `prefix` in the order of S3: by the UTF-8 bytes of the whole key."""
    for name, info in sorted(children(prefix), key=_position):
        if info is None:
            yield from walk(f"{prefix}{name}/", children)
        else:
            yield info


def nonempty_folders(prefix: str, children: Callable[[str], Children]) -> list[str]:
    """Return the folders below `prefix` that contain an object at any depth; S3 has no others."""
    return sorted(
        name
        for name, info in children(prefix)
        if info is None and next(walk(f"{prefix}{name}/", children), None) is not None
    )


def _position(child: Child) -> bytes:
    name, info = child
    # The slash takes part in the order: "a-b" sorts before "a/b".
    return (name if info else f"{name}/").encode(errors="surrogateescape")

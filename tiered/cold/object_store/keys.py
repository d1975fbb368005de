"""What every backend refuses in the same way, and the listing that two of them share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from ...errors import CorruptionError, PreconditionFailed
from .protocol import GET_BYTES_MAX, ObjectInfo

# A name directly below a folder; ``None`` in place of the object says that it is a folder itself.
Child: TypeAlias = tuple[str, ObjectInfo | None]
Children: TypeAlias = list[Child]


def is_key(key: str) -> bool:
    """Whether this is a key of ours: not one that leaves the prefix, or that backends read differently."""
    return "\0" not in key and not any(part in ("", ".", "..") for part in key.split("/"))


def check_key(key: str) -> str:
    """Return `key`, or raise `ValueError` where it is none; see `is_key`."""
    if not is_key(key):
        raise ValueError(f"{key!r} is not an object's key: relative, with names between slashes")
    return key


def check_prefix(prefix: str) -> str:
    """Return `prefix`, or raise `ValueError`: without a slash, ``a`` would list (and sweep) ``ab/`` too."""
    if prefix and not prefix.endswith("/"):
        raise ValueError(f"prefix {prefix!r} must end in a slash")
    if prefix:
        check_key(prefix[:-1])
    return prefix


def check_range(start: int, length: int) -> None:
    """Raise `ValueError` for a range that no object can have."""
    if start < 0 or length < 0:
        raise ValueError(f"a range has no negative start or length: {start}, {length}")


def too_large(where: str, size: int) -> CorruptionError:
    """Return the error for an object that is none of those which are read whole."""
    return CorruptionError(f"an object of {size} bytes, at most {GET_BYTES_MAX} are read whole", where=where)


def check_conditions(if_match: str | None, if_none_match: bool) -> bool:
    """Return whether a write is conditional; both conditions at once raise `ValueError`."""
    if if_match is not None and if_none_match:
        raise ValueError("if_match and if_none_match exclude each other")
    if if_match == "":
        raise ValueError("if_match needs the ETag that a get or put returned")
    return if_match is not None or if_none_match


def require(where: str, etag: str | None, if_match: str | None, if_none_match: bool) -> None:
    """Raise `PreconditionFailed` unless an object with `etag` (``None``: no object) meets the condition."""
    if if_none_match and etag is not None:
        raise PreconditionFailed(f"{where} exists already (ETag {etag})")
    if if_match is not None and etag is None:
        raise PreconditionFailed(f"{where} is not there, expected ETag {if_match}")
    if if_match is not None and etag != if_match:
        raise PreconditionFailed(f"{where} has changed: its ETag is {etag}, expected {if_match}")


def walk(prefix: str, children: Callable[[str], Children]) -> Iterator[ObjectInfo]:
    """Yield every object below `prefix` in the order of S3: by the UTF-8 bytes of the whole key."""
    for name, found in sorted(children(prefix), key=_position):
        if found is None:
            yield from walk(f"{prefix}{name}/", children)
        else:
            yield found


def inhabited(prefix: str, children: Callable[[str], Children]) -> list[str]:
    """Return the folders below `prefix` that hold an object somewhere: to S3, no other exists."""
    return sorted(
        name
        for name, found in children(prefix)
        if found is None and next(walk(f"{prefix}{name}/", children), None) is not None
    )


def _position(child: Child) -> bytes:
    name, found = child
    # The slash belongs to the order: "a-b" sorts before "a/b".
    return (name if found else f"{name}/").encode(errors="surrogateescape")

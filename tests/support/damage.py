"""Ways to damage a file, each of which puts the file back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Damage = Callable[[bytes], bytes | None]
"""From the bytes of a file to those of the damaged one; None for a file that is missing."""


def flipped(position: int, bit: int = 0) -> Damage:
    return lambda data: data[:position] + bytes([data[position] ^ (1 << bit)]) + data[position + 1 :]


def zeroed(start: int, end: int) -> Damage:
    return lambda data: data[:start] + bytes(end - start) + data[end:]


def cut(length: int) -> Damage:
    return lambda data: data[:length]


def grown(extra: bytes) -> Damage:
    return lambda data: data + extra


def swapped(other: Path) -> Damage:
    content = other.read_bytes()
    return lambda _: content


def missing(_: bytes) -> None:
    return None


@contextmanager
def damaged(path: Path, damage: Damage) -> Iterator[bool]:
    """Damage a file, then put it back; whether that changed anything."""
    data = path.read_bytes()
    spoilt = damage(data)
    try:
        if spoilt is None:
            path.unlink()
        else:
            path.write_bytes(spoilt)
        yield spoilt != data
    finally:
        path.write_bytes(data)

"""`FileValueCache`: a value is read again when its file changed."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tiered.warm.file_value_cache import SETTLED_NS, FileValueCache


def settle(path: Path) -> None:
    """Let a file look as if it had not changed of late."""
    long_ago = time.time_ns() - 2 * SETTLED_NS
    os.utime(path, ns=(long_ago, long_ago))


def test_a_file_that_did_not_change_is_read_once(tmp_path: Path) -> None:
    path, known, reads = tmp_path / "f", FileValueCache[bytes](), []

    def read() -> bytes:
        reads.append(1)
        return path.read_bytes()

    path.write_bytes(b"1")
    settle(path)
    assert [known.read(str(path), read) for _ in range(3)] == [b"1"] * 3
    assert len(reads) == 1
    fresh = tmp_path / "g"
    fresh.write_bytes(b"2")
    settle(fresh)
    fresh.rename(path)
    assert [known.read(str(path), read) for _ in range(3)] == [b"2"] * 3
    assert len(reads) == 2
    path.unlink()
    with pytest.raises(FileNotFoundError):
        known.read(str(path), read)


def test_a_file_that_just_changed_is_read_each_time(tmp_path: Path) -> None:
    """Its next change may get the same time stamp, size and inode."""
    path, known = tmp_path / "f", FileValueCache[bytes]()
    path.write_bytes(b"1")
    stamp = path.stat().st_mtime_ns
    assert known.read(str(path), path.read_bytes) == b"1"
    path.write_bytes(b"2")
    os.utime(path, ns=(stamp, stamp))
    assert known.read(str(path), path.read_bytes) == b"2"

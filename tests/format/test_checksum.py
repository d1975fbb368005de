"""Checksums are the same whichever library computes them, and a wrong library is not used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import crc32c as portable
import pytest
from fastcrc.crc32 import iscsi
from hypothesis import given
from hypothesis import strategies as st

import tiered
from tiered.format import checksum


def test_the_check_value_of_the_standard() -> None:
    """RFC 3720, appendix B.4, and the usual nine digits."""
    assert checksum.crc32c(b"123456789") == 0xE3069283
    assert checksum.crc32c(bytes(32)) == 0x8A9136AA


def test_what_a_library_is_checked_by_is_right() -> None:
    assert checksum._is_right(portable.crc32c)


def test_the_fast_library_is_used_where_it_is_right() -> None:
    assert checksum.crc32c is iscsi


@given(seed=st.binary(min_size=1, max_size=64), length=st.integers(0, 200_000), skip=st.integers(0, 70), initial=st.integers(0, 2**32 - 1))  # fmt: skip
def test_both_libraries_agree(seed: bytes, length: int, skip: int, initial: int) -> None:
    data = memoryview((seed * (length // len(seed) + 1 + skip))[: length + skip])[skip:]
    assert checksum.crc32c(data, initial) == portable.crc32c(data, initial)
    assert checksum.crc32c(data) == checksum.crc32c(data, 0) == portable.crc32c(data)


@given(data=st.binary(max_size=5_000), cut=st.integers(0, 5_000))
def test_a_checksum_goes_on_where_another_ended(data: bytes, cut: int) -> None:
    assert checksum.crc32c(data[cut:], checksum.crc32c(data[:cut])) == checksum.crc32c(data)


@pytest.mark.parametrize("wrong_from", [0, 300, 65_537])
def test_a_library_that_is_wrong_here_is_not_used(wrong_from: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(data: memoryview, initial: int = 0) -> int:
        return iscsi(data, initial) ^ (len(data) >= wrong_from)

    monkeypatch.setattr("fastcrc.crc32.iscsi", wrong)
    with pytest.warns(RuntimeWarning, match="fastcrc computes wrong checksums here"):
        assert checksum._fastest() is portable.crc32c


def test_a_release_that_takes_bytes_alone_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those before 0.5, which a cluster or another package may have brought."""

    def old(data: object, initial: int | None = None) -> int:
        if not isinstance(data, bytes):
            raise TypeError("argument 'data': 'memoryview' object cannot be converted to 'PyBytes'")
        return iscsi(data, initial)

    monkeypatch.setattr("fastcrc.crc32.iscsi", old)
    assert checksum._fastest() is portable.crc32c


@pytest.mark.extended
def test_without_the_fast_library_a_store_is_the_same(tmp_path: Path) -> None:
    """A process that has no fastcrc writes and seals a topic; one that has it finds nothing wrong."""
    code = f"""
import sys
sys.modules["fastcrc"] = None
from tiered.format import checksum
assert checksum.crc32c.__module__.startswith("crc32c"), checksum.crc32c.__module__
import tiered
with tiered.open({str(tmp_path)!r}) as store:
    topic = store.create_topic("t")
    topic.append_many([b"x" * i for i in range(2_000)])
    topic.roll()
    topic.append(b"y" * 100_000)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.stdout, done.stderr) == ("", "")
    with tiered.open(tmp_path) as store:
        assert [len(record.value) for record in store.topic("t").read()] == [*range(2_000), 100_000]
        assert store.verify(deep=True).ok

"""XXH64 of columns is XXH64 as the specification has it, one value at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.base.xxhash64 import xxhash64

MASK = (1 << 64) - 1
P1, P2, P3 = 11400714785074694791, 14029467366897019727, 1609587929392839161
P4, P5 = 9650029242287828579, 2870177450012600261


def rotl(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & MASK


def rounded(state: int, lane: int) -> int:
    return rotl((state + lane * P2) & MASK, 31) * P1 & MASK


def by_specification(data: bytes) -> int:
    """The steps of the specification, in Python's own integers."""
    at, end = 0, len(data)
    if end >= 32:
        lanes = [(P1 + P2) & MASK, P2, 0, -P1 & MASK]
        while at + 32 <= end:
            for lane in range(4):
                lanes[lane] = rounded(
                    lanes[lane], int.from_bytes(data[at + 8 * lane : at + 8 * lane + 8], "little")
                )
            at += 32
        state = sum(rotl(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True)) & MASK
        for lane in lanes:
            state = ((state ^ rounded(0, lane)) * P1 + P4) & MASK
    else:
        state = P5
    state = (state + end) & MASK
    while at + 8 <= end:
        lane = rounded(0, int.from_bytes(data[at : at + 8], "little"))
        state = (rotl(state ^ lane, 27) * P1 + P4) & MASK
        at += 8
    if at + 4 <= end:
        state ^= int.from_bytes(data[at : at + 4], "little") * P1 & MASK
        state = (rotl(state, 23) * P2 + P3) & MASK
        at += 4
    for byte in data[at:]:
        state = rotl(state ^ byte * P5 & MASK, 11) * P1 & MASK
    state = (state ^ state >> 33) * P2 & MASK
    state = (state ^ state >> 29) * P3 & MASK
    return state ^ state >> 32


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_published_hashes(data: bytes, expected: int) -> None:
    assert by_specification(data) == expected
    assert xxhash64(np.frombuffer(data, np.uint8).reshape(1, len(data))).tolist() == [expected]


@given(st.integers(0, 150).flatmap(lambda n: st.lists(st.binary(min_size=n, max_size=n), min_size=1)))
def test_every_row_has_the_hash_of_its_bytes(values: list[bytes]) -> None:
    """Of every length: no stripe of 32 bytes, one, and more; words, halves and single bytes behind them."""
    rows = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)
    assert xxhash64(rows).tolist() == list(map(by_specification, values))

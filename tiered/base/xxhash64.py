"""XXH64 of many values at a time: the hash of Parquet's Bloom filters (seed 0), over whole columns by NumPy.

The specification is ``doc/xxhash_spec.md`` of xxHash. Values of one length are hashed together.
"""

from __future__ import annotations

from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Hashes = np.ndarray[Any, np.dtype[np.uint64]]

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_STRIPE_BYTES = 32


def xxhash64(values: Bytes) -> Hashes:
    """Return the XXH64 of each row.

    Parameters
    ----------
    values
        Of shape ``(count, length)``: values of one length.
    """
    count, length = values.shape
    whole = length // 8
    words = np.ascontiguousarray(values[:, : 8 * whole]).view("<u8")
    at = 4 * (length // _STRIPE_BYTES)
    hashes = _stripes(words[:, :at]) if at else np.full(count, _P5)
    hashes = hashes + np.uint64(length)
    for index in range(at, whole):
        hashes = _rotated(hashes ^ _mixed(words[:, index]), 27) * _P1 + _P4
    end = 8 * whole
    if length - end >= 4:
        half = np.ascontiguousarray(values[:, end : end + 4]).view("<u4")[:, 0].astype(np.uint64)
        hashes = _rotated(hashes ^ half * _P1, 23) * _P2 + _P3
        end += 4
    for index in range(end, length):
        hashes = _rotated(hashes ^ values[:, index].astype(np.uint64) * _P5, 11) * _P1
    hashes = (hashes ^ hashes >> np.uint64(33)) * _P2
    hashes = (hashes ^ hashes >> np.uint64(29)) * _P3
    mixed: Hashes = hashes ^ hashes >> np.uint64(32)
    return mixed


def _stripes(words: Hashes) -> Hashes:
    """Return the state after the stripes of 32 bytes, of which there is at least one."""
    zero: Hashes = np.zeros(len(words), np.uint64)
    lanes: list[Hashes] = [zero + _P1 + _P2, zero + _P2, zero, zero - _P1]
    for index in range(words.shape[1]):
        at = index % 4
        lanes[at] = _rotated(lanes[at] + words[:, index] * _P2, 31) * _P1
    state: Hashes = zero
    for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True):
        state = state + _rotated(lane, bits)
    for lane in lanes:
        state = (state ^ _mixed(lane)) * _P1 + _P4
    return state


def _mixed(words: Hashes) -> Hashes:
    return _rotated(words * _P2, 31) * _P1


def _rotated(words: Hashes, bits: int) -> Hashes:
    turned: Hashes = words << np.uint64(bits) | words >> np.uint64(64 - bits)
    return turned

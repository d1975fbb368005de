"""Mutations of valid inputs: of bytes as binary formats have them, and of JSON as a tree."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from random import Random
from typing import Any

NUMBERS = [
    0, 1, 2, 7, 8, 63, 64, 127, 128, 255, 256, 4095, 4096, 2**15, 2**16 - 1, 2**16, 2**20, 2**24, 2**26, 2**26 + 1,
    2**31 - 1, 2**31, 2**32 - 64, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
]  # fmt: skip
_WIDTHS = ((1, "<B"), (2, "<H"), (4, "<I"), (4, "<I"), (8, "<Q"))


def mutate(data: bytes, random: Random, others: Sequence[bytes] = ()) -> bytes:
    """Return `data` with one to eight edits; now and then a piece of another input is put in."""
    spoilt = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 8))):
        _edit(spoilt, random, others)
    return bytes(spoilt)


def _edit(data: bytearray, random: Random, others: Sequence[bytes]) -> None:
    if not data:
        data += random.randbytes(random.randrange(1, 64))
        return
    kind = random.randrange(20)
    at = random.randrange(len(data))
    if kind < 11:
        _put_number(data, at, random)
    elif kind < 14:
        data[at] ^= 1 << random.randrange(8)
    elif kind < 15:
        del data[at:]
    elif kind < 16:
        del data[at : at + random.choice((1, 8, 64, 128))]
    elif kind < 17:
        data[at:at] = random.choice((bytes(8), bytes(64), random.randbytes(8), data[at : at + 64]))
    elif kind < 18 and others:
        other = random.choice(others)
        start = random.randrange(len(other) + 1)
        piece = other[start : start + random.choice((4, 16, 64, 4096))]
        data[at : at + len(piece)] = piece
    else:
        size = random.choice((1, 4, 8, 64))
        start = random.randrange(len(data))
        piece = data[start : start + size]
        data[at : at + len(piece)] = piece


def _put_number(data: bytearray, at: int, random: Random) -> None:
    """Replace or shift a little-endian number, most often an aligned one."""
    width, code = random.choice(_WIDTHS)
    if random.random() < 0.9:
        at -= at % width
    if at + width > len(data):
        return
    (old,) = struct.unpack_from(code, data, at)
    new = random.choice(
        (
            random.choice(NUMBERS),
            random.choice(NUMBERS),
            old + random.choice((-64, -8, -1, 1, 8, 64)),
            -old,
            len(data),
        )
    )
    struct.pack_into(code, data, at, new % (1 << 8 * width))


_VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**32, 2**63 - 1, 2**63, -(2**63), 2**64, 10**400, int("9" * 4300), 0.5, -0.0,
    float("inf"), float("nan"), "", "x", "0", "\ud800", "\0", "../../etc", "x" * 5000, [], {}, [[]], {"": None}, [0] * 9,
]  # fmt: skip


def mutate_json(text: bytes, random: Random) -> bytes:
    """Return a JSON document with one to four of its nodes changed, or its text spoilt where it is none."""
    if random.random() < 0.1:
        return mutate(text, random)
    try:
        root = [json.loads(text)]
    except (ValueError, RecursionError):
        return mutate(text, random)
    for _ in range(random.choice((1, 1, 2, 4))):
        _edit_node(root, random)
    if random.random() < 0.01:
        depth = random.choice((100, 990, 100_000))
        return b'{"entries":' + b"[" * depth + b"]" * depth + b"}"
    try:
        return json.dumps(root[0]).encode()
    except ValueError:  # a number of more digits than Python writes
        return text


def _edit_node(root: list[Any], random: Random) -> None:
    places: list[tuple[Any, Any]] = []
    _collect(root, places, 0)
    holder, key = random.choice(places)
    kind = random.randrange(8)
    if kind == 0 and holder is not root:
        del holder[key]
    elif kind == 1 and isinstance(holder, list):
        holder.insert(random.randrange(len(holder) + 1), holder[key])
    elif kind == 2:
        other, place = random.choice(places)
        # A copy, as a node must not come to hold itself. Too deep for one: Python 3.14 reads what it cannot copy.
        with suppress(RecursionError):
            holder[key] = deepcopy(other[place])
    elif kind < 5 and type(holder[key]) is int:
        holder[key] += random.choice((-1, 1, 64, 2**32, -(2**63), -2 * holder[key]))
    else:
        holder[key] = random.choice(_VALUES)


def _collect(node: Any, places: list[tuple[Any, Any]], depth: int) -> None:
    if depth > 40 or len(places) > 2000:
        return
    if isinstance(node, list):
        items: Any = enumerate(node)
    elif isinstance(node, dict):
        items = node.items()
    else:
        return
    for key, value in items:
        places.append((node, key))
        _collect(value, places, depth + 1)

"""Erasures: requests to remove the records of some keys from every tier, as values.

The *ledger* of a store is the document ``erasures.json``, in its directory and in the bucket, with all erasures in order.
While one is open, its values lie beside the ledger, in ``erasures/<id>.arrow``; its last step deletes them. What stays are
numbers, times, the caller and the reason. One whose values are lost can only be given up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from math import inf
from typing import Any, Literal
from uuid import UUID

import pyarrow as pa

from ..errors import CorruptionError
from .checksum import crc32c
from .ipc_message import read_batch

LEDGER_FILE = "erasures.json"
VALUES_FOLDER = "erasures/"
VALUES_BYTES_MAX = 64 << 20
"""The values of one erasure take at most this many bytes."""
VALUES_MAX = 1_000_000
"""One erasure has at most this many values."""
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_MAGIC = b"TCRC"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One erasure, as the ledger says.

    Attributes
    ----------
    id
        Its identity.
    number
        Its position among the erasures of the store, from 1. Of two copies of a disk that give the same one, the first to reach
        the bucket keeps it.
    topic, topic_id, column
        Where the values are looked for.
    values
        How many values.
    horizons
        For each partition, the end offset at the call: records from there on are kept. A restore moves it, since later
        appends take the offsets of what it has undone, and it may bring back what an earlier one had undone.
    lineages
        For each partition, the epoch of the lineage of `horizons`. Empty: early builds did not write it.
    log_end
        The end of the transaction log at the call; 0 if the store has no transactions. A restore may lower it, too.
    called_horizons, called_log_end
        Both as they were at the call: objects that a restore has undone reach that far.
    called_lineages
        `lineages` as they were at the call. All records of earlier ones are from before the call.
    past_horizons
        ``(partition, epoch, offset)``: the horizons of lineages that restores have begun and ended since the call.
    reason, caller
        As given at the call, and the user and host of the process.
    called_us, deadline_us
        When it was called, and until when it must be done, by the host's clock; see `not_called_after`.
    rewritten_us
        When no object that the manifests name had such a record any more, nor a local file; None before. See `clean_us`.
    outdated_us
        A `rewritten_us` that does not hold any more: a restore to a time, or a rebuilt manifest, named objects from before.
    done_us
        When nothing of the store gave the records back any more; None before.
    given_up_us
        When an operator gave it up, since its values were lost: its records may be there for ever. None: not given up.
    rows
        How many records of the log were removed from the manifests for this erasure. One that several open ones remove counts for
        the first of them.
    """

    id: UUID
    number: int
    topic: str
    topic_id: UUID
    column: str
    values: int
    horizons: tuple[int, ...]
    log_end: int
    reason: str
    caller: str
    called_us: int
    deadline_us: int
    rewritten_us: int | None = None
    done_us: int | None = None
    given_up_us: int | None = None
    rows: int = 0
    called_horizons: tuple[int, ...] = ()
    called_log_end: int = 0
    lineages: tuple[int, ...] = ()
    called_lineages: tuple[int, ...] = ()
    past_horizons: tuple[tuple[int, int, int], ...] = ()
    outdated_us: int = 0

    @property
    def clean_us(self) -> int | None:
        """Since when no object that the manifests name has such a record, nor a local file; None while that is not known."""
        return None if (self.rewritten_us or 0) <= self.outdated_us else self.rewritten_us

    @property
    def clean_seconds(self) -> float:
        """The end of the second of `clean_us` (Unix); infinite while that is not known.

        Servers give whole seconds, so what has a time in that second may be from before.
        """
        return inf if self.clean_us is None else self.clean_us // 1_000_000 + 1.0

    def is_late(self, now_us: int) -> bool:
        """Whether it is open after its deadline."""
        return self.is_open and self.deadline_us < now_us

    def not_called_after(self, stored_seconds: float | None) -> LedgerEntry:
        """Return the erasure as called when its values were stored, if it was called later: the host's clock was ahead then.

        Parameters
        ----------
        stored_seconds
            When they were stored (Unix, whole seconds of the server's clock); None if they are not.
        """
        if stored_seconds is None:
            return self
        ahead_us = max(0, self.called_us - int(stored_seconds + 1) * 1_000_000)
        return replace(self, called_us=self.called_us - ahead_us, deadline_us=self.deadline_us - ahead_us)

    def reopened(self) -> LedgerEntry:
        """Return the erasure with objects that are to be checked again."""
        return replace(self, outdated_us=max(self.outdated_us, self.rewritten_us or 0))

    def not_ended(self) -> LedgerEntry:
        """Return the erasure as open: its values are still there."""
        return replace(self, done_us=None, given_up_us=None)

    @property
    def is_open(self) -> bool:
        """Whether it is neither done nor given up."""
        return self.done_us is None and self.given_up_us is None

    @property
    def state(self) -> Literal["rewriting", "sweeping", "done", "given up"]:
        """``rewriting`` until `clean_us`, then ``sweeping`` until `done_us`, then ``done``; ``given up`` instead of them."""
        if not self.is_open:
            return "given up" if self.done_us is None else "done"
        return "rewriting" if self.clean_us is None else "sweeping"

    @property
    def values_name(self) -> str:
        """The name of the file or object with the values, below the store's directory or prefix."""
        return f"{VALUES_FOLDER}{self.id}.arrow"

    def to_json(self) -> dict[str, Any]:
        """Return the erasure as plain JSON values."""
        return {
            **asdict(self),
            "id": str(self.id),
            "topic_id": str(self.topic_id),
            **{name: [*getattr(self, name)] for name in _BY_PARTITION},
            "past_horizons": [[*row] for row in self.past_horizons],
        }


_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("topic", "column", "reason", "caller"), (str,)),
    **dict.fromkeys(("number", "values", "log_end", "called_us", "deadline_us", "rows"), (int,)),
    **dict.fromkeys(("called_log_end", "outdated_us"), (int,)),
    **dict.fromkeys(("rewritten_us", "done_us", "given_up_us"), (int, type(None))),
}
_BY_PARTITION = ("horizons", "lineages", "called_horizons", "called_lineages")


def horizon_in(horizons: Sequence[int], partition: int) -> int:
    """Return the offset from which on an erasure keeps the records of a partition; 0 for a later partition. Lineages alike."""
    return horizons[partition] if partition < len(horizons) else 0


def ledger_to_json(erasures: Iterable[LedgerEntry]) -> dict[str, Any]:
    """Return the content of the ledger."""
    return {"erasures": [item.to_json() for item in erasures]}


def ledger_from_json(values: dict[str, Any], *, where: str) -> tuple[LedgerEntry, ...]:
    """Invert `ledger_to_json`.

    Raises
    ------
    CorruptionError
    """
    try:
        return tuple(_from_json(item) for item in values["erasures"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptionError(f"ledger of erasures does not decode ({error!r})", where=where) from None


def _from_json(values: dict[str, Any]) -> LedgerEntry:
    plain = {item.name: values[item.name] for item in fields(LedgerEntry) if item.name in values}
    # Early builds had one of each, and no objects that came back.
    plain.setdefault("outdated_us", 0)
    plain.setdefault("called_horizons", plain["horizons"])
    plain.setdefault("called_log_end", plain["log_end"])
    plain.setdefault("lineages", ())
    plain.setdefault("called_lineages", ())
    plain["past_horizons"] = tuple(
        (partition, epoch, offset) for partition, epoch, offset in plain.get("past_horizons", ())
    )
    for name, kinds in _TYPES.items():
        if type(plain.get(name)) not in kinds:
            raise TypeError(f"{name} is {plain.get(name)!r}")
    numbers = [*chain(*plain["past_horizons"], *(plain[name] for name in _BY_PARTITION))]
    if not all(type(number) is int and 0 <= number < 1 << 63 for number in numbers):
        raise ValueError("a horizon is no offset, or a lineage no epoch")
    plain |= {
        "id": UUID(plain["id"]),
        "topic_id": UUID(plain["topic_id"]),
        **{name: tuple(plain[name]) for name in _BY_PARTITION},
    }
    return LedgerEntry(**plain)


def merge_ledgers(ours: Sequence[LedgerEntry], theirs: Sequence[LedgerEntry]) -> tuple[LedgerEntry, ...]:
    """Return every erasure of two copies of a ledger, each as far as either copy says; in order of the numbers.

    The numbers of `theirs` count. An erasure whose number is taken gets the next one.
    """
    ours_by_id = {item.id: item for item in ours}
    known = {item.id for item in theirs}
    merged = [_further(item, ours_by_id.get(item.id, item)) for item in _ordered(theirs)]
    merged += _ordered(item for item in ours if item.id not in known)
    by_number: dict[int, LedgerEntry] = {}
    for item in merged:
        number = item.number
        if number in by_number:
            number = 1 + max(other.number for other in (*merged, *by_number.values()))
        by_number[number] = replace(item, number=number)
    return tuple(_ordered(by_number.values()))


def _ordered(erasures: Iterable[LedgerEntry]) -> list[LedgerEntry]:
    return sorted(erasures, key=lambda item: (item.number, item.called_us, item.id))


def _further(one: LedgerEntry, other: LedgerEntry) -> LedgerEntry:
    return replace(
        one,
        horizons=tuple(map(min, one.horizons, other.horizons)),
        log_end=min(one.log_end, other.log_end),
        called_us=min(one.called_us, other.called_us),
        deadline_us=min(one.deadline_us, other.deadline_us),
        rewritten_us=max((one.rewritten_us, other.rewritten_us), key=lambda at: at or 0),
        outdated_us=max(one.outdated_us, other.outdated_us),
        done_us=one.done_us if one.done_us is not None else other.done_us,
        given_up_us=one.given_up_us if one.given_up_us is not None else other.given_up_us,
        rows=max(one.rows, other.rows),
    )


def encode_values(values: pa.Array) -> bytes:
    """Return the values of an erasure as an Arrow stream with one column, ``value``, and a checksum behind its end."""
    batch = pa.record_batch([values], ["value"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    data = bytes(sink.getvalue())
    return data + _trailer(data)


def _trailer(data: bytes) -> bytes:
    return _MAGIC + crc32c(data).to_bytes(4, "little")


def decode_values(data: bytes, kind: pa.DataType, count: int, *, where: str) -> pa.Array:
    """Invert `encode_values`; the bytes may come from a bucket that others write to.

    Raises
    ------
    CorruptionError
        They are not `count` values of a column of this type. Early builds wrote no checksum.
    """
    expected = pa.schema([pa.field("value", kind)])
    if not data.endswith(_END_OF_STREAM):
        data, trailer = data[: -len(_END_OF_STREAM)], data[-len(_END_OF_STREAM) :]
        if trailer != _trailer(data):
            raise CorruptionError("values of an erasure do not have their checksum", where=where)
    try:
        messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(data))
        if not pa.ipc.read_schema(messages.read_next_message()).equals(expected):
            raise CorruptionError("values of another type", where=where)
        batch = read_batch(messages.read_next_message().serialize(), expected)
        batch.validate(full=True)
    except (pa.ArrowException, StopIteration, EOFError, OSError, ValueError) as error:
        raise CorruptionError(f"values of an erasure do not decode ({error})", where=where) from None
    if batch.num_rows != count:
        raise CorruptionError(f"{batch.num_rows} values of an erasure in place of {count}", where=where)
    return batch.column(0)

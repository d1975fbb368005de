"""What the writers append: every record says which process, thread and number it is."""

from __future__ import annotations

import zlib
from typing import Any, NamedTuple

import pyarrow as pa

import tiered
from tests.support.stores import stepwise

TOPICS = {"records": 3, "typed": 2}
PASSING = "passing"
"""A topic of one partition that is deleted and created again."""
PRODUCER = 90
"""The thread of the numbered records, which every life goes on with: their life is 0."""
TYPED = pa.schema([("id", pa.string()), ("city", pa.string()), ("number", pa.int64())])


class Id(NamedTuple):
    """Life of the writer process, thread, and which record of the thread."""

    life: int
    thread: int
    number: int


def text_of(record: Id) -> str:
    """Return the text of a record, of a length that depends on it."""
    name = f"{record.life}.{record.thread}.{record.number}"
    return name + "." + "x" * (zlib.crc32(name.encode()) % 90)


def id_of(text: str) -> Id:
    """Return whose text it is.

    Raises
    ------
    ValueError
        No writer writes such a text.
    """
    found = Id(*map(int, text.split(".")[:3]))
    if text_of(found) != text:
        raise ValueError(f"{text!r} was never appended")
    return found


def texts(table: pa.Table) -> list[str]:
    """Return the texts of scanned rows of either topic."""
    if "id" in table.column_names:
        for text, number in zip(table["id"].to_pylist(), table["number"].to_pylist(), strict=True):
            if number != zlib.crc32(text.encode()):
                raise ValueError(f"the columns of {text!r} are not of one record")
        return [str(text) for text in table["id"].to_pylist()]
    return [value.decode() for value in table["value"].to_pylist()]


def row(record: Id) -> dict[str, object]:
    """Return a record as a row of the typed topic."""
    text = text_of(record)
    return {"id": text, "city": "ABC"[record.number % 3], "number": zlib.crc32(text.encode())}


def small_settings(sync: str, tail_interval: str = "off", **rules: Any) -> tiered.Settings:
    """Small blocks and segments, so that a moment of appending rolls several times."""
    return stepwise(
        {
            "sync": sync,
            "sync_interval": "3ms" if sync != "always" else "1h",
            "block_bytes": "4KiB",
            "hot_bytes": "32KiB",
        },
        roll={"bytes": "24KiB", "age": "off"},
        offload={"after": "4h", "tail_interval": tail_interval},
        **rules,
    ).model_copy(update={"sweep": tiered.Settings.model_validate({"sweep": {"grace": "0s"}}).sweep})

"""The ledger of erasures as a value: what two copies of it make together, and what is none."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from tiered.errors import CorruptionError
from tiered.format.erasure import (
    LedgerEntry,
    decode_values,
    encode_values,
    ledger_from_json,
    ledger_to_json,
    merge_ledgers,
)


def erasure(**fields: Any) -> LedgerEntry:
    values: dict[str, Any] = {
        "id": UUID(int=1),
        "number": 1,
        "topic": "t",
        "topic_id": UUID(int=2),
        "column": "key",
        "values": 1,
        "horizons": (5, 5),
        "log_end": 5,
        "reason": "",
        "caller": "",
        "called_us": 5,
        "deadline_us": 5,
        "called_horizons": (5, 5),
        "called_log_end": 5,
    }
    return LedgerEntry(**(values | fields))


@pytest.mark.parametrize(
    ("field", "one", "other", "both"),
    [
        ("horizons", (3, 9), (4, 8), (3, 8)),
        ("log_end", 3, 4, 3),
        ("called_us", 3, 4, 3),
        ("deadline_us", 3, 4, 3),
        ("rewritten_us", 3, 4, 4),
        ("rewritten_us", None, 4, 4),
        ("outdated_us", 3, 4, 4),
        ("done_us", None, 4, 4),
        ("given_up_us", None, 4, 4),
        ("rows", 3, 4, 4),
    ],
)
def test_two_copies_make_each_field_as_far_as_either_says(
    field: str, one: object, other: object, both: object
) -> None:
    """Whichever copy is which: what a restore has lowered stays low, and what has ended stays so."""
    first, second = erasure(**{field: one}), erasure(**{field: other})
    for ours, theirs in ((first, second), (second, first)):
        assert merge_ledgers([ours], [theirs]) == (erasure(**{field: both}),)


def test_an_erasure_of_an_early_build_is_open_and_was_never_restored() -> None:
    """It had one horizon for each partition, none of the later times, and could not be given up."""
    later = ("called_horizons", "called_log_end", "outdated_us", "given_up_us")
    values = ledger_to_json([erasure(rewritten_us=7)])
    for name in later:
        del values["erasures"][0][name]
    assert ledger_from_json(values, where="here") == (erasure(rewritten_us=7),)


@pytest.mark.parametrize(
    ("stored", "kind"), [(pa.string(), pa.binary()), (pa.int64(), pa.timestamp("us", "UTC"))]
)
def test_values_of_a_type_with_the_same_bytes_are_of_another_type(
    stored: pa.DataType, kind: pa.DataType
) -> None:
    data = encode_values(pa.array([1, 2]).cast(stored))
    assert len(decode_values(data, stored, 2, where="here")) == 2
    with pytest.raises(CorruptionError, match="of another type"):
        decode_values(data, kind, 2, where="here")

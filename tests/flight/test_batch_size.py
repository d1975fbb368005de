"""What a batch takes once it is plain is known before it is made plain."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as fl
import pytest

import tiered
from tests.support.invalid_arrow import LONG, NULL_VIEWS, views_with
from tiered.errors import SchemaMismatch
from tiered.flight.server.safe_batch import safe_batch
from tiered.flight.wire.batch_size import check_columns, plain_bytes
from tiered.format.arrow_layouts import is_view

VALUES = [b"x" * 100, None, b"", b"longer than what fits into a view", b"yy"]
LARGE = pa.array([bytes(10 << 20)])


def batch(*columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), [f"c{at}" for at in range(len(columns))])


def runs(values: pa.Array, *lengths: int) -> pa.Array:
    return pa.RunEndEncodedArray.from_arrays(pa.array(np.cumsum(lengths), pa.int64()), values)


def views(value: pa.Array, count: int) -> pa.Array:
    """One value seen many times."""
    _, view, *data = value.cast(pa.binary_view()).buffers()
    return pa.Array.from_buffers(
        pa.binary_view(), count, [None, pa.py_buffer(bytes(view)[:16] * count), *data]
    )


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.binary_view(), pa.large_binary()])
def test_it_is_the_bytes_of_the_values_however_they_are_sent(kind: pa.DataType) -> None:
    plain = pa.array(VALUES, pa.binary()).cast(kind)
    expected = 8 * len(VALUES) + sum(len(value or b"") for value in VALUES)
    encoded = pa.array([0, 1, 2, 3, 4, None], pa.int8())
    sent = [
        plain,
        plain.slice(1, 3),
        pa.DictionaryArray.from_arrays(encoded, plain),
    ]
    for array in sent:
        first = 118 if array is sent[1] else 0
        # Offsets, validity and the row of a null come on top where there are any.
        assert 0 <= plain_bytes(batch(array)) - expected + first <= 80, array.type
    often = pa.DictionaryArray.from_arrays(pa.array([0, 0, 4, None, 0], pa.int8()), plain)
    assert plain_bytes(batch(often)) == 5 * 8 + 3 * 100 + 2


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
@pytest.mark.parametrize("held", NULL_VIEWS)
def test_what_null_rows_hold_counts_for_nothing(held: str, kind: pa.DataType) -> None:
    """A length below zero made room for any other, and a large one was an honest batch too many."""
    garbage = views_with(NULL_VIEWS[held], kind)
    dictionary = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2], pa.int8()), garbage)
    for array in (garbage, dictionary):
        assert plain_bytes(batch(array)) == 3 * 8 + 1 + len(LONG)
        safe = safe_batch(batch(array)).column(0)
        assert safe.to_pylist() == views_with(bytes(16), kind).to_pylist()
        assert not is_view(safe.type), "views keep what their null rows hold"
    assert plain_bytes(batch(garbage.slice(1, 1))) == 8


NESTED = [
    runs(pa.array([1]), 1 << 30),
    pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
    pa.array([], pa.list_(pa.string_view())),
    pa.array([], pa.struct([("a", pa.dictionary(pa.int8(), pa.string()))])),
    pa.array([], pa.list_view(pa.string())),
    pa.ListArray.from_arrays(pa.array([0], pa.int32()), pa.array([], pa.bool8())),
    pa.ListArray.from_arrays(pa.array([0], pa.int32()), runs(pa.array([1]), 1)),
    pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.array([["a"]])),
    pa.ExtensionArray.from_storage(
        pa.opaque(pa.run_end_encoded(pa.int64(), pa.binary()), "x", "y"), runs(LARGE, 100)
    ),
]


@pytest.mark.parametrize("array", NESTED, ids=lambda array: str(array.type))
def test_what_cannot_be_known_is_refused_unseen(array: pa.Array) -> None:
    with pytest.raises(SchemaMismatch, match="send it plain"):
        check_columns(batch(array).schema)
    with pytest.raises(SchemaMismatch, match="send it plain"):
        safe_batch(batch(array))


def views_of_null(array: pa.Array) -> pa.Array:
    """The same, and a null whose length would take theirs back."""
    _, rows, *data = array.buffers()
    count = len(array) + 1
    validity = pa.array([True] * len(array) + [False]).buffers()[1]
    rows = pa.py_buffer(bytes(rows) + NULL_VIEWS["the least length"])
    return pa.Array.from_buffers(array.type, count, [validity, rows, *data])


def lists(values: pa.Array) -> pa.Array:
    """One row that has all of them."""
    return pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)


NOTHING = pa.Array.from_buffers(pa.null(), 1 << 30, [None])
BOMBS = [
    lists(NOTHING),
    pa.FixedSizeListArray.from_arrays(NOTHING, 1 << 30),
    lists(pa.StructArray.from_buffers(pa.struct([]), 1 << 30, [None])),
    pa.StructArray.from_arrays([lists(NOTHING)], ["a"]),
    pa.DictionaryArray.from_arrays(pa.array([None], pa.int8()), views(LARGE, 100)),
    pa.Array.from_buffers(pa.null(), 1 << 30, [None]),
    pa.DictionaryArray.from_arrays(pa.array([0] * 100, pa.int8()), LARGE),
    views(LARGE, 100),
    views_of_null(views(LARGE, 100)),
]


def test_few_bytes_that_stand_for_many_are_refused_before_they_are_unpacked(
    remote: tiered.Store, server: Any
) -> None:
    remote.create_topic("orders")
    client = fl.connect(server.location)
    for array in BOMBS:
        bomb = pa.RecordBatch.from_arrays([array], ["value"])
        writer, answers = client.do_put(fl.FlightDescriptor.for_path("orders"), bomb.schema)
        writer.write_batch(bomb)
        assert b"RecordTooLarge" in answers.read().to_pybytes(), array.type
        writer.close()
    sent = pa.record_batch({"value": pa.array([b"a", b"b", b"a"]).dictionary_encode()})
    writer, answers = client.do_put(fl.FlightDescriptor.for_path("orders"), sent.schema)
    writer.write_batch(sent)
    assert b'"ranges":[[0,0,3]]' in answers.read().to_pybytes()
    writer.close()
    client.close()


COUNT = 12_345


@pytest.mark.parametrize("kind", [pa.binary(), pa.list_(pa.int64()), pa.string_view(), pa.int64()])
def test_a_length_that_is_a_lie_is_refused_before_anything_believes_it(kind: pa.DataType) -> None:
    """Looking for as many offsets as that would end the process."""
    value: Any = [1] if pa.types.is_list(kind) else 1 if pa.types.is_integer(kind) else "a longer text"
    sent = batch(pa.array([value] * COUNT, kind))
    data = sent.serialize().to_pybytes()
    lie = data.replace(struct.pack("<q", COUNT), struct.pack("<q", 1 << 40))
    assert lie != data
    with pytest.raises(SchemaMismatch, match="damaged"):
        safe_batch(pa.ipc.read_record_batch(pa.py_buffer(lie), sent.schema))

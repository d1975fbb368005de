"""A block of one record, encoded from a template."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tiered.format.block import encode_body
from tiered.format.schema import RECORD_SCHEMA, TIMESTAMP, body_schema
from tiered.format.single_record import SINGLE_BYTES_MAX, encode_single

SCHEMA = body_schema(RECORD_SCHEMA)
SHORT = (
    st.none() | st.binary(max_size=20) | st.binary(min_size=SINGLE_BYTES_MAX - 2, max_size=SINGLE_BYTES_MAX)
)


@given(st.integers(-(2**55), 2**55), SHORT, SHORT)
def test_it_is_byte_for_byte_what_arrow_makes(
    timestamp_us: int, key: bytes | None, value: bytes | None
) -> None:
    """Null, empty and full keys and values; a template that was used before leaves nothing behind."""
    columns = [
        pa.array([timestamp_us], TIMESTAMP), pa.array([key], pa.binary()), pa.array([value], pa.binary()),
        pa.nulls(1, SCHEMA.field("headers").type),
    ]  # fmt: skip
    wanted = encode_body(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), owned=True)
    found = encode_single(timestamp_us, key, value)
    assert b"".join(map(bytes, found.parts)) == b"".join(map(bytes, wanted.parts))
    for name in set(wanted.__slots__) - {"parts"}:
        assert getattr(found, name) == getattr(wanted, name), name

"""Documents: what was stored comes back, or an error that names the file."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiered.errors import CorruptionError, UnsupportedFormat
from tiered.format.document import FORMAT_VERSION, decode_document, encode_document

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
documents = st.dictionaries(
    st.text(max_size=8).filter(lambda key: key not in ("format", "crc32c", "features")), json_values
)


@given(documents)
def test_any_values_come_back(values: dict[str, object]) -> None:
    """Every JSON value, whatever the order of its keys; a person can read the result."""
    data = encode_document(values)
    assert decode_document(data, where="x") == values
    assert data.decode("ascii").endswith("}\n")
    assert encode_document(dict(reversed(values.items()))) == data


@pytest.mark.parametrize(
    "values", [{"start_offset": 4711}, {"reason": "épée \U0001f5e1", "n": [1.5e300, None, True]}]
)
def test_every_flipped_bit_is_found(values: dict[str, object]) -> None:
    """Exhaustive. A flip may leave a document that says the same (``\\u00E9`` for ``\\u00e9``), never another."""
    data = encode_document(values)
    harmless = 0
    for bit in range(len(data) * 8):
        spoilt = bytearray(data)
        spoilt[bit // 8] ^= 1 << bit % 8
        try:
            assert decode_document(bytes(spoilt), where="start.json") == values
            harmless += 1
        except CorruptionError as error:
            found = error
            assert found.where == "start.json"
    assert harmless < 30


def test_every_cut_is_found() -> None:
    """Exhaustive, but for the newline at the end."""
    data = encode_document({"start_offset": 4711, "items": [{"a": 1}]})
    for length in range(len(data) - 1):
        with pytest.raises(CorruptionError):
            decode_document(data[:length], where="x")


@settings(max_examples=60)
@given(st.binary(max_size=60) | json_values.map(lambda value: json.dumps(value).encode()))
def test_no_other_bytes_are_a_document(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_document(data, where="x")


@pytest.mark.parametrize(
    "data",
    [b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000, b'{"crc32c": "0", "format": ' + b"9" * 10_000 + b"}", b"\xff\xfe{}",
     b'{"crc32c": 1, "format": 1, "a": ' + b"[" * 900 + b"]" * 900 + b"}", b""],
    ids=["deep list", "deep object", "long number", "long version", "UTF-16 mark", "as deep as json reads", "empty"],
)  # fmt: skip
def test_hostile_json_is_corruption(data: bytes) -> None:
    """No RecursionError, and no error of the integer limit, escapes."""
    with pytest.raises(CorruptionError, match="it is no JSON|checksum"):
        decode_document(data, where="x")


def test_a_newer_format_is_refused_by_name() -> None:
    """Only where the checksum is right: otherwise it is damage."""
    newer = json.loads(encode_document({"a": 1, "format": FORMAT_VERSION + 1}))
    with pytest.raises(UnsupportedFormat, match=r"format 3 of head\.json"):
        decode_document(json.dumps(newer).encode(), where="head.json")
    newer["format"] += 1
    with pytest.raises(CorruptionError):
        decode_document(json.dumps(newer).encode(), where="head.json")


def test_features_have_a_format_that_older_releases_refuse() -> None:
    """Only a document that uses features has it; a feature that is not known is refused by name."""
    assert b'"format":1' in encode_document({"id": "x", "features": []})
    data = encode_document({"id": "x", "features": ["transactions"]})
    assert b'"format":2' in data
    assert decode_document(data, where="store.json") == {"id": "x", "features": ["transactions"]}
    with pytest.raises(
        UnsupportedFormat, match=r"store\.json uses .* newer than this release: flying, swimming"
    ):
        decode_document(
            encode_document({"features": ["swimming", "transactions", "flying"]}), where="store.json"
        )
    for value in ("transactions", [1], {"transactions": 1}):
        with pytest.raises(CorruptionError, match="features"):
            decode_document(encode_document({"features": value}), where="store.json")

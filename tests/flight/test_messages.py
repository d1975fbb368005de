"""What goes over the wire survives it, and whatever else comes is refused by one kind of error."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiered
from tests.flight.serving import later_release
from tests.support.manifest_values import entry
from tiered.errors import (
    ColdStorageError,
    ConfigError,
    Conflict,
    CorruptionError,
    OffsetOutOfRange,
    TieredError,
)
from tiered.flight.client.staging import StageClient
from tiered.flight.wire.errors import decode_error, encode_error
from tiered.flight.wire.messages import PlanInfo, ScanCommand, SplitInfo, Ticket
from tiered.flight.wire.options import ConnectOptions
from tiered.flight.wire.put_messages import Ack, BatchInfo, PutCommand
from tiered.flight.wire.values import decode_action, decode_answer, encode_json
from tiered.format import predicate
from tiered.format.schema import RECORD_SCHEMA
from tiered.format.topic_meta import TopicMeta
from tiered.reader.splits import Tier
from tiered.transactions.staged_rows import Staged

NUMBERS = st.integers(0, 1 << 62)
OFFSETS = NUMBERS | st.just(-1)
TIMES = st.none() | st.integers(-(1 << 62), 1 << 62)
KEYS = st.none() | st.binary(max_size=9) | st.text(max_size=9) | st.integers(-9, 9)
NAMES = st.lists(st.text(max_size=5), max_size=3).map(tuple)

LITERALS = (
    st.integers()
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.binary(max_size=5)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
    | st.dates()
    | st.decimals(allow_nan=False, allow_infinity=False)
)
COLUMNS = st.sampled_from(["key", "offset", "n"])
CONDITIONS = (
    st.builds(predicate.Comparison, COLUMNS, st.sampled_from(["<", "<=", "==", ">=", ">"]), LITERALS)
    | st.builds(predicate.In, COLUMNS, st.lists(LITERALS, max_size=3).map(tuple))
    | st.builds(predicate.IsNull, COLUMNS)
)
FILTERS = st.none() | st.recursive(
    CONDITIONS,
    lambda inner: (
        st.builds(predicate.Not, inner)
        | st.builds(predicate.And, st.lists(inner, min_size=1, max_size=3).map(tuple))
        | st.builds(predicate.Or, st.lists(inner, min_size=1, max_size=3).map(tuple))
    ),
    max_leaves=5,
)
COMMANDS = st.builds(
    ScanCommand,
    st.text(max_size=9),
    st.none() | st.lists(NUMBERS, max_size=3).map(tuple),
    st.none() | NUMBERS | st.dictionaries(st.integers(0, 9), NUMBERS, max_size=3),
    st.none() | NUMBERS,
    TIMES,
    TIMES,
    KEYS,
    st.none() | NAMES,
    st.none() | NUMBERS,
    st.none() | st.integers(1, 1 << 40),
    st.none() | st.builds(uuid4),
    FILTERS,
)


@st.composite
def tickets(draw: st.DrawFn) -> Ticket:
    start = draw(st.integers(0, 1 << 60))
    key = draw(KEYS)
    column = None if key is None else "key"
    return Ticket(
        "t", uuid4(), draw(NUMBERS), start, start + draw(st.integers(0, 99)), draw(NAMES), draw(TIMES),
        draw(TIMES), key, column, draw(st.none() | NUMBERS), draw(FILTERS),
    )  # fmt: skip


ERRORS = st.sampled_from(
    [
        OffsetOutOfRange("gone", start=3, end=9),
        Conflict("late", topic="t", partition=1, expected=3, end=9),
        ColdStorageError("away", retryable=True),
        CorruptionError("bad", where="a/b", position=7, offsets=(1, 2)),
        TieredError("x" * 10_000),
        TieredError("\U0001f600" * 10_000),
    ]
)
MESSAGES: Any = st.one_of(
    COMMANDS,
    tickets(),
    st.builds(PutCommand, st.text(max_size=9), st.none() | st.builds(uuid4), st.just("stage")),
    st.builds(BatchInfo, st.none() | NUMBERS, st.sampled_from([True, False, None])),
    st.builds(BatchInfo, NUMBERS, st.none(), st.text(), NUMBERS, NUMBERS, st.booleans()),
    st.builds(BatchInfo, NUMBERS, st.none(), st.text(), NUMBERS, NUMBERS, expected_offset=NUMBERS),
    st.builds(
        Ack,
        st.lists(st.tuples(NUMBERS, OFFSETS, OFFSETS), max_size=3).map(tuple),
        st.none(),
        NUMBERS,
        NUMBERS,
    ),
)
KINDS = [ScanCommand, Ticket, PutCommand, BatchInfo, Ack, SplitInfo, PlanInfo]


@given(MESSAGES)
def test_a_message_comes_out_as_it_went_in(message: Any) -> None:
    assert type(message).decode(message.encode()) == message


PLACES = (
    SplitInfo(Tier.COLD, 0, 0, 2, 9, cold=(f"t/{UUID(int=1)}/0/data/{entry(0, 2).name}", entry(0, 2))),
    SplitInfo(Tier.WARM, 0, 0, 2, 9, warm=("/data/topics/t/0/file", UUID(int=1))),
    PlanInfo(TopicMeta("t", UUID(int=1), 1, (RECORD_SCHEMA,), None, None, 1), {0: (0, 2)}, ("offset",)),
)


@given(MESSAGES | st.sampled_from(PLACES))
def test_a_message_of_a_later_release_is_read_without_what_it_adds(message: Any) -> None:
    later = later_release(json.loads(message.encode()))
    assert type(message).decode(json.dumps(later).encode()) == message


def test_a_message_without_a_filter_is_that_of_earlier_releases() -> None:
    for message in (ScanCommand("t"), Ticket("t", uuid4(), 0, 0, 1, ("offset",))):
        assert "filter" not in json.loads(message.encode())


DEEP: Any = ["null", "n"]
for _ in range(300):
    DEEP = ["not", DEEP]


@pytest.mark.parametrize(
    "encoded",
    [
        {}, [], 3, "n", ["null"], ["null", 3], ["==", "n"], ["!=", "n", 1], ["==", "n", None], ["==", "n", [1]],
        ["==", "n", {"bytes": "?"}], ["==", "n", {"decimal": "x"}], ["==", "n", {"date": "2020"}], ["==", "n", {}],
        ["==", "n", {"time": "1"}], ["==", "n", {"bytes": "AA==", "date": "2020-01-01"}], ["in", "n", 1], ["not"],
        ["not", ["null", "n"], ["null", "n"]], ["and"], ["or", 1], [["and"], "n", 1], DEEP,
    ],
    ids=lambda encoded: str(encoded)[:60],
)  # fmt: skip
def test_a_filter_that_is_none_is_refused(encoded: Any) -> None:
    for message in (ScanCommand("t"), Ticket("t", uuid4(), 0, 0, 1, ("offset",))):
        values = json.loads(message.encode()) | {"filter": encoded}
        with pytest.raises(ConfigError, match="the other end sent no"):
            type(message).decode(json.dumps(values).encode())


@given(ERRORS)
def test_an_error_comes_out_with_its_attributes(error: TieredError) -> None:
    found = decode_error(encode_error(error))
    assert type(found) is type(error)
    assert vars(found) == vars(error)
    assert str(error).startswith(str(found))
    assert len(encode_error(error)) <= 4000


def split_info(**changes: Any) -> SplitInfo:
    found = entry(0, 10)
    key = f"orders/{uuid4()}/3/data/{found.name}"
    values: dict[str, Any] = {"tier": Tier.COLD, "partition": 3, "cold": (key, found)}
    return SplitInfo(start_offset=0, end_offset=10, stored_bytes=5, **(values | changes))


@pytest.mark.parametrize(
    "key",
    ["../../etc/passwd", "/etc/passwd", "{name}", "../{id}/3/data/{name}", "orders/{id}/4/data/{name}",
     "orders/{id}/3/data/other.parquet", "orders/x/3/data/{name}", "orders/{id}/3/data/../data/{name}",
     "\x1b[2J/{id}/3/data/{name}"],
)  # fmt: skip
def test_no_key_of_a_plan_leads_out_of_the_topic(key: str) -> None:
    """Readers go straight to the bucket by it, which may be a directory of this host; Spark's JVM too."""
    good = split_info()
    assert SplitInfo.decode(good.encode()) == good
    found = entry(0, 10)
    hostile = split_info(cold=(key.format(name=found.name, id=uuid4()), found))
    with pytest.raises(ConfigError, match="no description of a split"):
        SplitInfo.decode(hostile.encode())


@pytest.mark.parametrize(
    "changes",
    [{"bytes": 1 << 62}, {"record_count": 1 << 40}, {"row_groups": ()}, {"tail_position": -1}],
    ids=str,
)
def test_no_entry_of_a_plan_says_what_no_manifest_does(changes: dict[str, Any]) -> None:
    """It is not verified by anything, and memory is set aside by it."""
    good = split_info()
    assert good.cold is not None
    key, found = good.cold
    with pytest.raises(ConfigError, match="no description of a split"):
        SplitInfo.decode(split_info(cold=(key, replace(found, **changes))).encode())


@pytest.mark.parametrize(
    ("path", "opens"),
    [
        ("/store/topics/orders/3/00000000000000000000-0.log", True),
        ("/store/topics/orders/3/writer.lock", False),
        ("/store/topics/orders/4/00000000000000000000-0.log", False),
        ("/store/topics/other/3/00000000000000000000-0.log", False),
        ("/other/topics/orders/3/00000000000000000000-0.log", False),
        ("/store/topics/orders/3/../3/00000000000000000000-0.log", False),
        ("/dev/zero", False),
        ("", False),
    ],
)
def test_no_path_of_a_plan_opens_another_file(path: str, opens: bool) -> None:
    """The server gives the rows itself then."""
    info = SplitInfo.decode(split_info(tier=Tier.WARM, cold=None, warm=(path, uuid4())).encode())
    assert (info.direct("orders", Path("/store")) is not None) == opens
    assert info.direct("orders", None) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(MESSAGES, st.data())
def test_what_is_no_message_is_refused_by_a_config_error(message: Any, data: st.DataObject) -> None:
    """A field replaced by anything, or left out, or bytes cut off; for every kind of message."""
    values = json.loads(message.encode())
    name = data.draw(st.sampled_from(sorted(values)))
    damaged = {**values, name: data.draw(JSON)}
    if data.draw(st.booleans()):
        del damaged[name]
    for body in (json.dumps(damaged).encode(), message.encode()[: data.draw(st.integers(0, 40))]):
        for kind in KINDS:
            with suppress(ConfigError):
                kind.decode(body)


def test_a_message_of_a_client_has_a_size() -> None:
    """Each kind that a server reads, before it is decoded."""
    for kind in (ScanCommand, Ticket, PutCommand, BatchInfo):
        with pytest.raises(ConfigError, match="bytes, at most 1048576 are taken"):
            kind.decode(b'{"topic": "%s"}' % bytes(1 << 20))


def test_a_commit_of_many_tasks_and_an_answer_of_many_partitions_pass(
    remote: tiered.Store, server: Any
) -> None:
    remote.create_topic("orders", partitions=4)
    staged = [Staged(uuid4().hex, 0, 0) for _ in range(20_000)]
    with StageClient(server.location, ConnectOptions()) as client:
        assert client.commit("orders", "q", 0, staged)
    answer = encode_json({"partitions": ["x" * 1000] * 2000})
    assert decode_answer(answer) == json.loads(answer)
    with pytest.raises(ConfigError, match="bytes, at most"):
        decode_action(b" " * (33 << 20))


def test_another_version_of_the_protocol_is_named() -> None:
    with pytest.raises(ConfigError, match="speaks version 2"):
        ScanCommand.decode(b'{"protocol": 2, "scan": "t"}')

"""The request of an erasure: which records it concerns, and its entry in the ledger. Passes carry it out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from uuid import uuid4

import pyarrow as pa
import pyarrow.types as pt

from ..base.caller import whoami
from ..base.iterables import can_iterate
from ..base.units import to_us
from ..errors import ConfigError, SchemaMismatch
from ..format.document import ERASURES_FEATURE
from ..format.erasure import VALUES_BYTES_MAX, VALUES_MAX, LedgerEntry
from ..reader.filters import stored_values
from ..reader.lineages import lineage_of
from .open_topics import OpenTopic
from .topic_shape import TopicShape

REASON_CHARACTERS_MAX = 1000


def erase(
    topic: OpenTopic,
    column: str | None,
    values: Iterable[object],
    reason: str,
    *,
    rows_end: Callable[[], int],
) -> LedgerEntry:
    """Add an erasure of a topic's records to the ledger; see `Topic.erase`.

    Parameters
    ----------
    rows_end
        Returns the end of the transaction log; 0 if it has no rows.

    Raises
    ------
    ConfigError, SchemaMismatch, ReadOnly, DiskFull, StoreLocked, TieredError
    """
    context = topic.context
    log_end = rows_end()
    context.lifecycle.check_writable()
    if not context.tiers.has_cold:
        raise ConfigError(
            f"the store {context.url} has no bucket, and an erasure rewrites objects; give the store one "
            '(cold="s3://…"), or delete records by delete_before'
        )
    if context.settings.policy_for(topic.name).offload.after is None:
        raise ConfigError(
            f'the policy of topic {topic.name} has offload = "off", and an erasure rewrites objects; set offload.after'
        )
    context.settings.check_erase()
    field = erased_column(topic, column)
    erased = erased_values(field, values)
    text = " ".join(str(reason).split())
    if len(text) > REASON_CHARACTERS_MAX:
        raise ConfigError(f"a reason has at most {REASON_CHARACTERS_MAX} characters")
    topic.flush()
    horizons, lineages = [], []
    for partition in range(topic.partitions):
        writer = topic.writer(partition)
        writer.flush()
        horizons.append(writer.durable_offset)
        writer.roll()
        lineages.append(lineage_of(context.tiers, topic.meta, partition))
    # The very first transaction may have been decided meanwhile, with rows below these horizons.
    log_end = log_end or rows_end()
    # Before the ledger: a release without erasures would bring records back.
    context.catalog.add_feature(ERASURES_FEATURE)
    now_us = context.clock()
    ledger = context.erasures
    assert ledger is not None  # the store is open for writing
    return ledger.add(
        lambda number: LedgerEntry(
            id=uuid4(), number=number, topic=topic.name, topic_id=topic.meta.topic_id, column=field.name,
            values=len(erased), horizons=tuple(horizons), log_end=log_end,
            called_horizons=tuple(horizons), called_log_end=log_end, lineages=tuple(lineages),
            called_lineages=tuple(lineages), reason=text, caller=whoami(),
            called_us=now_us, deadline_us=now_us + to_us(context.settings.erase.within),
        ),
        erased,
    )  # fmt: skip


def erased_column(topic: TopicShape, column: str | None) -> pa.Field:
    """Return the column that an erasure compares: by default the topic's key.

    Raises
    ------
    ConfigError, SchemaMismatch
    """
    name = topic.meta.key_column if column is None else column
    if name is None:
        raise ConfigError(f"topic {topic.name!r} has no key; name the column: erase(column=…, values=…)")
    schema = topic.meta.schema
    if name not in schema.names:
        raise SchemaMismatch(f"topic {topic.name!r} has no column {name!r}; it has {', '.join(schema.names)}")
    field = schema.field(name)
    if pt.is_nested(field.type):
        raise SchemaMismatch(f"column {name!r} is {field.type}; an erasure compares plain values")
    return field


def erased_values(field: pa.Field, given: Iterable[object]) -> pa.Array:
    """Return the values of an erasure as its column stores them, each once.

    Raises
    ------
    ConfigError, SchemaMismatch
    """
    if isinstance(given, (str, bytes)) or not can_iterate(given):
        raise ConfigError(f"an erasure takes a list of values, not {given!r:.80}")
    listed = _listed(given)
    values = list(dict.fromkeys(stored_values(field, [value for value in listed if value is not None])))
    if None in listed or any(value != value for value in values):
        raise ConfigError(
            "an erasure finds records by equal values, and null and NaN equal none: leave them out"
        )
    if not values:
        raise ConfigError("an erasure without values erases nothing; give at least one")
    array = pa.array(values, field.type)
    if array.nbytes > VALUES_BYTES_MAX:
        raise _too_many()
    return array


def _listed(given: Iterable[object]) -> list[object]:
    """Return values as a list; of more than an erasure takes, or without end, only so many are read."""
    if isinstance(given, Sized) and len(given) > VALUES_MAX:
        raise _too_many()
    listed: list[object] = []
    size = 0
    for value in given:
        if isinstance(value, (str, bytes, bytearray, memoryview)):
            size += len(value)
        if len(listed) == VALUES_MAX or size > VALUES_BYTES_MAX:
            raise _too_many()
        listed.append(value)
    return listed


def _too_many() -> ConfigError:
    return ConfigError(
        f"an erasure takes at most {VALUES_MAX:,} values and {VALUES_BYTES_MAX:,} bytes of them; divide them among several "
        "erasures"
    )

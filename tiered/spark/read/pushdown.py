"""Filters that Spark pushes down, as the predicate of a read with the option ``pushdown``.

PySpark 4.1 to 4.3 keeps the pushed filters of one query in the relation of its ``load()``, and applies them to the other
queries of that ``load()``. So the default reader has no `pushFilters`, and Spark applies all filters again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from ...errors import ConfigError, SchemaMismatch
from ...format.predicate import Predicate, conjunction
from ...format.schema import row_schema
from ...reader.filters import parse_filter

_OPERATORS: dict[type[Filter], str] = {
    EqualTo: "==",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    In: "in",
}


def predicate_of(filters: Sequence[Filter], schema: pa.Schema) -> Predicate | None:
    """Return the conjunction of the filters that a scan of these columns can apply. Pure."""
    parts = []
    for item in filters:
        try:
            parts.append(parse_filter(schema, _condition(item, schema)))
        except (ConfigError, SchemaMismatch):
            continue  # Spark applies it alone
    return conjunction(parts)


def _condition(item: Filter, schema: pa.Schema) -> Any:
    """Return a filter of Spark as `Topic.scan` takes it; raise `ConfigError` if the two would not mean the same."""
    if isinstance(item, Not):
        return ("not", _condition(item.child, schema))
    attribute: tuple[str, ...] = getattr(item, "attribute", ())
    if len(attribute) != 1:
        raise ConfigError("a nested field")
    name = attribute[0]
    if isinstance(item, IsNull):
        return (name, "is null")
    if isinstance(item, IsNotNull):
        return (name, "is not null")
    if pt.is_floating(row_schema(schema, [name]).field(0).type):
        raise ConfigError("NaN equals itself in Spark, and is the largest number")
    if isinstance(item, EqualNullSafe):
        return ("and", (name, "is not null"), (name, "==", item.value))
    operator = _OPERATORS.get(type(item))
    if operator is None:
        raise ConfigError(f"{type(item).__name__} has no operator here")
    return (name, operator, item.value)  # type: ignore[attr-defined]

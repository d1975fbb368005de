"""Values that users put into rows, and that fit few columns or none."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)


NAT = np.datetime64("NaT", "us")


NULLS = [None, NAT, float("nan"), pa.scalar(None, pa.string()), pa.scalar(None, pa.timestamp("us"))]


ODD = [
    *NULLS, 5, 5.0, 1.5, np.int64(5), np.float32(1.5), True, np.True_, 1 << 70, 1e300, "text", "ab", "\ud800", b"\xff",
    np.str_("x"), Decimal("1.25"), Decimal("sNaN"), Decimal("1e9"), NOON, NOON.replace(tzinfo=None), NOON.date(),
    np.datetime64("2020-01-01T00:00:00"), [], [1], [None], ["ab"], [("a", "b")], [(0, "b")], [(NAT, "b")], {NAT: "b"},
    {None: "b"}, {0: None}, {float("nan"): "x"}, [{"key": 0, "value": "x"}], [{"key": 0}], [[0, "x"]], [{0, "x"}],
    {"a": NAT}, {"a": NOON.date()}, {"b": 1}, np.array([1, 2]), np.array([1]), object(), memoryview(b"ab"),
]  # fmt: skip

"""The line of each key in a TOML file.

`tomllib` gives no lines, so growing beginnings of the file are parsed; a key stands on the line that first yields it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

# The time grows with the square of the lines.
_LINES_MAX = 2000

Location = tuple[str, ...]


@lru_cache(maxsize=1)
def key_lines(text: str) -> Mapping[Location, int]:
    """Return the line, counted from 1, on which each key and each table begins; nothing beyond 2000 lines.

    The last answer is cached, because each setting of one file needs it.

    Raises
    ------
    tomllib.TOMLDecodeError
    """
    tomllib.loads(text)
    lines = text.split("\n")
    starts: dict[Location, int] = {}
    if len(lines) > _LINES_MAX:
        return starts
    begin = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        begin = begin or number
        try:
            # A statement of TOML ends at the end of a line, so a beginning that parses ends with a whole statement.
            values = tomllib.loads("\n".join(lines[:number]))
        except tomllib.TOMLDecodeError:
            continue
        for location in _locations(values, ()):
            starts.setdefault(location, begin)
        begin = 0
    return starts


def _locations(values: dict[str, Any], above: Location) -> Iterator[Location]:
    for key, value in values.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _locations(value, (*above, key))

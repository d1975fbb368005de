"""On which line of a TOML file each key stands, without a second parser: the beginnings of the file are parsed."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

# Each beginning is parsed anew, so the time grows with the square.
_LINES_MAX = 2000

Location = tuple[str, ...]


@lru_cache(maxsize=1)
def key_lines(text: str) -> Mapping[Location, int]:
    """Return the line, counted from 1, on which each key and each table begins.

    A file with more than 2000 lines gives none. The last answer is kept: every setting asks anew.

    Raises
    ------
    tomllib.TOMLDecodeError
    """
    tomllib.loads(text)
    lines = text.split("\n")
    found: dict[Location, int] = {}
    if len(lines) > _LINES_MAX:
        return found
    begin = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        begin = begin or number
        try:
            # TOML ends a statement at a line's end, so what parses ends with a whole one.
            values = tomllib.loads("\n".join(lines[:number]))
        except tomllib.TOMLDecodeError:
            continue
        for location in _locations(values, ()):
            found.setdefault(location, begin)
        begin = 0
    return found


def _locations(values: dict[str, Any], above: Location) -> Iterator[Location]:
    for key, value in values.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _locations(value, (*above, key))

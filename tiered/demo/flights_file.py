"""The file of example data that comes with the package."""

from __future__ import annotations

from pathlib import Path

from ..errors import ConfigError

_PACKAGE = Path(__file__).resolve().parent.parent


def flights_path() -> Path:
    """Return the path of the example data: 336,776 departures from New York in 2013, as Parquet.

    A wheel carries the file in ``tiered/_data``; a checkout, and an editable installation of one, has
    it in ``examples``.

    Raises
    ------
    ConfigError
        The file is in neither directory.
    """
    for path in (_PACKAGE / "_data" / "flights.parquet", _PACKAGE.parent / "examples" / "flights.parquet"):
        if path.is_file():
            return path
    raise ConfigError("flights.parquet did not come with this installation of tiered; install it again")

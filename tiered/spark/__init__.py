"""Topics in Spark: the fast table, the data source ``tiered``, and a local session to try them in."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .session import session

if TYPE_CHECKING:
    from .parquet_table.fast_table import table
    from .source import TieredDataSource

__all__ = ["TieredDataSource", "session", "table"]

_MODULES = {"TieredDataSource": ".source", "table": ".parquet_table.fast_table"}


def __getattr__(name: str) -> Any:
    """Import the module of a name that needs PySpark at the first use of the name."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_MODULES[name], __name__), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise ConfigError("PySpark is not installed; run: pip install 'tiered[spark]'") from error

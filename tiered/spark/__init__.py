"""Topics in Spark: the data source ``tiered`` and a local session to try it in."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from .session import session

if TYPE_CHECKING:
    from .source import TieredDataSource

__all__ = ["TieredDataSource", "session"]


def __getattr__(name: str) -> Any:
    """Load the data source when it is first asked for: its base class needs PySpark."""
    if name != "TieredDataSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return import_module(".source", __name__).TieredDataSource
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "pyspark":
            raise
        raise ConfigError("PySpark is not installed; run: pip install 'tiered[spark]'") from error

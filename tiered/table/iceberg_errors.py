"""The errors of pyiceberg, as those of this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ColdStorageError, ConfigError, TieredError


@contextmanager
def iceberg_errors(topic: str) -> Iterator[None]:
    """Turn errors of pyiceberg, while it works on the table of a topic, into errors of this package.

    Raises
    ------
    ConfigError
        pyiceberg is not installed.
    ColdStorageError
        pyiceberg failed unexpectedly.
    """
    try:
        yield
    except (TieredError, OSError):
        raise
    except ImportError as error:
        raise ConfigError(f"a table needs pyiceberg ({error}): pip install 'tiered[iceberg]'") from None
    except Exception as error:
        raise ColdStorageError(f"table of {topic}: {type(error).__name__}: {error}") from error

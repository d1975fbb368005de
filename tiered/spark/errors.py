"""Errors of tasks without the stack frames of this package."""

from __future__ import annotations

from ..errors import TieredError


class TerseTracebacks:
    """Removes our own stack frames from the traceback that Spark shows: the message says what to do."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TieredError):
            raise error.with_traceback(None) from None

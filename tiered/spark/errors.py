"""Errors of tasks without the frames of the machinery below them."""

from __future__ import annotations

from ..errors import TieredError


class TerseTracebacks:
    """Leaves our own frames out of the traceback that Spark shows: the message says what to do."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TieredError):
            raise error.with_traceback(None) from None

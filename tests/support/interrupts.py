"""An interrupt at a chosen point of a chosen function."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any


class Interrupted(BaseException):
    """Ctrl-C, but nobody else's."""


@contextmanager
def interrupting(codes: set[CodeType], point: int) -> Iterator[list[int]]:
    """Raise `Interrupted` at point number `point` at which these functions can take a signal.

    That is where CPython looks for signals: at the start of a function, after each call it makes, and at
    each turn of a loop. Yields what is left to count: -1 once it was raised.
    """
    left = [point]
    last: dict[FrameType, str] = {}
    first = "" if sys.version_info < (3, 12) else "RESUME"  # which is not traced any more

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code not in codes:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before, last[frame] = last.get(frame, first), dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before.startswith(("RESUME", "CALL", "JUMP_BACKWARD")):
                left[0] -= 1
                if left[0] == -1:
                    raise Interrupted
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        yield left
    finally:
        sys.settrace(previous)

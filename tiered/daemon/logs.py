"""The log of the daemon: one line for each action, for people or as JSON; repeated warnings are rare."""

from __future__ import annotations

import json
import logging
import re
import threading
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

from ..base.units import approximate_size, printable, printable_json
from ..policies.executor import Outcome

REPEAT_SECONDS = 300.0
_REPEATS_MAX = 1000
_ROOT = "tiered"
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
actions_log = logging.getLogger("tiered.daemon.actions")


class Handler(logging.StreamHandler[TextIO]):
    """The daemon's handler; it keeps the level that its set-up replaced. A class of its own, to find it again."""

    level_before = logging.NOTSET


def set_up_logging(kind: str, stream: TextIO) -> Handler:
    """Send the log records of this package, and warnings of libraries, to `stream`, one line each.

    Parameters
    ----------
    kind
        ``human`` or ``json``.
    """
    handler = Handler(stream)
    handler.setFormatter(JsonLine() if kind == "json" else HumanLine())
    handler.addFilter(RepeatFilter())
    root, ours = logging.getLogger(), logging.getLogger(_ROOT)
    for old in [item for item in root.handlers if isinstance(item, Handler)]:
        take_down_logging(old)
    root.addHandler(handler)
    handler.level_before = ours.level
    ours.setLevel(logging.INFO)
    # The executor logs each failed action, and so does `log_outcome`: keep only those of the executor with a traceback.
    logging.getLogger("tiered.policies.executor").addFilter(_has_traceback)
    return handler


def take_down_logging(handler: Handler) -> None:
    """Undo `set_up_logging`."""
    logging.getLogger().removeHandler(handler)
    logging.getLogger(_ROOT).setLevel(handler.level_before)
    logging.getLogger("tiered.policies.executor").removeFilter(_has_traceback)


def _has_traceback(record: logging.LogRecord) -> bool:
    return record.exc_info is not None


def log_outcome(outcome: Outcome) -> None:
    """Log the outcome of one action."""
    action = outcome.action
    topic, partition, offsets = action.location()
    fields: dict[str, Any] = {
        "action": action.kind,
        "topic": None if action.whole_store else action.topic,
        "partition": None if action.whole_store else action.partition,
        "base_offset": None if action.whole_store else action.base_offset,
        "end_offset": None if action.whole_store else action.end_offset,
        "bytes": outcome.bytes,
        "seconds": round(outcome.seconds, 6),
        "reason": action.reason,
        "outcome": outcome.result,
    }
    where = "" if action.whole_store else f" {topic}/{partition} {offsets}"
    text = f"{action.kind}{where} {outcome.result}"
    if outcome.result == "done":
        text += f": {approximate_size(outcome.bytes)} in {outcome.seconds:.2f} s ({action.reason})"
        actions_log.info(text, extra={"fields": fields})
        return
    fields["error" if outcome.result == "failed" else "why"] = outcome.message
    level = logging.WARNING if outcome.result == "failed" else logging.INFO
    text += f": {outcome.message} ({action.reason})"
    # A pass logs the same error again later; the filter counts both as one.
    actions_log.log(level, text, extra={"fields": fields, "repeats": outcome.message})


class RepeatFilter(logging.Filter):
    """A filter that passes the same warning once in `seconds`, with the number of repeats it held back.

    Two warnings are the same if their texts are; names of objects are ignored, because each try makes new ones. Lines
    below the level of a warning always pass.
    """

    def __init__(
        self, seconds: float = REPEAT_SECONDS, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._seconds = seconds
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._repeats: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Decide whether a record passes, and set its number of held back repeats."""
        key = self._key(record)
        if key is None:
            return True
        now = self._monotonic()
        with self._lock:
            since, held = self._repeats.get(key, (float("-inf"), 0))
            if now - since < self._seconds:
                self._repeats[key] = since, held + 1
                return False
            self._repeats.pop(key, None)
            self._repeats[key] = now, 0  # the newest last
            while len(self._repeats) > _REPEATS_MAX:
                del self._repeats[next(iter(self._repeats))]
        record.held_back = held
        return True

    def _key(self, record: logging.LogRecord) -> str | None:
        text = self._repeat_text(record)
        return None if text is None else _UUID.sub("", text)

    def _repeat_text(self, record: logging.LogRecord) -> str | None:
        text = getattr(record, "repeats", None)
        if text is not None:
            return str(text)
        if record.levelno < logging.WARNING:
            return None
        if record.name == "tiered.passes" and isinstance(record.args, tuple) and len(record.args) == 2:
            return str(record.args[1])  # the error without the kind of pass
        return f"{record.name}: {record.getMessage()}"


class HumanLine(logging.Formatter):
    """``2027-01-31T12:00:00.000Z info offload orders/0 [0, 1000) done: 12MiB in 0.80 s (…)``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        text = f"{_time(record)} {record.levelname.lower()} {_one_line(record.getMessage())}"
        if record.exc_info:
            last = traceback.extract_tb(record.exc_info[2])[-1:]
            where = "".join(f" at {item.filename}:{item.lineno}" for item in last)
            text += _one_line(f": {type(record.exc_info[1]).__name__}: {record.exc_info[1]}{where}")
        return printable(text) + _repeat_note(record)


class JsonLine(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the fields of an action."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        values: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            values["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        if getattr(record, "held_back", 0):
            values["held_back"] = getattr(record, "held_back", 0)
        return printable_json(json.dumps(values, ensure_ascii=False, default=str))


def _time(record: logging.LogRecord) -> str:
    when = datetime.fromtimestamp(record.created, UTC)
    return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _repeat_note(record: logging.LogRecord) -> str:
    held = getattr(record, "held_back", 0)
    return f" (and {held} times more since it was last said)" if held else ""

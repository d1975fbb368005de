"""The server's side of staging: rows that wait for a commit. `client.staging` is the client's side.

======================  ============================================================================================
call                    message
======================  ============================================================================================
``do_put``, ``stage``   `PutCommand` with options ``query`` and ``attempt``; one answer at the end: ``rows``, ``bytes``
action ``commit``       ``topic``, ``query``, ``batch``, ``staged``: list of ``attempt``, ``rows``, ``bytes``; answer:
                        ``appended``, false where the batch was in the log already
action ``abort``        ``topic``, ``query``, ``attempts``
======================  ============================================================================================

An empty ``topic`` is for rows with a column ``topic``, which names the topic of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ...errors import ConfigError
from ...transactions.positions import check_not_own
from ...transactions.staged_rows import Staged
from ..wire.put_messages import PutCommand
from ..wire.topic_ref import resolve_topic
from ..wire.values import count, dump, text
from .append import Work, answered, chunks
from .safe_batch import safe_batch

if TYPE_CHECKING:
    from ...store.local_store import LocalStore


def stage_stream(store: LocalStore, command: PutCommand, reader: Any, writer: Any, work: Work) -> None:
    """Stage the rows of one attempt; a stream that is cut off leaves nothing behind that could be committed."""
    if command.topic:
        check_not_own(command.topic)
        resolve_topic(store, command.topic, command.topic_id)
    options = command.options or {}

    def batches() -> Iterator[pa.RecordBatch]:
        for batch, _ in chunks(reader):
            with work():
                safe = None if batch is None else safe_batch(batch)
            if safe is not None:
                yield safe

    try:
        query, attempt = text(options.get("query")), text(options.get("attempt"))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"rows are staged for a query, as an attempt: {error}") from None
    staged = store.staging.stage(command.topic or None, query, attempt, batches())
    if not answered(writer, dump({"rows": staged.rows, "bytes": staged.bytes})):
        # The client does not know that the rows are staged, so no commit will name them.
        store.staging.abort(command.topic or None, query, [attempt])


def _commit(store: LocalStore, values: Mapping[str, Any]) -> dict[str, Any]:
    """Put staged rows into the log as one batch of a query, once; durable when it returns."""
    staged = [
        Staged(text(item["attempt"]), count(item["rows"]), count(item["bytes"])) for item in values["staged"]
    ]
    appended = store.staging.commit(
        text(values["topic"]) or None, text(values["query"]), count(values["batch"]), staged
    )
    return {"appended": appended}


def _abort(store: LocalStore, values: Mapping[str, Any]) -> dict[str, Any]:
    """Drop staged rows."""
    attempts = [text(item) for item in values["attempts"]]
    store.staging.abort(text(values["topic"]) or None, text(values["query"]), attempts)
    return {}


STAGE_ACTIONS = {"commit": _commit, "abort": _abort}

"""The client's side of staging: one call sends rows, and another call commits them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from ...errors import Backpressure, ServerUnavailable, TieredError
from ...format.block_rows import split_batch
from ...format.sizes import bytes_bound
from ...format.topic_meta import TopicMeta
from ...transactions.staged_rows import Staged
from ..wire.flight_errors import client_errors
from ..wire.options import ConnectOptions
from ..wire.put_messages import PutCommand
from ..wire.values import count, decode_answer
from .connection import Connection

# A batch of some thousand large rows is sent in pieces, so that neither side holds much of it in memory.
_PIECE_BYTES = 8 << 20
_PIECES_KEPT = 4


class _Replayed:
    """The pieces of a stream, which can be iterated again while few were taken. A server refuses a stream before it has many.

    Attributes
    ----------
    complete
        Whether a new iteration gives all pieces that were taken.
    """

    def __init__(self, pieces: Iterator[pa.RecordBatch]) -> None:
        self._rest = pieces
        self._taken: list[pa.RecordBatch] = []
        self.complete = True

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield from tuple(self._taken)
        for piece in self._rest:
            if self.complete and len(self._taken) < _PIECES_KEPT:
                self._taken.append(piece)
            else:
                self.complete = False
                self._taken.clear()
            yield piece


class StageClient:
    """Stages and commits at a server; also a context manager.

    Every call may be repeated: rows without a commit are swept, and a repeated commit is no error.
    """

    def __init__(self, location: str, options: ConnectOptions) -> None:
        self._connection = Connection(location, options)
        self.location = self._connection.location

    def describe(self, topic: str) -> TopicMeta:
        """Return the document of a topic.

        Raises
        ------
        TopicNotFound, ServerUnavailable, ConfigError
        """
        answer = self._connection.action("describe_topic", {"topic": topic})
        return TopicMeta.from_json(answer["topic"], where=self.location)

    def stage(
        self,
        meta: TopicMeta | None,
        query: str,
        attempt: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
    ) -> Staged:
        """Send the rows of one attempt. When it returns they are durable at the server, and no reader sees them.

        Parameters
        ----------
        meta
            The topic of all rows; None: the column ``topic`` names that of each.

        Raises
        ------
        SchemaMismatch, RecordTooLarge, DiskFull, TopicNotFound, ServerUnavailable, Backpressure
            The attempt cannot be committed; try again under another name.
        """
        pieces = _Replayed(
            piece for batch in batches for piece in split_batch(batch, _PIECE_BYTES, bytes_bound)
        )
        command = PutCommand(
            meta.name if meta else "",
            meta.topic_id if meta else None,
            kind="stage",
            options={"query": query, "attempt": attempt},
        )
        return self._connection.retried(
            lambda: self._sent(command, attempt, schema, pieces),
            lambda error: isinstance(error, Backpressure) and pieces.complete,
        )

    def _sent(
        self, command: PutCommand, attempt: str, schema: pa.Schema, pieces: Iterable[pa.RecordBatch]
    ) -> Staged:
        sent = 0
        writer, reader = self._connection.put(command.encode(), schema)
        try:
            # Errors of the iterator of batches pass unchanged.
            for piece in pieces:
                with self._stream_errors(writer):
                    writer.write_batch(piece)
                sent += piece.num_rows
            with self._stream_errors(writer):
                writer.done_writing()
                answer = reader.read()
                writer.close()
        except BaseException:
            with suppress(pa.ArrowException, OSError):
                writer.close()
            raise
        if answer is None:
            raise ServerUnavailable(f"{self.location} ended without an answer")
        values = decode_answer(answer)
        if values.get("rows") != sent:
            raise TieredError(f"{self.location} staged {values.get('rows')} rows of {sent}")
        return Staged(attempt, sent, count(values["bytes"]))

    @contextmanager
    def _stream_errors(self, writer: Any) -> Iterator[None]:
        """Raise the server's reason for a stream that broke; the write itself does not have it."""
        with client_errors(self.location):
            try:
                yield
            except (pa.ArrowException, OSError):
                writer.close()
                raise

    def commit(self, topic: str | None, query: str, batch: int, staged: Sequence[Staged]) -> bool:
        """Put staged rows into the log; see `Staging.commit`. After a lost connection the call is repeated.

        Raises
        ------
        ServerUnavailable
            The outcome is unknown; repeat the same commit.
        TieredError
        """
        body = {
            "topic": topic or "",
            "query": query,
            "batch": batch,
            "staged": [item.to_json() for item in staged],
        }
        return bool(self._connection.action("commit", body, seconds=None)["appended"])

    def abort(self, topic: str | None, query: str, attempts: Sequence[str]) -> None:
        """Drop staged rows."""
        body = {"topic": topic or "", "query": query, "attempts": list(attempts)}
        self._connection.action("abort", body)

    def close(self) -> None:
        """End the connection."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

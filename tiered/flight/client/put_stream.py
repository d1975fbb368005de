"""One stream of batches to a server, and their answers; errors of Flight end here."""

from __future__ import annotations

import logging

import pyarrow as pa
import pyarrow.flight as fl

from ...errors import ServerUnavailable, TieredError
from ...format.producers import PASSING_EPOCH
from ...format.schema import TIMESTAMP
from ...format.topic_meta import TopicMeta
from ..wire.flight_errors import from_flight
from ..wire.put_messages import Ack, BatchInfo, PutCommand
from .connection import Connection
from .pending_batch import PendingBatch

log = logging.getLogger("tiered.flight")


class PutStream:
    """One stream of batches and their answers."""

    def __init__(self, connection: Connection, meta: TopicMeta, incarnation: str) -> None:
        self.schema_id = meta.schema_id
        self._location = connection.location
        self._schema = pa.schema([pa.field("timestamp", TIMESTAMP), *meta.schema])
        command = PutCommand(meta.name, meta.topic_id, options={"incarnation": incarnation})
        self._writer, self._reader = connection.put(command.encode(), self._schema)

    def send(self, pile: PendingBatch, producer: str) -> None:
        """Write one pile; its answer comes in its turn."""
        name, epoch, partitions = pile.session or (producer, PASSING_EPOCH, None)
        info = BatchInfo(
            pile.partition,
            pile.sync,
            name,
            epoch,
            pile.number,
            session=pile.session is not None,
            partitions=partitions,
        )
        batch = pile.to_batch(self._schema)
        try:
            self._writer.write_with_metadata(batch, info.encode())
        except (pa.ArrowException, OSError) as error:
            raise self._why(error) from None

    def answer(self) -> Ack:
        """Return the next answer."""
        try:
            data = self._reader.read()
        except (pa.ArrowException, OSError) as error:
            raise self._why(error) from None
        if data is None:
            raise self._why(None)
        return Ack.decode(data)

    def _why(self, error: BaseException | None) -> TieredError:
        """Return why the stream ended: what the server said at the end of it, else what was seen here."""
        try:
            self._writer.close()
        except pa.ArrowException as final:
            return from_flight(final, self._location)
        if isinstance(error, fl.FlightError):
            return from_flight(error, self._location)
        # Also where a write met the end of it: the server gave the reason in an answer that nobody read yet.
        return ServerUnavailable(f"{self._location} ended the stream")

    def close(self) -> None:
        """End the stream; what it has to say by now is of no use."""
        try:
            self._writer.close()
        except (pa.ArrowException, OSError) as error:
            log.debug("%s: the stream ended with %s", self._location, error)

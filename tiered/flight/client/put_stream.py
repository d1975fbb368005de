"""`PutStream`: one stream of batches to a server, and its answers; raises errors of this package instead of Flight's."""

from __future__ import annotations

import logging
from functools import lru_cache

import pyarrow as pa
import pyarrow.flight as fl

from ...errors import ServerUnavailable, TieredError
from ...format.producers import PASSING_EPOCH
from ...format.schema import TIMESTAMP
from ...format.topic_meta import TopicMeta
from ..wire.flight_errors import from_flight
from ..wire.packed_rows import RowPacker, decode_answer, join_rows
from ..wire.put_messages import Ack, BatchInfo, PutCommand, Session
from .connection import Connection
from .pending_batch import PendingBatch

log = logging.getLogger("tiered.flight")


class PutStream:
    """One stream of batches and its answers.

    Parameters
    ----------
    packs
        Whether the server reads packed rows.
    """

    def __init__(self, connection: Connection, meta: TopicMeta, incarnation: str, *, packs: bool) -> None:
        self.schema_id = meta.schema_id
        self._packs = packs
        self._packer = RowPacker(meta.schema)
        self._location = connection.location
        self._schema = pa.schema([pa.field("timestamp", TIMESTAMP), *meta.schema])
        command = PutCommand(meta.name, meta.topic_id, options={"incarnation": incarnation})
        self._writer, self._reader = connection.put(command.encode(), self._schema)

    def send(self, batch: PendingBatch, producer: str) -> None:
        """Write a batch; the answers come in the order of the batches.

        Raises
        ------
        TieredError
            The stream has ended.
        """
        try:
            self.write(batch, producer)
        except (pa.ArrowException, OSError) as error:
            raise self._why(error) from None

    def write(self, batch: PendingBatch, producer: str) -> None:
        """Write a batch without asking for the reason of an error.

        Raises
        ------
        pyarrow.ArrowException, OSError
        """
        packed = batch.to_packed(self._packer) if self._packs else None
        if packed is not None:
            info = _info_of(batch, producer, 0)
            self._writer.write_metadata(join_rows(info, packed))
        else:
            info = _info_of(batch, producer, batch.number)
            self._writer.write_with_metadata(batch.to_batch(self._schema, self._packer), info)

    def answer(self) -> Ack:
        """Wait for the next answer.

        Raises
        ------
        TieredError
            The stream has ended.
        """
        try:
            data = self._reader.read()
        except (pa.ArrowException, OSError) as error:
            raise self._why(error) from None
        if data is None:
            raise self._why(None)
        return decode_answer(data)

    def _why(self, error: BaseException | None) -> TieredError:
        """Return why the stream ended: the server's reason if it gave one, else the error on this side."""
        try:
            self._writer.close()
        except pa.ArrowException as final:
            return from_flight(final, self._location)
        if isinstance(error, fl.FlightError):
            return from_flight(error, self._location)
        # A write to an ended stream, too: the reason is in an answer that was not read yet.
        return ServerUnavailable(f"{self._location} ended the stream")

    def close(self) -> None:
        """End the stream, and ignore its final status."""
        try:
            self._writer.close()
        except (pa.ArrowException, OSError) as error:
            log.debug("%s: the stream ended with %s", self._location, error)


def _info_of(batch: PendingBatch, producer: str, sequence: int | None) -> bytes:
    if batch.expected_offset is None:
        return _info(batch.partition, batch.sync, producer, sequence, batch.session)
    return BatchInfo(
        batch.partition, batch.sync, producer, PASSING_EPOCH, sequence, expected_offset=batch.expected_offset
    ).encode()


@lru_cache(maxsize=64)
def _info(
    partition: int | None, sync: bool | None, producer: str, sequence: int | None, session: Session | None
) -> bytes:
    name, epoch, partitions = session or (producer, PASSING_EPOCH, None)
    return BatchInfo(
        partition, sync, name, epoch, sequence, session=session is not None, partitions=partitions
    ).encode()

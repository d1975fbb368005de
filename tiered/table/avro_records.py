"""Avro files of records that pyiceberg's writers encode.

pyiceberg encodes in Python and takes a tenth of a millisecond and more for a record. Most records of a file were in the file
before, so their bytes are kept.
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

_MAGIC = b"Obj\x01"
_BLOCK_RECORDS = 100


class AvroRecords:
    """How records of one kind are written; not thread-safe.

    Parameters
    ----------
    stored, given
        pyiceberg's schema of the file, and that of the records in memory.
    name
        The name of the record in the file's schema.
    """

    def __init__(self, stored: Any, given: Any, name: str) -> None:
        from pyiceberg.avro.resolver import resolve_writer
        from pyiceberg.utils.schema_conversion import AvroSchemaConversion

        self._writer = resolve_writer(record_schema=given, file_schema=stored)
        self._schema = json.dumps(AvroSchemaConversion().iceberg_to_avro(stored, schema_name=name))
        self._encoded: dict[int, tuple[Any, bytes]] = {}

    def file(
        self, records: Sequence[Any], about: Mapping[str, str], *, changing: Sequence[Any] = ()
    ) -> bytes:
        """Return a file of some records.

        Blocks of many records take a quarter of the bytes of pyiceberg's manifests, which have blocks of one.

        Parameters
        ----------
        about
            The file's metadata besides schema and codec.
        changing
            Records among them that the caller changes afterwards.
        """
        from pyiceberg.avro.encoder import BinaryEncoder

        # A record is kept with its bytes: no other one gets its id.
        encoded = {id(record): (record, self._known(record)) for record in records}
        changed = set(map(id, changing))
        self._encoded = {key: item for key, item in encoded.items() if key not in changed}
        meta = {**about, "avro.schema": self._schema, "avro.codec": "deflate"}
        out, sync = io.BytesIO(), os.urandom(16)
        encoder = BinaryEncoder(out)
        encoder.write(_MAGIC)
        encoder.write_int(len(meta))
        for name, value in meta.items():
            encoder.write_utf8(name)
            encoder.write_utf8(value)
        encoder.write_int(0)
        encoder.write(sync)
        for start in range(0, len(records), _BLOCK_RECORDS):
            block = records[start : start + _BLOCK_RECORDS]
            encoder.write_int(len(block))
            encoder.write_bytes(_deflated(b"".join(encoded[id(record)][1] for record in block)))
            encoder.write(sync)
        return out.getvalue()

    def _known(self, record: Any) -> bytes:
        from pyiceberg.avro.encoder import BinaryEncoder

        known = self._encoded.get(id(record))
        if known is not None:
            return known[1]
        out = io.BytesIO()
        self._writer.write(BinaryEncoder(out), record)
        return out.getvalue()


def _deflated(data: bytes) -> bytes:
    deflate = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return deflate.compress(data) + deflate.flush()

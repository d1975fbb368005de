"""The validation of a batch from the network; no other code of the server reads a batch before it.

Arrow's reader puts arrays over the bytes that it was sent. Code that trusts a wrong offset, index or length reads or writes
anywhere in memory. That ends the process of the writer, with the records of all clients.
"""

from __future__ import annotations

import pyarrow as pa

from ...errors import RecordTooLarge, SchemaMismatch
from ...format.arrow_layouts import to_plain
from ..wire.batch_size import check_columns, plain_bytes

# Twice the largest record; the batches of a client are far smaller.
BATCH_BYTES_MAX = 72 << 20


def safe_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the values of a client's batch in plain types, validated.

    Raises
    ------
    SchemaMismatch
        The buffers are invalid, or a type is not accepted over the network.
    RecordTooLarge
    """
    check_columns(batch.schema)
    # The size of the received buffers comes first: later code trusts their offsets and lengths.
    size = batch.get_total_buffer_size()
    try:
        if size <= BATCH_BYTES_MAX:
            batch.validate(full=True)
            size = max(size, plain_bytes(batch))
    except (pa.ArrowException, IndexError) as error:
        raise SchemaMismatch(f"the batch is damaged: {str(error).splitlines()[0]}") from None
    if size > BATCH_BYTES_MAX:
        raise RecordTooLarge(
            f"a batch of {size} bytes is over the limit of {BATCH_BYTES_MAX}: send less at once"
        )
    # The validation skips the null rows of views.
    return pa.RecordBatch.from_arrays(list(map(to_plain, batch.columns)), batch.schema.names)

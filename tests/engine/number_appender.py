"""A process that appends numbers for ever, and says which are acknowledged; it is there to be killed.

Run as ``python -m tests.engine.number_appender PATH FIRST``.
"""

from __future__ import annotations

import sys

import pyarrow as pa

import tiered

TOPIC = "numbers"
SETTINGS = tiered.Settings.model_validate(
    {
        "store": {"sync_interval": "5ms", "block_bytes": 4096},
        "policies": {"default": {"roll": {"bytes": "64KiB"}}},
    }
)


def key_of(number: int) -> bytes:
    return b"k%d" % (number % 7)


def main(path: str, first: int) -> None:
    with tiered.open(path, settings=SETTINGS) as store:
        topic = store.create_topic(TOPIC, partitions=3, exist_ok=True)
        producer = topic.producer("source")
        number = first
        while True:
            for _ in range(150):
                producer.append(b"%d" % number, key=key_of(number), sequence=number)
                number += 1
            numbers = range(number, number + 400)
            table = pa.table({"key": [key_of(n) for n in numbers], "value": [b"%d" % n for n in numbers]})
            producer.append_batch(table, sequence=number)
            number += 400
            producer.flush()
            print(number, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

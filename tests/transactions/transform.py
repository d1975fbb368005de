"""A process that reads `orders` and writes `totals` and `audit`: output and position in one transaction.

It says ``committed`` after each commit, until it is killed.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa

import tiered
from tests.support.stores import stepwise

TOTALS = pa.schema([("order", pa.int64()), ("sum", pa.int64())])


def opened(root: Path) -> tiered.Store:
    store = tiered.open(root, settings=stepwise({"sync_interval": "10ms"}, offload="off"))
    store.create_topic("orders", partitions=2, exist_ok=True)
    store.create_topic("totals", partitions=3, schema=TOTALS, key="order", exist_ok=True)
    store.create_topic("audit", exist_ok=True)
    return store


def transform(store: tiered.Store, consumer: tiered.Consumer) -> int:
    """Carry everything that can be read over; return how many orders that were."""
    done = 0
    while batches := consumer.poll(timeout=0, max_records=7):
        with store.transaction("transform") as transaction:
            for batch in batches:
                orders = [int(value) for value in batch.column("value").to_pylist()]
                transaction.append_many("totals", [{"order": n, "sum": 3 * n} for n in orders])
                transaction.append("audit", ",".join(map(str, orders)).encode())
                done += len(orders)
            transaction.commit_position(consumer)
        print("committed", flush=True)
    return done


def main(root: Path) -> None:
    with opened(root) as store:
        producer = store.topic("orders").producer("source")
        with store.topic("orders").consumer("transform") as consumer:
            while True:
                for number in range(producer.next_sequence, producer.next_sequence + 10):
                    producer.append(b"%d" % number, sequence=number, partition=number % 2)
                store.flush()
                transform(store, consumer)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

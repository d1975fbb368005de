"""A process that commits one transaction after the other over two topics, until it is killed."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import tiered
from tests.support.stores import stepwise
from tiered.transactions import log_renewal

TOPICS = {"a": 3, "b": 2}


def opened(root: Path, **options: Any) -> Any:
    return tiered.open(root, settings=stepwise({"sync_interval": "5ms"}, offload="off"), **options)


def transact(store: Any, number: int) -> None:
    """Append a number to each partition."""
    with store.transaction() as transaction:
        for topic, partitions in TOPICS.items():
            for partition in range(partitions):
                transaction.append(topic, b"%d" % number, partition=partition)


def main(root: Path) -> None:
    log_renewal.RENEW_RECORDS_MIN = 100
    with opened(root) as store:
        print("ready", flush=True)
        for number in range(store.topic("a").offsets()[0].end, 1 << 30):
            transact(store, number)
            time.sleep(
                0.002
            )  # so that the reader looks at a log of some hundred records, not of many thousand


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""A process that appends, erases, tiers and sweeps until it is killed; each line on its standard output is a fact.

Arguments: the store's directory, the bucket's URL, a seed. Lines: ``appending``, key and number; ``flushed``, once all of
these are durable; ``began`` and a key; ``erased``, the erasure's number and the key, once the call returned.
"""

from __future__ import annotations

import random
import sys
from contextlib import suppress

import tiered

SETTINGS = {
    "store": {"sync_interval": "1h"},
    "policies": {
        "default": {
            "offload": {"after": "0s", "tail_interval": "1s"}, "local_retention": {"age": "1s"},
            "compress": {"after": "1s"}, "merge": {"after": "1s", "target_bytes": "64KiB"}, "scrub": {"every": "off"},
        }
    },
    "sweep": {"grace": "0s", "every": "1s"},
}  # fmt: skip


def canary(key: str, number: int) -> bytes:
    """What each record of a key holds, and no other."""
    return f"<{key}-{key}-{key}> {number}".encode()


def main(path: str, url: str, seed: str) -> None:
    # A line is in the file before what it announces begins.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    dice = random.Random(seed)
    settings = tiered.Settings.model_validate(SETTINGS)
    with tiered.open(path, cold=url, settings=settings) as store:
        topic = store.create_topic("t", partitions=2, exist_ok=True)
        number = dice.randrange(1 << 40) << 20
        keys = [f"{seed}.{at}" for at in range(3)]
        while True:
            match dice.choices(["append", "erase", "roll", "tier", "sweep", "transact"], [8, 1, 2, 6, 2, 1])[
                0
            ]:
                case "append":
                    for _ in range(dice.randrange(1, 30)):
                        number += 1
                        key = dice.choice(keys)
                        print("appending", key, number)
                        topic.append(canary(key, number), key=key)
                    topic.flush()
                    print("flushed")
                case "transact":
                    number += 1
                    key = dice.choice(keys)
                    print("appending", key, number)
                    with store.transaction() as transaction:
                        transaction.append("t", canary(key, number), key=key)
                    topic.flush()
                    print("flushed")
                case "erase":
                    key = keys.pop(0)
                    number += 1
                    keys.append(f"{seed}.{number}")
                    print("began", key)
                    erasure = topic.erase([key])
                    print("erased", erasure.number, key)
                case "roll":
                    topic.roll()
                case "tier":
                    with suppress(tiered.ColdStorageError):
                        store.tier()
                case "sweep":
                    store.sweep()


if __name__ == "__main__":
    main(*sys.argv[1:])

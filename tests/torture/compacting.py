"""A process that appends states of keys, deletes and erases keys, and compacts, until it is killed.

Arguments: the store's directory, the bucket's URL, a seed, the first number. Lines on its standard output: ``state``, key and
number, before that is appended; ``deleted`` likewise for a tombstone; ``flushed``, once all of these are durable; ``erasing`` and
a key, before its records so far are erased.
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
            "compact_keys": {"after": "0s", "dirty": 1e-9, "keep_tombstones": "1s"},
        }
    },
    "sweep": {"grace": "0s", "every": "1s"},
}  # fmt: skip
KEYS = [f"key-{number}" for number in range(12)]


def main(path: str, url: str, seed: str, first: str) -> None:
    # A line is in the file before what it announces begins.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    dice, number = random.Random(seed), int(first)
    settings = tiered.Settings.model_validate(SETTINGS)
    with tiered.open(path, cold=url, settings=settings) as store:
        topic = store.create_topic("t", partitions=2, exist_ok=True)
        while True:
            match dice.choices(["append", "roll", "tier", "sweep", "erase"], [8, 4, 8, 2, 0.3])[0]:
                case "append":
                    for _ in range(dice.randrange(1, 30)):
                        number += 1
                        key = dice.choice(KEYS)
                        gone = dice.random() < 0.3
                        print("deleted" if gone else "state", key, number)
                        topic.append(None if gone else b"%d" % number, key=key)
                    topic.flush()
                    print("flushed")
                case "roll":
                    topic.roll()
                case "tier":
                    with suppress(tiered.ColdStorageError):
                        store.tier()
                case "sweep":
                    store.sweep()
                case "erase":
                    key = dice.choice(KEYS)
                    print("erasing", key)
                    topic.erase([key])


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A process whose threads append conditionally for ever, and say what is acknowledged; it is there to be killed.

Run as ``python -m tests.engine.conditional_appender PATH LIFE``.
"""

from __future__ import annotations

import os
import sys
import threading

import tiered

TOPIC = "numbers"
SETTINGS = tiered.Settings.model_validate(
    {
        "store": {"sync_interval": "5ms", "block_bytes": 4096},
        "policies": {"default": {"roll": {"bytes": "16KiB"}, "offload": "off"}},
    }
)


def main(path: str, life: str) -> None:
    with tiered.open(path, settings=SETTINGS) as store:
        topic = store.create_topic(TOPIC, exist_ok=True)
        first = topic.offsets()[0].end

        def run(name: int) -> None:
            end, turn = first, 0
            while True:
                turn += 1
                value = f"{life}:{name}:{turn}".encode()
                try:
                    end = topic.append(value, sync=True, expected_offset=end).offset + 1
                except tiered.Conflict as error:
                    end = error.end
                else:
                    os.write(1, b"%d %s\n" % (end - 1, value))

        threads = [threading.Thread(target=run, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:3])

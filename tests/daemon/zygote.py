"""The zygote of the roles of this folder: a daemon, and writers beside it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import tiered
from tests.support import zygote
from tiered.daemon.logs import set_up_logging
from tiered.daemon.service import Daemon

# Nobody lives on where a test forgot to end it.
SECONDS_MAX = 60.0


def daemon(journal: Any, config: str, log: str) -> None:
    """What ``tiered daemon --log json`` does, its log in a file."""
    with Path(log).open("a", buffering=1) as stream:
        set_up_logging("json", stream)
        code = Daemon(lambda: tiered.Settings.load(config)).run()
        journal("exit", code)


def opened(config: str) -> tuple[tiered.Store, tiered.Topic]:
    settings = tiered.Settings.load(config)
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            store = tiered.open(settings.store.path, settings=settings)
            return store, store.create_topic("t", exist_ok=True)
        except tiered.StoreLocked:  # the one before is dying
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def appender(journal: Any, config: str, life: int) -> None:
    """Append until killed; note what is durable, and look now and then whether all of it is there, once, in order."""
    _, topic = opened(config)
    deadline = time.monotonic() + SECONDS_MAX
    number = 0
    while time.monotonic() < deadline:
        journal("ack", f"{life}.{number}", topic.append(b"%d.%d" % (life, number), sync=True).offset)
        number += 1
        if number % 20 == 0:
            journal.word("going")
        if number % 50 == 0:
            offsets = topic.scan().to_arrow()["offset"].to_pylist()
            if offsets != list(range(len(offsets))):
                raise AssertionError(f"a scan beside the daemon gives {offsets}")
        time.sleep(0.002)


def idler(journal: Any, config: str) -> None:
    """Append some, then do nothing but hold the lock until all but the newest file is gone; then read and append."""
    store, topic = opened(config)
    topic.append_many([b"%d" % number for number in range(100)])
    topic.flush()
    directory = Path(store.url, "topics", "t", "0")
    first = directory / f"{0:020}-0.log"
    journal.word("idle")
    deadline = time.monotonic() + SECONDS_MAX
    while first.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    topic.opened.writers[0].recent.clear()  # or memory would answer
    scan = topic.scan()
    journal("tiers", *sorted({str(split.tier.value) for split in scan.splits()}))
    topic.append(b"100", sync=True)
    found = topic.scan().to_arrow()["value"].to_pylist()
    journal("read", found == [b"%d" % number for number in range(101)])
    store.close()


if __name__ == "__main__":
    zygote.main({"daemon": daemon, "appender": appender, "idler": idler})

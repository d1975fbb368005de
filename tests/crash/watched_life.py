"""A short life of a real store, run as a program whose system calls are watched: ``watched_life.py DIRECTORY [STEP]``.

STEP names a protective step that is taken away, so that the test can see that it is missed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import tiered
from tests.crash.system_calls import MARKS
from tiered.warm import document_file, filesystem

SETTINGS = tiered.Settings.model_validate(
    {
        "store": {"sync": "interval", "sync_interval": "1h"},
        "policies": {
            "default": {
                "compress": {"codec": "zstd", "after": "0s"},
                "offload": {"after": "0s", "tail_interval": "off"},
                "local_retention": {"age": "0s"},
            }
        },
    }
)


def mark(name: str) -> None:
    """Tell whoever watches where the program is."""
    os.access(MARKS + name, os.F_OK)


def take_away(step: str) -> None:
    """Replace a protective step by nothing."""
    if step == "fdatasync":
        filesystem.sync_data = lambda fd: None
    elif step == "fsync of directories":
        filesystem.OsFileSystem.sync_directory = lambda self, path: None  # type: ignore[method-assign]
    elif step == "sync of documents":

        def write_plainly(fs: filesystem.FileSystem, path: Path, data: bytes) -> None:
            temporary = path.with_name(f".{path.name}.tmp")
            temporary.write_bytes(data)
            fs.rename(temporary, path)
            fs.sync_directory(path.parent)

        document_file.write_atomically = write_plainly  # type: ignore[attr-defined]
    else:
        raise SystemExit(f"no such step: {step}")


def live(root: Path) -> None:
    """Append, flush, roll, re-encode, offload, evict, delete, and open again, with a mark after each."""
    with tiered.open(root / "store", cold=f"file://{root}/bucket", settings=SETTINGS) as store:
        topic = store.create_topic("events")
        mark("durable topic")
        topic.append(b"a record", sync=True)
        mark("durable append")
        topic.append(b"another")
        topic.flush()
        mark("durable flush")
        topic.append_many([b"x" * 100] * 50)
        topic.flush()
        mark("durable batch")
        topic.roll()
        mark("durable roll")
        topic.append(b"after the roll", sync=True)
        mark("durable append after the roll")
        topic.roll()
        topic.append(b"keeps the end", sync=True)
        mark("durable before tiering")
        store.tier()
        mark("durable tiering")
        topic.delete_before(52)
        mark("durable deletion")
        store.tier()
        mark("durable expiry")
    mark("durable close")
    with tiered.open(root / "store", cold=f"file://{root}/bucket", settings=SETTINGS) as store:
        store.topic("events").append(b"once more", sync=True)
        mark("durable reopening")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        take_away(sys.argv[2])
    live(Path(sys.argv[1]))

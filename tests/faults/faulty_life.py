"""The scripted life of a topic over a store whose chosen operations fail."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from tests.faults.workload import Life, Violation
from tests.support.budget import LONG_RUN
from tests.support.faulty_store import FaultyStore, Operation
from tiered.cold.object_store.connect import open_object_store
from tiered.format.manifest_codec import decode_head

SETTLED_BY_READING = ("answer lost", "repeated", "late by 1", "late by 3", "late by 9")


def live(faults: Mapping[int, str], kind: str = "memory") -> tuple[Life, FaultyStore]:
    """Play the script with these faults, on a bucket in memory or in a directory.

    It is checked from the first fault on: looking at it earlier would fill caches, and change the numbers.
    """
    with tempfile.TemporaryDirectory(prefix="tiered-faults-") as folder:
        url = f"memory://{uuid4().hex}" if kind == "memory" else f"file://{folder}/bucket"
        bucket = open_object_store(url)
        faulty = FaultyStore(bucket, faults)
        life = Life(
            Path(folder) / "data",
            url,
            bucket,
            lambda url, options: faulty,
            quiet=faulty.quiet,
            written=faulty.written,
            deleted=faulty.deleted,
        )
        try:
            life.run(since=lambda: faulty.struck, settle=faulty.land)
        except Exception as error:
            what = [f"{kind} at {number}, {faulty.operations[number]}" for number, kind in faults.items()]
            raise Violation(f"{what}: {error}") from error
        finally:
            bucket.delete([info.key for info in bucket.list("")])
    return life, faulty


def check_published_once(operations: list[Operation], struck: Counter[str]) -> None:
    """Raise `Violation` if a commit whose answer was lost is published again."""
    _, undisturbed = live({})
    usual = _ends(undisturbed)
    for number, asked in enumerate(operations):
        if asked.verb != "put" or not asked.key.endswith("/0/head.json"):
            continue
        # In the short run one each, in turn.
        for kind in SETTLED_BY_READING[:3] if LONG_RUN else [SETTLED_BY_READING[number % 3]]:
            _, faulty = live({number: kind})
            struck.update(faulty.struck)
            if _ends(faulty) != usual:
                raise Violation(f"{kind} at {number}: heads {_ends(faulty)} instead of {usual}")


def _ends(faulty: FaultyStore) -> list[tuple[int, int, int]]:
    heads = [decode_head(data, where=key) for key, data in faulty.written if key.endswith("/head.json")]
    return [(head.partition, head.epoch, head.end_offset) for head in heads]

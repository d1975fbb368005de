"""A store whose writer is the test itself, and whose tierers are other processes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tiered
from tests.support.children import Child, Zygote
from tests.torture.payload import small_settings
from tiered.cold.object_store.connect import open_object_store

# What a store's directory may hold once nobody is at work in it.
# What a reader that was killed had begun to cache stays for an hour: it may be another one's work.
KNOWN_FILES = re.compile(
    r"store\.json|cold\.json|swept\.json|writer\.lock|tiering(-next)?\.lock|passes\.lock"
    r"|cache/([0-9a-f]{60}|\.[0-9a-f]{60}\.[0-9a-f]{32}\.tmp)"
    r"|topics/[a-z]+/(topic\.json|[0-9]/(writer\.lock|start\.json|asked\.json|lineage\.json|sweep\.json|scrub\.json|[0-9]{20}-[0-9]\.log))"
)


def check_files(path: Path) -> None:
    """Nothing half-written and nothing superseded is left in a store's directory."""
    names = [str(item.relative_to(path)) for item in path.rglob("*") if item.is_file()]
    # What a creation that was killed left lies there until a topic of that name is created.
    begun = {name for name in names if name.endswith("/.topic.json.tmp")}
    begun -= {name.replace("topic.json", ".topic.json.tmp") for name in names if name.endswith("/topic.json")}
    unknown = [name for name in names if not KNOWN_FILES.fullmatch(name) and name not in begun]
    assert not unknown, f"nothing should have left {unknown}"
    bases = [name.rpartition("-")[0] for name in names if name.endswith(".log")]
    assert len(set(bases)) == len(bases), "a superseded file is left"


class Place:
    """A store whose writer is this process and whose tierer is another: segment by segment into the bucket."""

    def __init__(self, zygote: Zygote, folder: Path, url: str) -> None:
        self.zygote = zygote
        self.folder = folder
        self.url = url
        self.path = folder / "data"
        self.store = self.open(self.path)
        self.topic = self.store.create_topic("t")
        self.count = 0

    def open(self, path: Path, **options: Any) -> tiered.Store:
        settings = small_settings("interval")
        return tiered.open(path, cold=self.url, settings=settings, **options)

    def segment(self, topic: tiered.Topic | None = None) -> None:
        """Append some records and seal them."""
        topic = topic or self.topic
        topic.append_many([b"%d" % number for number in range(self.count, self.count + 20)])
        self.count += 20
        topic.roll()

    def tierer(self, name: str, *ahead_us: int, at: str = "", count: int = 1, action: str = "stop") -> Child:
        """Start a process that runs these passes, and stops or kills itself at a step."""
        step = {"at": at, "count": count, "action": action} if at else {}
        return Child(
            self.zygote, "passes", self.folder / name, path=str(self.path), ahead_us=ahead_us, step=step
        )

    def bucket(self) -> dict[str, str]:
        """ETag of every object."""
        store = open_object_store(self.url)
        try:
            return {info.key: info.etag for info in store.list("")}
        finally:
            store.close()

    def disk(self) -> dict[str, bytes]:
        """Everything below the topics' folder but the locks, which name their holder."""
        return {
            str(path.relative_to(self.path)): path.read_bytes()
            for path in (self.path / "topics").rglob("*")
            if path.is_file() and path.name != "writer.lock"
        }

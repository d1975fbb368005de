"""The system calls of a real program, and the rules of durability that they must keep.

The other crash tests record what the engine asks of its file system, and sync nothing. This looks one level deeper:
whether the operating system was really asked. A program runs under strace, or, where there is none, with a library that
stands between it and the C library (``interpose.c``). Both give the same events.

The program says where it is by asking for a path under `MARKS` (``os.access``), which is a system call like the others.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

MARKS = "/mark-of-a-test/"
_INTERPOSE = Path(__file__).with_name("interpose.c")
_WRITES = {"write", "pwrite64", "pwritev", "pwritev2"}
_SYNCS = {"fsync", "fdatasync"}
_CALLS = "openat,open,mkdir,mkdirat,write,pwrite64,pwritev,pwritev2,fsync,fdatasync,rename,renameat,renameat2,link,linkat,unlink,unlinkat,access,faccessat,faccessat2"  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """One system call that succeeded: ``create``, ``write``, ``sync``, ``rename``, ``link``, ``unlink``, or a ``mark``."""

    kind: str
    path: str
    target: str = ""


def watcher() -> str | None:
    """Return how system calls can be watched here: ``strace``, ``interpose``, or None."""
    if sys.platform != "linux":
        return None
    if shutil.which("strace"):
        tried = subprocess.run(["strace", "-o", os.devnull, "true"], capture_output=True, check=False)
        if tried.returncode == 0:  # else tracing is forbidden, as in some containers
            return "strace"
    return "interpose" if shutil.which("cc") else None


def watch(command: list[str], how: str, scratch: Path) -> list[Call]:
    """Run a command to its end and return its system calls in the order in which they took effect."""
    log = scratch / "calls"
    environment = dict(os.environ)
    if how == "strace":
        command = ["strace", "-f", "-y", "-s", "0", "-o", str(log), "-e", f"trace={_CALLS}", *command]
    else:
        library = scratch / "interpose.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, _INTERPOSE, "-ldl"], check=True)
        environment |= {"LD_PRELOAD": str(library), "INTERPOSE_LOG": str(log)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = log.read_text(errors="replace").splitlines()
    calls = _from_strace(lines) if how == "strace" else (Call(*line.split("\t")) for line in lines)
    return [call for call in calls if call.kind != "mark" or call.path.startswith(MARKS)]


def _from_strace(lines: Iterable[str]) -> Iterator[Call]:
    """Read strace's lines; a call that another thread's interrupts in the output is one of its end."""
    begun: dict[str, str] = {}
    for line in lines:
        process, _, text = line.partition(" ")
        text = text.lstrip()
        if text.endswith("<unfinished ...>"):
            begun[process] = text.removesuffix("<unfinished ...>")
            if text.split("(")[0] not in _WRITES:
                continue
            text = begun[process] + ") = 0"  # it may land at once
        elif resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", text):
            text = begun.pop(process, "") + resumed[1]
            if text.split("(")[0] in _WRITES:
                continue
        if call := _one(text):
            yield call


def _one(text: str) -> Call | None:
    name, _, rest = text.partition("(")
    failed = re.search(r"\) += -1 ", rest) is not None
    paths = re.findall(r'"([^"]*)"', rest)
    if name in ("access", "faccessat", "faccessat2"):
        return Call("mark", paths[0]) if paths else None
    if failed:
        return None
    if name in _WRITES or name in _SYNCS:
        held = re.match(r"\d+<([^>]*)>", rest)
        return Call("sync" if name in _SYNCS else "write", held[1]) if held else None
    if name.startswith("open"):
        return Call("create", paths[0]) if "O_CREAT" in rest and "O_EXCL" in rest else None
    if name.startswith("mkdir"):
        return Call("create", paths[0])
    for kind in ("rename", "unlink", "link"):
        if name.startswith(kind):
            return Call(kind, *paths)
    return None


@dataclass
class Durability:
    """What a power cut could take at each moment, by the calls so far; `broken` lists the rules that were broken.

    Rules
    -----
    - A file is given its name (rename, link) once its bytes are durable.
    - A segment is unlinked once every name in its directory is durable: that of what takes its place, and of the new
      start offset.
    - At a mark whose name begins with ``durable`` nothing is at risk, neither bytes nor names.
    """

    root: str
    exempt: frozenset[str]
    bytes_at_risk: set[str] = field(default_factory=set)
    names_at_risk: set[str] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)
    syncs: dict[str, list[str]] = field(default_factory=dict)
    mark: str = "start"

    def follow(self, calls: Iterable[Call]) -> None:
        """Go through the calls in their order."""
        for call in calls:
            if call.kind == "mark":
                self._reach(call.path.removeprefix(MARKS))
            elif call.path.startswith(self.root) and not self._is_exempt(call.path):
                getattr(self, f"_{call.kind}")(call)

    def _is_exempt(self, path: str) -> bool:
        return not self.exempt.isdisjoint(Path(path).parts) or path.endswith(".lock")

    def _reach(self, mark: str) -> None:
        if mark.startswith("durable"):
            for path in sorted(self.bytes_at_risk):
                self.broken.append(f"{mark}: the bytes of {self._short(path)} were not synced")
            for path in sorted(self.names_at_risk):
                self.broken.append(f"{mark}: the name {self._short(path)} was not synced")
        self.mark = mark

    def _short(self, path: str) -> str:
        return path.removeprefix(self.root).lstrip("/")

    def _create(self, call: Call) -> None:
        self.names_at_risk.add(call.path)

    def _write(self, call: Call) -> None:
        self.bytes_at_risk.add(call.path)

    def _sync(self, call: Call) -> None:
        self.syncs.setdefault(self.mark, []).append(self._short(call.path))
        self.bytes_at_risk.discard(call.path)
        inside = {path for path in self.names_at_risk if str(Path(path).parent) == call.path}
        self.names_at_risk -= inside

    def _rename(self, call: Call) -> None:
        if call.path in self.bytes_at_risk:
            self.broken.append(
                f"after {self.mark}: {self._short(call.path)} was renamed before its bytes were synced"
            )
        self.bytes_at_risk.discard(call.path)
        self.names_at_risk.discard(call.path)
        self.names_at_risk.add(call.target)

    def _link(self, call: Call) -> None:
        if call.path in self.bytes_at_risk:
            self.broken.append(
                f"after {self.mark}: {self._short(call.path)} was linked before its bytes were synced"
            )
        self.names_at_risk.add(call.target)

    def _unlink(self, call: Call) -> None:
        parent = Path(call.path).parent
        if call.path.endswith(".log"):
            for path in sorted(self.names_at_risk):
                if Path(path).parent == parent and path != call.path:
                    self.broken.append(
                        f"after {self.mark}: {self._short(call.path)} was removed before the name "
                        f"{self._short(path)} was synced"
                    )
        self.bytes_at_risk.discard(call.path)
        self.names_at_risk.discard(call.path)

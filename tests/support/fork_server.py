"""Interpreters that are forked from one that has everything imported: a start in 20 ms instead of a second.

`Popen` and `run` are those of `subprocess`, for commands ``[sys.executable, "-m" or "-c", ...]``. What they start is a
process of its own with its own arguments, environment, standard streams, signals, exit code and exit handlers.
What is about the start of the interpreter itself, or about what is imported, belongs to `subprocess`.

Run as a module this file is that interpreter. It forks a keeper for each process, which forks the process, tells its
id, waits for its end and tells how it ended.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.paths import ROOT

_zygotes: dict[int, socket.socket] = {}
_code: list[int] = []
"""The exit code of a forked process, as soon as it has one."""


class Popen(subprocess.Popen[Any]):
    """A forked interpreter."""

    # Its parent is the keeper: nothing is to be waited for when this object goes.
    _child_created = False

    def _execute_child(self, args: Any, *rest: Any) -> None:
        """Take the place of fork and exec; the parameters are those of `subprocess` since Python 3.11."""
        executable, preexec, _, pass_fds, cwd, env, *_ = rest
        pipes = rest[9:15]
        program, kind, *arguments = map(os.fspath, args)
        assert (program, executable, preexec, pass_fds) == (sys.executable, None, None, ())
        assert kind in ("-c", "-m")
        environment = os.environ if env is None else env
        assert "PYTHONIOENCODING" not in environment, "only a new interpreter looks at that"
        order = {
            "kind": kind,
            "arguments": arguments,
            "cwd": str(Path(cwd or ".").absolute()),
            "env": {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()},
        }
        self._keeper, theirs = socket.socketpair()
        streams = [given if given != -1 else usual for usual, given in enumerate(pipes[i] for i in (0, 3, 5))]
        with theirs:
            socket.send_fds(zygote(), [b"\n"], [*streams, theirs.fileno()])
        self._keeper.sendall(json.dumps(order).encode() + b"\n")
        self._heard = self._keeper.makefile("r")
        self.pid = int(self._heard.readline())
        self._close_pipe_fds(*pipes)

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._keeper], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._keeper], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = os.waitstatus_to_exitcode(int(self._heard.readline()))
            self._heard.close()
            self._keeper.close()
        return self.returncode


def run(args: Any, *, timeout: float | None = None, check: bool = False, **options: Any) -> Any:
    """Start a process and wait for its end."""
    given = options.pop("input", None)
    if given is not None:
        options["stdin"] = subprocess.PIPE
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(args, **options) as process:
        try:
            output, errors = process.communicate(given, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def zygote() -> socket.socket:
    """Return the way to this process's zygote, which ends with it."""
    if os.getpid() not in _zygotes:
        ours, theirs = socket.socketpair()
        with theirs:
            # atexit comes too late for a worker that is killed: the end of the socket is what ends it.
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()], cwd=ROOT, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        _zygotes[os.getpid()] = ours
        atexit.register(lambda: (ours.close(), process.wait()))
    return _zygotes[os.getpid()]


def warm() -> None:
    """Import what is imported by most programs sooner or later."""
    import boto3
    import pandas  # noqa: F401 - by the first Arrow array
    import typer.main

    from tests.support.botocore_models import share_models
    from tiered.cli import app

    share_models()
    typer.main.get_command = cache(typer.main.get_command)
    typer.main.get_command(app)
    boto3.session.Session(region_name="us-east-1").client("s3", endpoint_url="http://127.0.0.1:9")
    gc.collect()
    gc.freeze()


def main() -> None:
    """Take orders until there are no more; in a forked process, be the program."""
    atexit.register(leave)  # the first one, which is called last
    warm()
    orders = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # at the terminal it is for the test
    keepers = 0
    while True:
        message, descriptors, _, _ = socket.recv_fds(orders, 1, 4)
        if not message:
            return
        if os.fork() == 0:
            orders.close()
            break
        keepers += 1
        for descriptor in descriptors:
            os.close(descriptor)
        while keepers and os.waitpid(-1, os.WNOHANG)[0]:
            keepers -= 1
    *streams, keeper = descriptors
    with socket.socket(fileno=keeper) as test, test.makefile("rw") as talk:
        order = json.loads(talk.readline())
        if child := os.fork():
            for descriptor in streams:
                os.close(descriptor)
            print(child, flush=True, file=talk)
            print(os.waitpid(child, 0)[1], flush=True, file=talk)
            os._exit(0)
    be(streams, **order)


def be(streams: list[int], kind: str, arguments: list[str], cwd: str, env: dict[str, str]) -> None:
    """Be the interpreter that was asked for."""
    for usual, given in enumerate(streams):
        os.dup2(given, usual)
        os.close(given)
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    tempfile.tempdir = None
    sys.path[:0] = ["", *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    program, *rest = arguments
    sys.argv = [kind, *rest]
    _code.append(1)
    try:
        if kind == "-m":
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.modules["__main__"] = ModuleType("__main__")
            exec(compile(program, "<string>", "exec"), sys.modules["__main__"].__dict__)
        _code[:] = [0]
    except SystemExit as error:
        _code[:] = [error.code if isinstance(error.code, int) else int(error.code is not None)]
        raise
    except KeyboardInterrupt:
        _code.clear()  # the interpreter ends by the signal
        raise


def leave() -> None:
    """End a forked process after all other exit handlers: to take down what was imported is 0.1 s."""
    if _code:
        sys.stdout.flush()
        os._exit(_code[0])


if __name__ == "__main__":
    main()

"""Fuzz one target guided by coverage, with atheris (`pip install '.[fuzz]'`).

    python -m tests.fuzz.guided TARGET FOLDER [-max_total_time=60 and other options of libFuzzer]

FOLDER collects inputs that reach new code; it starts from the seeds and the corpus. Only `tiered` and the harness
are instrumented: Arrow's own code is compiled. An input that fails is written to the working directory as crash-….
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import atheris

with atheris.instrument_imports(include=["tiered", "tests.fuzz.targets", "json"]):
    from tests.fuzz.targets import TARGETS

from tests.fuzz.child import CORPUS, INPUT_BYTES_MAX, Meter, try_input


def main() -> None:
    name, folder, *options = sys.argv[1:]
    target, meter = TARGETS[name], Meter()
    Path(folder).mkdir(exist_ok=True)
    for i, data in enumerate(target.inputs()):
        (Path(folder) / f"seed-{i}").write_bytes(data)

    def run(data: bytes) -> None:
        found = try_input(name, data, meter)
        if found is not None:
            raise RuntimeError(f"{found['error']} at {found['trace']}")

    def spoil(data: bytes, size_max: int, seed: int) -> bytes:
        random = Random(seed)
        if random.random() < 0.5:
            return bytes(atheris.Mutate(data, size_max))
        return target.spoil(data or b"\0", random)[:size_max]

    arguments = [
        sys.argv[0],
        folder,
        str(CORPUS / name),
        f"-max_len={INPUT_BYTES_MAX}",
        "-rss_limit_mb=4096",
        *options,
    ]
    atheris.Setup(arguments, run, custom_mutator=spoil)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

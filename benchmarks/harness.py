"""What a benchmark case is, and how one is run: variants in turns, ratios taken within each round."""

from __future__ import annotations

import gc
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from .peers import MissingPeerError

T = TypeVar("T")

# A target is met where so large a part of the rounds meets it: one that the median only touches is not.
_ROUNDS_MET = 0.75


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement.

    Attributes
    ----------
    value
        In the case's unit.
    also
        Other figures of the same run, by a name that ends in its unit.
    """

    value: float
    also: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to do the work of a case.

    Attributes
    ----------
    measure
        Does the work once, in an empty folder of its own, and times the part of it that counts.
    durability
        What a power cut right after the run may take.
    """

    name: str
    measure: Callable[[Path], Sample]
    durability: str = ""


@dataclass(frozen=True, slots=True)
class Target:
    """A bound that the project holds itself to: ``variant / against``, or one figure of `variant` alone.

    Attributes
    ----------
    figure
        Name in `Sample.also`; empty for the value itself.
    """

    variant: str
    bound: float
    against: str = ""
    figure: str = ""
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """Variants to compare; the first one is what the others are compared with.

    Attributes
    ----------
    unit
        Of every value: a rate, a time or a size.
    higher_is_better
        True for rates.
    rounds_max
        Rounds wanted at most, where one says enough.
    rounds_each
        Rounds a repeat: many short ones withstand a disk whose speed changes by the second.
    warm_up
        Whether to run one round first that does not count.
    """

    title: str
    unit: str
    variants: tuple[Variant, ...]
    targets: tuple[Target, ...] = ()
    note: str = ""
    higher_is_better: bool = True
    rounds_max: int = 1 << 16
    rounds_each: int = 1
    warm_up: bool = True


class Bench:
    """What a case is built with: a folder, sizes, and a stack of what to close after it."""

    def __init__(self, folder: Path, *, quick: bool) -> None:
        self.folder = folder
        self.quick = quick
        self.exit = ExitStack()

        self.missing: list[str] = []

    def size(self, full: int, quick: int) -> int:
        """Return the one of two sizes that this run wants."""
        return quick if self.quick else full

    def peer(self, prepare: Callable[[], T]) -> T | None:
        """Return a peer, or None and note the reason where it cannot run; a quick run leaves them out."""
        if self.quick:
            return None
        try:
            return prepare()
        except MissingPeerError as error:
            self.missing.append(str(error))
            return None


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of some numbers."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class VariantResult:
    """What was measured of one variant.

    Attributes
    ----------
    advantage
        How many times as good as this variant the case's first one is, round by round; None for itself.
    """

    name: str
    durability: str
    value: Spread
    also: dict[str, float]
    advantage: Spread | None


@dataclass(frozen=True, slots=True)
class TargetResult:
    """Whether a target was met: by the median, and by three rounds of four.

    Attributes
    ----------
    key
        Names the target in the record of runs; it does not change with its bound.
    """

    key: str
    text: str
    measured: Spread
    met: bool
    at_most: bool


@dataclass(frozen=True, slots=True)
class CaseResult:
    """All of a case, as it goes to the table and to JSON."""

    case: str
    title: str
    unit: str
    rounds: int
    variants: tuple[VariantResult, ...]
    targets: tuple[TargetResult, ...]
    note: str
    missing: tuple[str, ...]
    memory_peak_mib: float
    seconds: float


def run_case(
    name: str, build: Callable[[Bench], Case], folder: Path, *, repeats: int, quick: bool
) -> CaseResult:
    """Build a case, run its variants A B C, A B C, …, and return what came out."""
    start = time.perf_counter()
    bench = Bench(folder, quick=quick)
    with bench.exit:
        case = build(bench)
        rounds = min(repeats * case.rounds_each, case.rounds_max)
        if case.warm_up and not quick:
            _round(case, folder)
        samples = [_round(case, folder) for _ in range(rounds)]
    return CaseResult(
        name,
        case.title,
        case.unit,
        rounds,
        tuple(_variant_result(case, variant, samples) for variant in case.variants),
        tuple(_target_result(case, target, samples) for target in case.targets),
        case.note,
        tuple(bench.missing),
        peak_memory_mib(),
        time.perf_counter() - start,
    )


Round = dict[str, Sample]


def _round(case: Case, folder: Path) -> Round:
    found = {}
    for variant in case.variants:
        scratch = folder / "scratch"
        scratch.mkdir()
        gc.collect()
        found[variant.name] = variant.measure(scratch)
        shutil.rmtree(scratch)
    return found


def _variant_result(case: Case, variant: Variant, rounds: list[Round]) -> VariantResult:
    mine = [found[variant.name] for found in rounds]
    also = {name: statistics.median(sample.also[name] for sample in mine) for name in mine[0].also}
    value = Spread.of([sample.value for sample in mine])
    return VariantResult(variant.name, variant.durability, value, also, _advantage(case, variant, rounds))


def _advantage(case: Case, variant: Variant, rounds: list[Round]) -> Spread | None:
    first = case.variants[0].name
    if variant.name == first:
        return None
    ratios = [found[first].value / found[variant.name].value for found in rounds]
    return Spread.of(ratios if case.higher_is_better else [1 / ratio for ratio in ratios])


def _target_result(case: Case, target: Target, rounds: list[Round]) -> TargetResult:
    def figure(found: Round) -> float:
        sample = found[target.variant]
        value = sample.also[target.figure] if target.figure else sample.value
        return value / found[target.against].value if target.against else value

    figures = [figure(found) for found in rounds]
    measured = Spread.of(figures)
    what = target.figure or ("" if target.against else case.unit)
    sign = "at most" if target.at_most else "at least"
    key = f"{target.variant}{f' ÷ {target.against}' if target.against else ''}"
    text = f"{key}: {sign} {target.bound:g} {what}".strip()
    meets = [
        value <= target.bound if target.at_most else value >= target.bound
        for value in (measured.median, *figures)
    ]
    met = meets[0] and sum(meets[1:]) >= _ROUNDS_MET * len(figures)
    return TargetResult(f"{key} {what}".strip(), text, measured, met, target.at_most)


class Stopwatch:
    """Seconds of the block it was used for."""

    seconds = 0.0


@contextmanager
def stopwatch() -> Iterator[Stopwatch]:
    """Time a block."""
    watch = Stopwatch()
    start = time.perf_counter()
    yield watch
    watch.seconds = time.perf_counter() - start


def anonymous_mib() -> float:
    """Memory of this process that no file backs, MiB: mapped segments are not in it.

    Raises
    ------
    NotImplementedError
        Only Linux tells.
    """
    if sys.platform != "linux":
        raise NotImplementedError("only Linux tells mapped files from other memory (RssAnon)")
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise NotImplementedError("this kernel does not report RssAnon")


@dataclass(slots=True)
class Peak:
    """The growth of anonymous memory at its peak."""

    growth_mib: float = 0.0


@contextmanager
def peak_growth() -> Iterator[Peak]:
    """Watch this process's anonymous memory, every few milliseconds."""
    # What was freed and is still held would hide what is taken next.
    pa.default_memory_pool().release_unused()
    found, before, stop = Peak(), anonymous_mib(), threading.Event()

    def watch() -> None:
        while not stop.wait(0.005):
            found.growth_mib = max(found.growth_mib, anonymous_mib() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def peak_memory_mib() -> float:
    """Greatest resident memory of this process so far, mapped files included, MiB."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)

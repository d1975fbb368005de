"""Every part of every kind of file, damaged in every way: found, named, never read as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.budget import thinned
from tests.support.damage import Damage, cut, damaged, flipped, grown, missing, swapped, zeroed
from tests.support.tally import tally
from tests.support.verified_store import (
    EVICTED,
    IN_BOTH,
    LOCAL,
    PER_SEGMENT,
    Place,
    object_parts,
    read,
    segment_parts,
)
from tiered.errors import CorruptionError, ObjectNotFound, TieredError
from tiered.format.document import decode_document
from tiered.verify.findings import Findings
from tiered.verify.report import Item, Problem, VerifyReport
from tiered.verify.segments import check_segment

NEWEST = PER_SEGMENT * (EVICTED + IN_BOTH + LOCAL)
"""Where the newest file begins."""


@dataclass(frozen=True)
class Case:
    """One file and one way to damage it."""

    path: Path
    name: str
    damage: Damage


def ways(path: Path, parts: dict[str, tuple[int, int]]) -> Iterator[Case]:
    """A flip and zeros in every part, a cut inside it, more bytes, no file."""
    for part, (start, end) in parts.items():
        middle = (start + end) // 2
        yield Case(path, f"{part}: a bit", flipped(middle, 5))
        yield Case(path, f"{part}: zeros", zeroed(start, end))
        yield Case(path, f"{part}: cut inside", cut(middle))
    yield Case(path, "zeros after it", grown(bytes(64)))
    yield Case(path, "another file after it", grown(path.read_bytes()))
    yield Case(path, "missing", missing)


def names(report: VerifyReport | list[Problem], path: Path) -> list[Problem]:
    return [item for item in report if item.where.removeprefix("file://") == str(path)]


def check_named(problems: list[Problem], path: Path, size: int, what: str) -> None:
    """A problem names the file, a position in it, and the offsets at risk."""
    assert problems, f"{what}: not found"
    for problem in problems:
        assert problem.reason
        assert str(problem)
        if problem.item in (Item.SEGMENT, Item.OBJECT, Item.PAGE):
            assert problem.offsets is not None, f"{what}: {problem}"
            assert problem.offsets[0] < problem.offsets[1], f"{what}: {problem}"
        if problem.position is not None:
            assert 0 <= problem.position <= size, f"{what}: {problem}"
        elif "missing" not in problem.reason:
            assert problem.item is Item.LOG, f"{what}: no position in {problem}"


def check_reads(place: Place, problems: tuple[Problem, ...], what: str, *, others_go_on: bool) -> None:
    """Whatever is read is what was written; what is not at risk can be read."""
    for (partition, start, end), found in read(place).items():
        if isinstance(found, TieredError):
            if others_go_on:
                at_risk = any(
                    item.partition == partition
                    and item.offsets is not None
                    and item.offsets[0] < end
                    and start < item.offsets[1]
                    for item in problems
                )
                assert at_risk, f"{what}: offsets {start} to {end} of {partition} cannot be read: {found}"
                # A page that the bucket says is not there keeps the bucket's own error.
                assert isinstance(found, (CorruptionError, ObjectNotFound)), f"{what}: {found!r}"
        else:
            truth = place.truth[partition][start:end]
            # Whole blocks may be missing at the end of the newest file: a torn tail is no part of the log.
            torn = (
                not others_go_on and start >= NEWEST and len(found) in (0, 6) and found == truth[: len(found)]
            )
            assert found == truth or torn, f"{what}: wrong records read"


def segment_passes(place: Place, case: Case, *, newest: bool = False) -> bool:
    """Return whether the damage was found; reads are right in any case."""
    size = case.path.stat().st_size
    with damaged(case.path, case.damage) as changed:
        report = place.verify()
        what = f"{case.path.name} {case.name}"
        found = names(report.problems if not newest else list(report.problems), case.path)
        if found:
            check_named(found, case.path, 2 * size, what)
        assert changed or not report.problems, what
        check_reads(place, report.problems, what, others_go_on=not newest)
        return bool(found) or not changed or bool(report.problems)


# -- segments --------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("which", [0, 2], ids=["compressed", "as written"])
def test_a_damaged_sealed_segment_is_found_and_never_read_as_data(sound: Place, which: int) -> None:
    path = sound.segments()[which]
    cases = [case for case in ways(path, segment_parts(path)) if case.name != "missing" or which]
    cases = thinned(cases, 5)
    for case in cases:
        assert segment_passes(sound, case), f"{case.name}: not found"
    tally("corruption", tried=len(cases))


def test_an_evicted_segment_is_not_missed(sound: Place) -> None:
    """What the bucket has may be missing here, and is read from there."""
    with damaged(sound.segments()[1], missing):
        assert sound.verify().problems == ()
        check_reads(sound, (), "moved aside", others_go_on=True)


@pytest.mark.parametrize("other", ["next", "other partition", "object", "document"])
def test_another_file_in_the_place_of_a_segment_is_found(sound: Place, other: str) -> None:
    path = sound.segments()[2]
    source = {
        "next": sound.segments()[3],
        "other partition": sound.segments(1)[2],
        "object": sound.objects()[0],
        "document": sound.data / "store.json",
    }[other]
    assert segment_passes(sound, Case(path, f"swapped with {other}", swapped(source)))
    tally("corruption", tried=1)


@pytest.mark.extended
def test_damage_to_the_newest_file_is_found_wherever_it_can_be_told_from_a_torn_tail(sound: Place) -> None:
    """Bits of everything in front of the mark. What is cut off its end is a torn tail; see docs/format.md."""
    path = sound.segments()[-1]
    parts = segment_parts(path)
    tried = 0
    for case in thinned(list(ways(path, parts)), 2):
        tried += 1
        torn = (
            case.name.startswith("mark")
            or "cut" in case.name
            or "after it" in case.name
            or case.name == "missing"
        )
        found = segment_passes(sound, case, newest=True)
        assert found or torn, f"{case.name}: not found"
    tally("corruption", tried=tried)


@pytest.mark.parametrize("which", [0, 2, -1], ids=["compressed", "as written", "newest"])
@pytest.mark.parametrize("stride", [19, pytest.param(1, marks=pytest.mark.slow)])
def test_every_byte_of_a_segment_is_looked_at(sound: Place, which: int, stride: int) -> None:
    """One bit of each byte; of every nineteenth in the short run."""
    path = sound.segments()[which]
    data = path.read_bytes()
    mark = segment_parts(path).get("mark", (len(data), len(data)))
    for position in range(0, len(data), stride):
        with damaged(path, flipped(position, position % 8)):
            findings = Findings()
            check_segment(path, newest=which == -1, end_hint=108, deep=True, findings=findings)
        assert findings.problems or mark[0] <= position < mark[1], f"byte {position} was not noticed"
    tally("corruption", tried=len(data) // stride)


def test_every_damaged_block_is_reported_not_only_the_first(sound: Place) -> None:
    """Two blocks of one segment, a segment of the other partition and an object: four problems in one report."""
    path, twin, cold = sound.segments()[2], sound.segments(1)[3], sound.objects()[1]
    parts = segment_parts(path)
    middle = [sum(parts[f"block {i} chunk 0"]) // 2 for i in range(2)]
    with (
        damaged(path, lambda data: flipped(middle[0])(flipped(middle[1])(data) or b"")),
        damaged(twin, flipped(3)),
        damaged(cold, flipped(100)),
    ):
        problems = sound.verify().problems
    assert [(item.where.rpartition("/")[2], item.offsets) for item in problems if item.partition == 0] == [
        (path.name, (72, 78)),
        (path.name, (78, 84)),
        (cold.name, (12, 24)),
    ]
    assert [item.partition for item in problems].count(1) == 1
    tally("corruption", tried=4)


# -- the bucket ------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("which", [1, 4], ids=["cold only", "in both tiers"])
def test_a_damaged_object_is_found_and_never_read_as_data(sound: Place, which: int) -> None:
    path = sound.objects()[which]
    size = path.stat().st_size
    cases = [
        *thinned(list(ways(path, object_parts(path))), 6),
        Case(path, "swapped", swapped(sound.objects()[which + 1])),
    ]
    cases.append(Case(path, "swapped with another partition's", swapped(sound.objects(1)[which])))
    for case in cases:
        with damaged(path, case.damage) as changed:
            report = sound.verify()
            if changed:
                check_named(names(report.problems, path), path, 2 * size, case.name)
            check_reads(sound, report.problems, case.name, others_go_on=True)
    tally("corruption", tried=len(cases))


def test_a_quick_look_finds_objects_that_are_missing_or_short(sound: Place) -> None:
    for path in sound.objects():
        for damage in (missing, cut(100), grown(b"x")):
            with damaged(path, damage):
                check_named(names(sound.verify(deep=False).problems, path), path, 4000, path.name)
    tally("corruption", tried=3 * len(sound.objects()))


def test_a_damaged_page_of_a_manifest_is_found(sound: Place) -> None:
    pages = sorted((sound.cold() / "pages").iterdir())
    path, size = pages[0], pages[0].stat().st_size
    cases = [*ways(path, {"all": (0, size), "frame header": (0, 9), "checksum": (size - 4, size)})]
    cases += [Case(path, "swapped", swapped(pages[1]))]
    cases += [Case(path, f"byte {at}", flipped(at, at % 8)) for at in range(0, size, 9)]
    cases = thinned(cases, 4)
    for case in cases:
        with damaged(path, case.damage) as changed:
            report = sound.verify(deep=False)
            if changed:
                check_named(names(report.problems, path), path, 2 * size, case.name)
    with damaged(path, missing):
        check_reads(sound, sound.verify().problems, "page is missing", others_go_on=True)
    tally("corruption", tried=len(cases))


def test_a_damaged_head_is_found_and_local_records_are_read(sound: Place) -> None:
    path = sound.cold() / "head.json"
    size = path.stat().st_size
    cases = [*ways(path, {"all": (0, size)}), Case(path, "swapped", swapped(sound.cold(1) / "head.json"))]
    for case in cases:
        with damaged(path, case.damage) as changed:
            report = sound.verify(deep=False)
            if changed and not case.name.startswith("zeros after"):
                check_named(names(report.problems, path), path, 2 * size, case.name)
    with damaged(path, zeroed(10, 20)):
        check_reads(sound, sound.verify().problems, "head", others_go_on=True)
    tally("corruption", tried=len(cases))


# -- documents -------------------------------------------------------------------------------------

DOCUMENTS = [
    "data/store.json",
    "data/cold.json",
    "data/topics/orders/topic.json",
    "data/topics/orders/0/start.json",
    "data/topics/orders/0/lineage.json",
    "data/topics/orders/0/sweep.json",
    "data/topics/orders/1/fenced.json",
    "bucket/store.json",
    "bucket/topic.json",
]
# Without these a partition is as it was before the first of them was written, which is no damage.
MAY_BE_MISSING = {"sweep.json", "fenced.json", "lineage.json"}


def document(place: Place, name: str) -> Path:
    return (
        next(place.root.glob("bucket/*/*/topic.json")) if name == "bucket/topic.json" else place.root / name
    )


def verify_anyhow(place: Place) -> VerifyReport:
    """As the command does, which needs no store that can be opened."""
    from tiered.cli.verify import open_tiers
    from tiered.settings.settings import Settings
    from tiered.verify.verifier import verify_store

    return verify_store(open_tiers(Settings.model_validate({"store": {"path": str(place.data)}})))


@pytest.mark.extended
@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_damaged_document_is_found(sound: Place, name: str) -> None:
    """Every nineteenth byte, and the document as a whole; also those without which the store does not open."""
    path = document(sound, name)
    original, size = decode_document(path.read_bytes(), where=name), path.stat().st_size
    cases = [
        *ways(path, {"all": (0, size)}),
        *(Case(path, f"byte {i}", flipped(i, i % 7)) for i in range(0, size, 19)),
    ]
    tried = 0
    for case in cases:
        with damaged(path, case.damage):
            if path.exists():
                try:
                    if decode_document(path.read_bytes(), where=name) == original:
                        continue  # white space
                except CorruptionError:
                    pass
            elif path.name in MAY_BE_MISSING:
                continue
            tried += 1
            report = verify_anyhow(sound)
            check_named(names(report.problems, path), path, 2 * size, f"{name} {case.name}")
    tally("corruption", tried=tried)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_byte_of_a_document_is_under_its_checksum(sound: Place, name: str) -> None:
    """Exhaustive: each bit of each byte is noticed, or is white space."""
    path = document(sound, name)
    data = path.read_bytes()
    original = decode_document(data, where=name)
    for position in range(len(data)):
        for bit in range(8):
            try:
                assert decode_document(flipped(position, bit)(data) or b"", where=name) == original
                assert data[position : position + 1].isspace(), (
                    f"bit {bit} of byte {position} was not noticed"
                )
            except CorruptionError:
                pass
    tally("document bits", flipped=8 * len(data))


def test_documents_of_another_store_or_topic_are_found(sound: Place, tmp_path: Path) -> None:
    import tiered

    with tiered.open(tmp_path / "other") as store:
        store.create_topic("others")
    other = tmp_path / "other"
    for name, source in (
        ("data/store.json", other / "store.json"),
        ("data/topics/orders/topic.json", other / "topics/others/topic.json"),
        ("bucket/store.json", other / "store.json"),
    ):
        with damaged(sound.root / name, swapped(source)):
            assert verify_anyhow(sound).problems, name
    tally("corruption", tried=3)


# -- anything, anywhere ----------------------------------------------------------------------------


@pytest.mark.extended
@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_damage_makes_a_verification_fail_or_a_read_lie(sound: Place, data: st.DataObject) -> None:
    """Any file, any place, any kind of damage: no error escapes, and nothing is read that was not written."""
    files = sorted(
        path for path in sound.root.rglob("*") if path.suffix in (".log", ".json", ".parquet", ".zst")
    )
    path = data.draw(st.sampled_from(files), label="file")
    size = path.stat().st_size
    at = data.draw(st.integers(0, size - 1), label="position")
    to = data.draw(st.integers(at + 1, size), label="end")
    damage = data.draw(
        st.sampled_from(
            [
                flipped(at, to % 8),
                zeroed(at, to),
                cut(at),
                grown(bytes(to)),
                missing,
                swapped(files[at % len(files)]),
            ]
        ),
        label="damage",
    )
    with damaged(path, damage):
        verify_anyhow(sound)
        try:
            found = read(sound)
        except TieredError:
            return  # the store does not open
        for (partition, start, end), values in found.items():
            if not isinstance(values, TieredError):
                truth = sound.truth[partition][start:end]
                # The newest file's torn tail is no part of the log.
                newest = start >= NEWEST and values == truth[: len(values)]
                assert values == truth or newest, f"{path.name}: {start} to {end}"
    tally("corruption", tried=1)


def test_the_sound_store_is_sound_again(sound: Place) -> None:
    """Last in this file: every test put back what it damaged."""
    for deep in (False, True):
        report = sound.verify(deep)
        assert (report.problems, report.unknown) == ((), ())
    check_reads(sound, (), "at the end", others_go_on=True)

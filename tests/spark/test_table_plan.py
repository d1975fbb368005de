"""A snapshot divided between Spark's Parquet reader and ours has every row once, and S3A is told no secret."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.spark.splits import MIB, cold, snapshots, warm
from tiered.cold.object_store.options import ColdOptions
from tiered.reader.splits import ColdSource, Extent, Split
from tiered.spark.parquet_table.connector import Connector, remote_options, s3a_options
from tiered.spark.parquet_table.plan import TablePlan, cold_first, plan_table

Objects = dict[tuple[int, str], tuple[int, int]]


def rows_of(plan: TablePlan, objects: Objects) -> list[tuple[int, int]]:
    """Return partition and offset of every row that the parts of a plan read."""
    found = []
    for files in plan.cold:
        assert len(files.keys) == 1 or not files.ranges
        for key in files.keys:
            base, end = objects[files.partition, key]
            kept = files.ranges or ((base, end),)
            found += [(files.partition, at) for at in range(base, end) if any(a <= at < b for a, b in kept)]
    for ranges in plan.rest:
        found += [(partition, at) for partition, (start, end) in ranges.items() for at in range(start, end)]
    return sorted(found)


def objects_of(splits: list[Split]) -> Objects:
    return {
        (split.partition, split.source.key): (split.source.entry.base_offset, split.source.entry.end_offset)
        for split in splits
        if isinstance(split.source, ColdSource)
    }


@given(snapshots(), st.booleans())
def test_every_row_is_read_once(splits: list[Split], parquet: bool) -> None:
    """Also of objects that a start offset or a warmer copy clips; without a connector, by our source alone."""
    plan = plan_table(splits, parquet=parquet)
    wanted = sorted((s.partition, at) for s in splits for at in range(s.start_offset, s.end_offset))
    assert rows_of(plan, objects_of(splits)) == wanted
    assert parquet or not plan.cold
    assert len(plan.cold) <= sum(isinstance(split.source, ColdSource) for split in splits)


def test_a_warm_copy_in_the_middle_leaves_two_ranges_of_the_object() -> None:
    object_ = cold(0, 0, [(100, MIB)])
    plan = plan_table([object_.clip(0, 30), warm(0, 30, 20, MIB), object_.clip(50, 100), warm(0, 100, 5, 10)])
    assert [(files.keys, files.ranges) for files in plan.cold] == [(("0",), ((0, 30), (50, 100)))]
    assert plan.rest == ({0: (30, 50)}, {0: (100, 105)})


def test_what_the_bucket_has_is_read_there_though_a_local_file_has_it_too() -> None:
    """From the start offset on, and up to where the published objects end."""
    splits = [warm(0, 10, 50, MIB), warm(0, 60, 40, MIB), warm(1, 0, 10, MIB)]
    extents = [
        Extent(s.start_offset, s.end_offset, s.bytes, s.tier, s.source)
        for s in (cold(0, 0, [(40, MIB)]), cold(0, 40, [(30, MIB)]))
    ]
    found = cold_first("t", splits, {0: extents})
    assert [(s.partition, s.start_offset, s.end_offset, s.tier.value) for s in found] == [
        (0, 10, 40, "cold"), (0, 40, 70, "cold"), (0, 70, 100, "warm"), (1, 0, 10, "warm"),
    ]  # fmt: skip
    plan = plan_table(found)
    assert [(files.keys, files.ranges) for files in plan.cold] == [(("40",), ()), (("0",), ((10, 40),))]
    assert plan.rest == ({0: (70, 100), 1: (0, 10)},)


def test_s3a_is_told_where_the_bucket_is_unless_the_session_knows() -> None:
    merges = {"fs.s3a.vectored.read.max.merged.size": "1M"}
    keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "very-secret", "AWS_SESSION_TOKEN": "token"}
    cold_options = ColdOptions(
        endpoint_url="http://127.0.0.1:9000", access_key="a", secret_key="very-secret", session_token="token"
    )
    options = s3a_options("b", cold_options, keys | {"AWS_REGION": "eu-west-1"}, merges.get)
    assert options == {
        "fs.s3a.bucket.b.endpoint": "http://127.0.0.1:9000",
        "fs.s3a.bucket.b.path.style.access": "true",
        "fs.s3a.bucket.b.connection.ssl.enabled": "false",
        "fs.s3a.bucket.b.endpoint.region": "eu-west-1",
    }
    known = {"fs.s3a.endpoint": "http://other", "fs.s3a.endpoint.region": "r", **merges}
    assert s3a_options("b", cold_options, keys, known.get) == {}
    assert s3a_options("b", ColdOptions(), {}, merges.get) == {}
    assert s3a_options("b", ColdOptions(), {"AWS_ENDPOINT_URL": "https://e"}, merges.get) == {
        "fs.s3a.bucket.b.endpoint": "https://e",
        "fs.s3a.bucket.b.path.style.access": "true",
        "fs.s3a.bucket.b.connection.ssl.enabled": "true",
        "fs.s3a.bucket.b.endpoint.region": "us-east-1",
    }


def test_s3a_joins_ranges_of_whole_row_groups_unless_the_session_says_how() -> None:
    name = "fs.s3a.bucket.b.vectored.read.max.merged.size"
    assert s3a_options("b", ColdOptions(), {}, {}.get) == {name: str(64 << 20)}
    assert s3a_options("b", ColdOptions(), {}, {name: "1M"}.get) == {}


def test_from_afar_parquet_is_read_by_few_requests_unless_the_session_says_how() -> None:
    name = "parquet.filter.columnindex.enabled"
    assert remote_options({}.get) == {name: "false"}
    assert remote_options({name: "true"}.get) == {}


def test_a_path_is_no_pattern() -> None:
    assert Connector("file:///a [b]{c}*").path("d?") == r"file:///a \[b\]\{c\}\*/d\?"

"""The work of a table: small commits, and a filtered aggregate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import tiered
from tiered.policies.cost import PRICES_AS_OF, Requests, estimate

from ..data import flights, open_topic, settings
from ..harness import Bench, Case, Sample, Target, Variant, stopwatch
from ..peers.tables import DeltaPeer, IcebergPeer, LancePeer, PeerTable, Place
from .cold import offload_rows, serve_counted

_ROWS = 100
_CARRIER = b"HA"


def small_commits(bench: Bench) -> Case:
    """Commits of 100 rows to a small S3 server, each readable from the bucket before the next."""
    commits = bench.size(100, 5)
    rows = [flights(_ROWS * commits).slice(i * _ROWS, _ROWS) for i in range(commits)]
    tables = [pa.Table.from_batches([batch]) for batch in rows]
    server, numbers = serve_counted(bench.exit), count()

    def sample(seconds: float) -> Sample:
        counts = server.counts()
        counts.pop("bytes_sent")
        sent = counts.pop("bytes_received") / commits / 1000
        requests = sum(counts.values())
        usd = estimate(Requests.of(counts), 0).one_off_usd / commits
        return Sample(
            seconds / commits * 1000,
            {"requests": requests / commits, "kB up": sent, "USD for a commit a second, a day": usd * 86_400},
        )

    def ours(folder: Path) -> Sample:
        plain = settings("cold", offload={"after": "1h", "tail_interval": "off"}).to_json()
        chosen = tiered.Settings.model_validate(plain | {"cold": {"endpoint_url": server.url}})
        store, topic = open_topic(folder, chosen, cold=f"s3://bucket/{next(numbers)}")
        with store:
            topic.append_batch(rows[0])
            server.reset()
            with stopwatch() as watch:
                for batch in rows:
                    topic.append_batch(batch)
            return sample(watch.seconds)

    def theirs(kind: Callable[[Place, Path], PeerTable]) -> Callable[[Path], Sample]:
        def measure(folder: Path) -> Sample:
            table = kind(Place(f"s3://bucket/{next(numbers)}", server.url), folder)
            table.append(tables[0])
            server.reset()
            with stopwatch() as watch:
                for part in tables:
                    table.append(part)
            return sample(watch.seconds)

        return measure

    log, delta, iceberg, lance = (
        "append_batch, sync=cold",
        "Delta (deltalake)",
        "Iceberg (pyiceberg)",
        "Lance",
    )
    with_lance = bench.peer(lambda: LancePeer(Place("")))
    return Case(
        "Commits of 100 rows to S3, each readable from the bucket before the next",
        "ms a commit",
        (
            Variant(log, ours, "nothing"),
            Variant(delta, theirs(lambda place, _: DeltaPeer(place)), "nothing"),
            Variant(iceberg, theirs(IcebergPeer), "nothing of the bucket's; the catalog as SQLite is set"),
            *([Variant(lance, theirs(lambda place, _: LancePeer(place)), "nothing")] if with_lance else []),
        ),
        (Target(log, 2.5, figure="requests", at_most=True),),
        f"{commits} commits after the first. The server answers at once, on the same CPUs: over a network the requests "
        "count. The log syncs its own disk too. "
        f"List prices of S3 STANDARD in us-east-1 as of {PRICES_AS_OF}, for requests alone.",
        higher_is_better=False,
    )


def cold_filter(bench: Bench) -> Case:
    """The rows of one carrier, of which there are few, and rows that no object has."""
    rows = bench.size(4_000_000, 20_000)
    bucket = bench.folder / "bucket"
    offload_rows(bench.folder, bucket.as_uri(), rows)
    topic = bench.exit.enter_context(tiered.open(bucket.as_uri())).topic("bench")
    objects = sorted(bucket.rglob("*.parquet"))
    matching = pc.sum(pc.equal(flights(rows).column("key"), _CARRIER)).as_py()

    def measured(offsets: Callable[[], Iterator[pa.ChunkedArray]], expected: int = matching) -> Sample:
        with stopwatch() as watch:
            found = [(len(column), pc.max(column).as_py()) for column in offsets()]
        assert sum(length for length, _ in found) == expected
        return Sample(watch.seconds * 1000)

    def filtered(*condition: object) -> Iterator[pa.ChunkedArray]:
        scan = topic.scan(filter=condition, columns=["offset"])
        return (batch.column(0) for batch in scan.to_batches())

    def afterwards() -> Iterator[pa.ChunkedArray]:
        for batch in topic.scan(columns=["key", "offset"]).to_batches():
            yield batch.column(1).filter(pc.equal(batch.column(0), _CARRIER))

    def of_peer(kind: Callable[[Place, Path], PeerTable]) -> Callable[[Path], Sample]:
        folder = bench.folder / f"peer-{next(numbers)}"
        folder.mkdir()
        table = kind(Place(str(folder)), folder)
        for path in objects:
            part = pq.read_table(path)
            # Without the metadata, in which the objects carry numbers of their columns that are another table's here.
            table.append(pa.table(dict(zip(part.column_names, part.columns, strict=True))))
        return lambda _: measured(lambda: iter([table.where_key(_CARRIER, "offset")]))

    numbers = count()
    ours, filters = "scan(filter=('key', '==', …))", "the same filter"
    delta, iceberg = f"Delta (deltalake), {filters}", f"Iceberg (pyiceberg), {filters}"
    lance = bench.peer(lambda: of_peer(lambda place, _: LancePeer(place)))
    return Case(
        "Filtered aggregate of a file:// bucket, files in the page cache",
        "ms",
        (
            Variant(ours, lambda _: measured(lambda: filtered("key", "==", _CARRIER))),
            Variant("scan(), filtered afterwards", lambda _: measured(afterwards)),
            Variant(delta, of_peer(lambda place, _: DeltaPeer(place))),
            Variant(iceberg, of_peer(IcebergPeer)),
            *([Variant(f"Lance, {filters}", lance)] if lance else []),
            Variant(
                "scan(filter=…) of offsets that are not there",
                lambda _: measured(lambda: filtered("offset", ">", rows), 0),
            ),
        ),
        (Target(ours, 1, against=delta, at_most=True), Target(ours, 1, against=iceberg, at_most=True)),
        higher_is_better=False,
        note=f"{rows:,} rows in {len(objects)} objects, {matching:,} of them match. tiered reads the manifest at each "
        "scan and verifies checksums.",
    )

"""Read a topic's Parquet objects without the store's reader: only those that the head names.

Prints::

    offsets [0, 5000) of partition 0: 5000 records
    offsets [5000, 10000) of partition 0: 5000 records
    101 records from offset 9899 on
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.dataset as ds

import tiered

bucket = f"file://{Path('bucket').absolute()}"
settings = tiered.Settings.model_validate({"policies": {"default": {"merge": "off"}}})
with tiered.open("./data", cold=bucket, settings=settings) as store:
    events = store.create_topic("events")
    for start in (0, 5_000):
        events.append_many([b"event %d" % number for number in range(start, start + 5_000)])
        events.roll()
    store.tier(now=datetime.now(UTC) + timedelta(days=1))

# From here on any machine can do it: the bucket's URL is enough.
with tiered.open(bucket) as store:
    objects = store.topic("events").scan().objects()
for item in objects:
    print(
        f"offsets [{item.start_offset}, {item.end_offset}) of partition {item.partition}: {item.records} records"
    )

dataset = ds.dataset([item.url.removeprefix("file://") for item in objects])
print(f"{dataset.count_rows(filter=ds.field('offset') >= 9_899)} records from offset 9899 on")

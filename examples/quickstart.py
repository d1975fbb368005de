"""Append, move to the cold tier, read everything back.

Prints::

    offload [0, 10000)
    evict_local [0, 10000)
    cold: 10000 records
    hot: 1 records
    10001 records, the last one is b'the newest'
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import tiered

# A folder stands in for a bucket: cold="s3://bucket/prefix" works the same.
bucket = f"file://{Path('bucket').absolute()}"

with tiered.open("./data", cold=bucket) as store:
    events = store.create_topic("events")
    events.append_many([b"event %d" % number for number in range(10_000)])
    events.roll()

# What cron or daemon=True does as time goes by; here we say that it is tomorrow.
tomorrow = datetime.now(UTC) + timedelta(days=1)
with tiered.open("./data") as store:
    for _ in range(2):  # upload first; evict once that is published
        for action, _size in store.tier(now=tomorrow).done:
            print(f"{action.kind} [{action.base_offset}, {action.end_offset})")

    events = store.topic("events")
    events.append(b"the newest", sync=True)
    scan = events.scan()
    for share in sorted(scan.explain().tiers, key=lambda item: item.tier):
        if share.records:
            print(f"{share.tier}: {share.records} records")
    table = scan.to_arrow()
    print(f"{table.num_rows} records, the last one is {table['value'][-1].as_py()}")

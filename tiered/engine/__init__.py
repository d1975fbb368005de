"""The open log: topics, writers, appends and reads. It does not move data to a bucket.

Other packages import `append`, `append_conditional`, `append_numbered`, `catalog`, `context`, `durable_reads`, `erase`, `host`, `ingest`,
`lifecycle`, `locations`, `open_topics`, `point_read`, `read`, `records`, `same_lineage`, `sequence`, `topic_shape`, `topics` and
`writers`.
"""

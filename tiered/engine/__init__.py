"""The open log: topics, writers, appends and reads; it knows nothing of movement to a bucket.

Other packages import `append`, `append_numbered`, `catalog`, `context`, `host`, `ingest`, `lifecycle`, `locations`,
`open_topics`, `point_read`, `read`, `records`, `sequence`, `topic_shape`, `topics` and `writers`.
"""

"""The open log: topics, writers, appends and reads; it knows nothing of movement to a bucket.

Other packages import `append`, `append_numbered`, `catalog`, `host`, `ingest`, `locations`, `read`,
`records`, `topics` and `writers`.
"""

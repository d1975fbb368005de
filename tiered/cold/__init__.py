"""The cold tier: Parquet objects in a bucket, found through one manifest a partition.

============================  ====================================================================
`object_store`                the seam to the bucket, and `open_object_store` behind it
`layout`                      the names of everything in the bucket
`parquet_object`              a segment as one Parquet object: writing
`parquet_reader`              reading: only the byte ranges that are needed, each verified
`partition`                   a partition's head and pages, read
`commit`                      claims and commits: the compare-and-swap of the head
`bucket`                      what belongs to the whole store: ``store.json`` and topics
============================  ====================================================================
"""

"""The cold tier: Parquet objects in a bucket, found through one manifest a partition.

====================  ========================================================================
`object_store`        the seam to the bucket; ``open`` finds the backend for a URL
`layout`              the names of everything in the bucket
`parquet_object`      a segment as one Parquet object: writing
`parquet_reader`      reading: only the byte ranges that are needed, each verified
`fetch_plan`          which ranges a read needs, and how each is verified: pure
`fetch`               verified ranges from a cache, from another reader's request, or from the bucket
`fetch_ahead`         what a reader will want next, fetched before its turn
`decode_ahead`        what was fetched, decoded before its turn on idle CPUs
`cache_disk`          fetched ranges on the disk, shared by processes; ``cache_memory`` in memory
`parquet_inspect`     an object without a manifest: its facts, its entry again, verification
`partition`           a partition's head and pages, read
`commit`              claims and commits: the compare-and-swap of the head
`bucket`              what belongs to the whole store: ``store.json`` and topics
====================  ========================================================================
"""

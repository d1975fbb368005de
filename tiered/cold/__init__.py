"""The cold tier: Parquet objects in a bucket, found through one manifest a partition.

====================  ========================================================================
`object_store`        the protocol of a bucket, and a backend for each kind of URL
`parquet`             a segment as one Parquet object
`manifest`            documents, manifests, commits and leases in the bucket
`fetch`               verified ranges of objects, from memory, the disk cache or the bucket
`upkeep`              merges, checks, rebuilt manifests, sweeps
====================  ========================================================================

Other packages import `fetch`, `manifest`, `object_store`, `parquet` and `upkeep`.
"""

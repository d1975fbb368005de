"""The cold tier: Parquet objects in a bucket, found through one manifest a partition.

====================  ========================================================================
`object_store`        the seam to the bucket: one protocol, and a backend for each kind of URL
`parquet`             a segment as one Parquet object
`manifest`            what the bucket says of a store: documents, manifests, commits, leases
`fetch`               verified ranges: from memory, from the disk's cache, or from the bucket
`upkeep`              merges, checks, rebuilt manifests, sweeps
====================  ========================================================================

Other packages import `fetch`, `manifest`, `object_store`, `parquet` and `upkeep`.
"""

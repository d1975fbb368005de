"""The reader of a store: snapshots, splits and Arrow batches. Everything that reads a store uses it.

Other packages import `block_cache`, `filters`, `latest`, `lineages`, `locations`, `prefetch`, `pruning`, `query`, `read`,
`rows`, `same_log`, `scan`, `snapshot`, `splits` and `tiers`.
"""

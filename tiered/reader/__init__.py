"""The one reader: snapshot, splits, Arrow batches. Everything that reads a store goes through it.

Other packages import `block_cache`, `lineages`, `locations`, `prefetch`, `query`, `read`, `rows`, `same_log`, `scan`, `snapshot`,
`splits` and `tiers`.
"""

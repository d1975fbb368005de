"""The one reader: snapshot, splits, Arrow batches. Everything that reads a store goes through it.

Other packages import `lineages`, `locations`, `prefetch`, `query`, `read`, `rows`, `same_log`, `scan`, `snapshot`,
`splits` and `tiers`.
"""

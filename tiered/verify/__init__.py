"""Checks of a store that change nothing: invariants, checksums, and the agreement of tiers.

Other packages import `damage_memory`, `documents`, `erased`, `findings`, `invariants`, `objects`, `partitions`, `report`,
`segments` and `verifier`.
"""

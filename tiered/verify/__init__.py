"""Checks of a store that change nothing: invariants, checksums, and the agreement of tiers.

Other packages import `damage_memory`, `documents`, `erasure_search`, `findings`, `invariants`, `objects`, `partitions`, `report`,
`segments` and `verifier`.
"""

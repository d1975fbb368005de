"""Whether a store holds what it says: invariants, verification, and the repairs that lose nothing.

Other packages import `damage_memory`, `documents`, `invariants`, `notes`, `objects`, `partitions`, `report`,
`segments` and `verifier`.
"""

"""Whether a store holds what it says: invariants, verification, and the repairs that lose nothing."""

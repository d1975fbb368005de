"""What the bucket says of a store: its documents, the manifest of each partition, commits to it, leases.

Other packages import `commit`, `keys`, `leases`, `partition_manifest`, `restore_intent`, `restores` and
`store_documents`.
"""

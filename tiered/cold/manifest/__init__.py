"""The documents of a store in its bucket, the manifest of each partition, commits to it, and leases.

Other packages import `commit`, `erasures`, `keys`, `leases`, `partition_manifest`, `restore_intent`, `restores` and
`store_documents`.
"""

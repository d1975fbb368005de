"""The warm tier: segment files on the local disk. Written, read, sealed and recovered here."""

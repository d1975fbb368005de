"""The public objects: what a store is (`interface`), and the one that this process reads by itself.

Other packages import `interface`, `local_producer`, `local_store` and `local_topic`.
"""

"""The public objects: the interface of every store (`interface`), and the store that this process opens itself.

Other packages import `interface`, `local_producer`, `local_store` and `local_topic`.
"""

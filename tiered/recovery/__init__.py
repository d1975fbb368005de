"""The restore of a store from its bucket, in its newest state or that of an earlier time.

Other packages import `restore`.
"""

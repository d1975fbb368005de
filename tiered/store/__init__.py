"""The public objects of a local store: `Store`, `Topic`, `Producer`.

Other packages import `local_producer`, `local_store`, `local_topic` and `network`.
"""

"""The interface of local, bucket and served stores: abstract `Store`, `Topic`, `Producer` and `Server`.

Other packages import `store`, `topic`, `producer` and `server`.
"""

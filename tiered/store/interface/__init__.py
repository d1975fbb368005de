"""What a store is to those who use it, wherever it lies: abstract `Store`, `Topic` and `Producer`, and `Server`.

Other packages import `store`, `topic`, `producer` and `server`.
"""

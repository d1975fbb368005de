"""The interface of all stores: abstract `Store`, `Topic`, `Producer`, `Transaction` and `Server`; and `Consumer`.

Other packages import `consumer`, `producer`, `server`, `snapshot`, `store`, `topic` and `transaction`.
"""

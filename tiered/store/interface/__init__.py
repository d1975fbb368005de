"""The interface of all stores: abstract `Store`, `Topic`, `Producer`, `Transaction` and `Server`; `Consumer` and `Erasure`.

Other packages import `consumer`, `consumer_positions`, `erasure`, `follow`, `producer`, `server`, `snapshot`, `store`, `topic`
and `transaction`.
"""

"""The policies: pure rules that turn facts and the time into a plan, and the executor that carries a plan out.

``policy`` has the rules of a topic from ``tiered.toml``, ``facts`` the facts about a store. ``rules`` and ``plan`` decide;
``executor`` calls the handler of each action, and `tiering` has the handlers.

Other packages import `actions`, `cost`, `executor`, `facts`, `forecast`, `outlook`, `plan`, `policy`,
`replan`, `rules`, `running_actions`, `tail_joining`, `tail_pace` and `turns`.
"""

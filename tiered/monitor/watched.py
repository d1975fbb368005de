"""What an operator's views are made from: the parts of one open store."""

from __future__ import annotations

from dataclasses import dataclass

from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..tiering.pass_loop import PassLoop
from ..tiering.tierer import Tierer


@dataclass(frozen=True, slots=True)
class Watched:
    """An open store as status, figures, explanations, metrics and the page see it.

    Attributes
    ----------
    passes
        Those that this process runs; None: none.
    """

    context: StoreContext
    topics: OpenTopics
    tierer: Tierer
    passes: PassLoop | None = None

"""``tiered pause`` and ``tiered resume``."""

from __future__ import annotations

from typing import Annotated

import typer

from ..store.local_store import LocalStore
from .options import (
    AsJson,
    ColdUrl,
    ConfigFile,
    StorePath,
    Verbose,
    complete_topic,
    load_settings,
    open_for_tiering,
)
from .output import print_json, say

OneTopic = Annotated[
    str | None,
    typer.Argument(
        metavar="TOPIC", help="Name of the topic.", show_default=False, autocompletion=complete_topic
    ),
]


def pause(
    topic: OneTopic = None,
    whole_store: Annotated[bool, typer.Option("--all", help="The whole store.")] = False,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="The reason; status and plan show it.", show_default=False)
    ] = "",
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Stop the passes of a topic, or of the store, in every process until tiered resume: nothing is moved or deleted.

    The pause is stored, and takes effect before the next action. Appends and reads go on. Local files are not evicted
    during a pause, so watch the disk.
    """
    _check_one(topic, whole_store)
    with open_for_tiering(load_settings(config, path, cold)) as store:
        pause_made = store.pause(topic, reason=reason)
    if as_json:
        print_json({"topic": topic, "store": store.url, "paused": str(pause_made)})
    else:
        say(f"{topic or store.url} is {pause_made}")


def resume(
    topic: OneTopic = None,
    whole_store: Annotated[
        bool, typer.Option("--all", help="End the pause of the whole store; topics paused by name stay so.")
    ] = False,
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """End a pause; the next pass does everything that is due."""
    _check_one(topic, whole_store)
    with open_for_tiering(load_settings(config, path, cold)) as store:
        was_paused, still = store.resume(topic), _still_paused(store, topic)
    if as_json:
        print_json({"topic": topic, "store": store.url, "was_paused": was_paused, "still_paused": still})
        return
    say(f"{topic or store.url} {'goes on' if was_paused else 'was not paused'}")
    for name, why in still.items():
        say(f"{name} stays {why}")


def _check_one(topic: str | None, whole_store: bool) -> None:
    if (topic is None) != whole_store:
        raise typer.BadParameter("name a topic, or write --all", param_hint="TOPIC")


def _still_paused(store: LocalStore, topic: str | None) -> dict[str, str]:
    """Return the topics that are still paused by name after the pause of the store ended, with the texts of the pauses."""
    if topic is not None:
        return {}
    return {name: str(pause) for name, pause in store.tierer.pauses.among(store.topics()).items()}

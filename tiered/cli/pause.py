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
        str, typer.Option(metavar="TEXT", help="Why; status and plan show it.", show_default=False)
    ] = "",
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Let passes leave a topic alone: nothing of it is moved or deleted, by any process, until it is resumed.

    It is remembered in the store and takes effect with the next action. Appends and reads go on. Local files are not
    evicted meanwhile, so watch the disk.
    """
    _check_one(topic, whole_store)
    with open_for_tiering(load_settings(config, path, cold)) as store:
        made = store.pause(topic, reason=reason)
    if as_json:
        print_json({"topic": topic, "store": store.url, "paused": str(made)})
    else:
        say(f"{topic or store.url} is {made}")


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
    """End a pause: the next pass goes on with all that is due."""
    _check_one(topic, whole_store)
    with open_for_tiering(load_settings(config, path, cold)) as store:
        found, still = store.resume(topic), _still_paused(store, topic)
    if as_json:
        print_json({"topic": topic, "store": store.url, "was_paused": bool(found), "still_paused": still})
        return
    say(f"{topic or store.url} {'goes on' if found else 'was not paused'}")
    for name, why in still.items():
        say(f"{name} stays {why}")


def _check_one(topic: str | None, whole_store: bool) -> None:
    if (topic is None) != whole_store:
        raise typer.BadParameter("name a topic, or write --all", param_hint="TOPIC")


def _still_paused(store: LocalStore, topic: str | None) -> dict[str, str]:
    """Return the topics that are paused by name, and why, where the pause of the store ended."""
    if topic is not None:
        return {}
    return {name: str(pause) for name, pause in store.tierer.pauses.among(store.topics()).items()}

"""A session is one of the SDK's own, and nobody else's."""

from __future__ import annotations

from typing import Any

import botocore.session
import pytest
from botocore.handlers import BUILTIN_HANDLERS

from tiered.cold.object_store import s3_session
from tiered.cold.object_store.s3_session import new_session


def handlers(session: Any) -> Any:
    return session.get_component("event_emitter")._emitter._handlers._root


def test_a_session_has_the_handlers_that_the_sdk_registers_by_itself() -> None:
    assert handlers(new_session()) == handlers(botocore.session.Session())


def test_handlers_that_a_library_adds_to_the_sdk_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """As moto adds them when it is imported, which may be after the first client."""
    new_session()
    added = [*BUILTIN_HANDLERS, ("added-event", lambda **_: "heard")]
    monkeypatch.setattr(s3_session, "BUILTIN_HANDLERS", added)
    monkeypatch.setattr("botocore.handlers.BUILTIN_HANDLERS", added)
    answers = new_session().get_component("event_emitter").emit("added-event")
    assert [answer for _, answer in answers] == ["heard"]


def test_what_is_registered_with_one_session_is_not_in_the_next() -> None:
    one = new_session()
    one.register("our-event.s3", lambda **_: "heard")
    assert [answer for _, answer in one.get_component("event_emitter").emit("our-event.s3")] == ["heard"]
    assert new_session().get_component("event_emitter").emit("our-event.s3") == []

"""What examples/deploy has is what its tools accept, as far as they are here."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tiered.settings.sections import DaemonSettings, FlightSettings, StoreSettings

DEPLOY = ROOT / "examples" / "deploy"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """With a program that is there in place of ours, nothing is left to say; and the service is well confined."""
    for unit in DEPLOY.glob("tiered*.[st]*"):
        text = unit.read_text(encoding="utf-8").replace("/opt/tiered/bin/tiered", "/bin/true")
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    units = sorted(tmp_path.glob("*"))
    assert [unit.name for unit in units] == [
        "tiered-serve.service",
        "tiered-tier.service",
        "tiered-tier.timer",
        "tiered.service",
    ]
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stderr.strip()) == (0, "")


def test_every_service_is_confined_as_the_daemon_is() -> None:
    """What moves or writes the same data as the same user needs no more than the daemon does."""
    confined = {unit.name: _confinement(unit) for unit in DEPLOY.glob("*.service")}
    assert len(confined) >= 2
    assert len(confined["tiered.service"]) > 25
    for name, lines in confined.items():
        assert lines == confined["tiered.service"], name


def _confinement(unit: Path) -> list[str]:
    lines = unit.read_text(encoding="utf-8").partition("\n\nNoNewPrivileges=")[2].partition("\n\n[")[0]
    return sorted(f"NoNewPrivileges={lines}".split())


def test_images_are_named_by_digest() -> None:
    """A tag may be another image tomorrow."""
    digest = re.compile(r"\S+@sha256:([0-9a-f]{64}|\.{3})")
    dockerfile = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    bases = set(re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE))
    assert bases == {"${BASE}"}
    named = re.findall(r"^ARG BASE=(.+)$", dockerfile, re.MULTILINE)
    for text in [*DEPLOY.glob("*.yaml"), ROOT / "docs" / "daemon.md"]:
        named += re.findall(r"image: (\S+)", text.read_text(encoding="utf-8"))
    assert len(named) >= 4
    assert [name for name in named if not digest.fullmatch(name)] == []


def test_the_image_shows_nothing_to_other_hosts_without_a_token() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", "")
    (line,) = re.findall(r"^ENV (.+)$", text, re.MULTILINE)
    set_in_it = dict(pair.split("=", 1) for pair in line.split())
    for name, value in set_in_it.items():
        if name.endswith(("__METRICS", "__LISTEN")):
            assert value.startswith("127.0.0.1:"), name
    check = re.search(r"http://(\S+)/healthz", text)
    assert check is not None
    assert check[1] == set_in_it["TIERED_DAEMON__METRICS"], "the health check asks where it is answered"


def test_the_image_has_every_file_that_its_build_copies() -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    for names in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        for name in names.split():
            assert (ROOT / name).exists(), name
    for section, key in re.findall(r"TIERED_([A-Z]+)__([A-Z_]+)=", text):
        tables = {"STORE": StoreSettings, "DAEMON": DaemonSettings, "FLIGHT": FlightSettings}
        assert key.lower() in tables[section].model_fields

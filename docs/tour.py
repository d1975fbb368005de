"""Write the output in cli-tour.md anew: ``python docs/tour.py``. The tests run the page and compare.

The commands are those of the page. What differs from run to run is shown as ``...``.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
import tomllib
from pathlib import Path

import boto3
from typer.testing import CliRunner

from tiered.cli import app
from tiered.demo.embedded_s3 import EmbeddedS3, environment

PAGE = Path(__file__).resolve().parent / "cli-tour.md"
BUCKET = "my-bucket"

_BLOCK = re.compile(r"^```(toml|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DIFFERS = (
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "..."),
    (re.compile(r"\b[0-9a-f]{32,64}\b"), "..."),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?"), "..."),
    (re.compile(r"\bin (\d+(us|ms|[smhdwy]))+"), "in ..."),
    (re.compile(r"\b(\d+(us|ms|[smhdwy]))+ ago"), "... ago"),
    (re.compile(r"age (\d+(us|ms|[smhdwy]))+ >="), "age ... >="),
    (re.compile(r"[\d,]+ records/s"), "... records/s"),
)


def page(text: str) -> str:
    """Return the page with the output of its commands as it is now; runs in the working directory."""

    def fresh(block: re.Match[str]) -> str:
        language, body = block[1], block[2]
        if language == "toml":
            tomllib.loads(body)
            Path("tiered.toml").write_text(body, encoding="utf-8")
            return block[0]
        commands = [part.partition("\n")[0] for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]]
        shown = "".join(f"$ {command}\n{_output(command)}" for command in commands)
        return f"```console\n{shown}```"

    return _BLOCK.sub(fresh, text)


def _output(command: str) -> str:
    text = ""
    for stage in command.split(" | "):
        if stage.startswith("tiered "):
            result = CliRunner().invoke(app, shlex.split(stage)[1:], input=text, prog_name="tiered")
            if result.exception is not None and not isinstance(result.exception, SystemExit):
                raise result.exception
            text = result.output
        else:
            text = subprocess.run(
                stage, shell=True, input=text, capture_output=True, text=True, check=True
            ).stdout
    text = text.replace(str(Path.cwd()) + "/", "...")
    for pattern, instead in _DIFFERS:
        text = pattern.sub(instead, text)
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines() if line.strip())


def main() -> None:
    """Write the page."""
    with EmbeddedS3.start() as server, tempfile.TemporaryDirectory() as folder:
        chosen = {
            "AWS_ENDPOINT_URL": server.url,
            "AWS_ACCESS_KEY_ID": "tour",
            "AWS_SECRET_ACCESS_KEY": "tour",
            "AWS_REGION": "us-east-1",
            "COLUMNS": "160",
        }
        with environment(chosen):
            boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=BUCKET)
            os.chdir(folder)
            text = page(PAGE.read_text(encoding="utf-8"))
            os.chdir(PAGE.parent)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

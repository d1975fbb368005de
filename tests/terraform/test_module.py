"""What of the module can be checked without a provider: format, documentation, and what must not be in it."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.terraform.commands import MODULE, ROOT, terraform_or_skip

hcl2 = pytest.importorskip("hcl2", reason="python-hcl2 is not installed: it is in the extra dev")

FILES = sorted(MODULE.rglob("*.tf"))
DEPLOY = runpy.run_path(str(ROOT / "docs" / "deploy.py"))


def parsed(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = hcl2.loads(path.read_text(encoding="utf-8"))
    return found


def blocks(value: Any, name: str) -> Iterator[Any]:
    """Yield every block of a name, however deep it lies, also where it is made by ``dynamic``."""
    if isinstance(value, dict):
        for key, inside in value.items():
            if key.strip('"') == name:
                yield from inside if isinstance(inside, list) else [inside]
            yield from blocks(inside, name)
    elif isinstance(value, list):
        for item in value:
            yield from blocks(item, name)


def test_everything_is_formatted() -> None:
    """As ``terraform fmt`` would: it needs no provider."""
    done = subprocess.run(
        [terraform_or_skip(), "fmt", "-check", "-recursive", "-diff", str(MODULE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(MODULE)))
def test_variables_and_outputs_are_typed_and_described(path: Path) -> None:
    found = parsed(path)
    for item in found.get("variable", ()):
        for name, block in item.items():
            assert block.get("type"), f"{name} has no type"
            assert DEPLOY["unquoted"](block.get("description", "")).endswith("."), f"{name} is not described"
            assert (
                block.get("nullable") is False
                or block.get("default", "") in (None, "null")
                or path.parent != MODULE
            ), name
    for item in found.get("output", ()):
        for name, block in item.items():
            assert DEPLOY["unquoted"](block.get("description", "")).endswith("."), f"{name} is not described"


def test_every_variable_that_can_be_wrong_has_a_validation_that_a_test_breaks() -> None:
    """And each is named in a test of the module."""
    refused = (MODULE / "tests" / "refused.tftest.hcl").read_text(encoding="utf-8")
    planned = "".join(path.read_text(encoding="utf-8") for path in (MODULE / "tests").glob("*.tftest.hcl"))
    for name, block in DEPLOY["variables"]().items():
        if name not in ("force_destroy", "kms_deletion_window_days"):
            assert re.search(rf"\b{name}\b\s*=", planned), f"no test of the module sets {name}"
        if block.get("validation"):
            assert f"var.{name}," in refused, f"no test shows what {name} refuses"


def test_no_rule_expires_an_object() -> None:
    """Only what the store itself gave up may end: a noncurrent version, the mark of a deletion."""
    found = [block for path in FILES for block in blocks(parsed(path), "expiration")]
    assert found
    for block in found:
        assert set(block) - {"__is_block__", "__comments__", "__inline_comments__"} == {
            "expired_object_delete_marker"
        }
    text = "".join(path.read_text(encoding="utf-8") for path in FILES)
    classes = set(re.findall(r'storage_class\s*=\s*"(\w+)"', text))
    assert not classes & {"GLACIER", "DEEP_ARCHIVE", "ONEZONE_IA"}


def test_destroy_takes_the_bucket_before_its_key() -> None:
    """S3 keeps a bucket that holds data; its key would be gone if Terraform were free to take it first."""
    (bucket,) = (
        item['"aws_s3_bucket"']['"this"']
        for item in parsed(MODULE / "bucket.tf")["resource"]
        if '"aws_s3_bucket"' in item
    )
    assert [DEPLOY["unquoted"](name) for name in bucket["depends_on"]] == ["aws_kms_key.this"]


def test_identity_policies_name_their_resources() -> None:
    """In the templates no resource and no action is a wildcard; elsewhere "*" stands for a key's own policy alone."""
    for path in (MODULE / "policies").iterdir():
        for statement in json.loads(path.read_text(encoding="utf-8"))["Statement"]:
            assert statement["Effect"] == "Allow"
            assert not any("*" in action for action in statement["Action"])
            assert not any(resource in ("*", "${bucket_arn}/*") for resource in statement["Resource"])
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        wild = re.findall(r'Resource\s*=\s*\[?"\*"', text)
        assert len(wild) == {"kms.tf": 1, "main.tf": 2 if "production" in str(path) else 0}.get(
            path.name, 0
        ), path


def test_the_tables_are_current() -> None:
    """Inputs, outputs and costs: run ``python docs/deploy.py``."""
    for path, text in DEPLOY["pages"]().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python docs/deploy.py"


def test_the_guide_and_the_unit_mean_the_same_places() -> None:
    """Program, settings and folder: who follows the guide can start the unit as it is."""
    guide = (ROOT / "docs" / "deploy-aws.md").read_text(encoding="utf-8")
    unit = (ROOT / "examples" / "deploy" / "tiered.service").read_text(encoding="utf-8")
    command = re.search(r"^ExecStart=(\S+) daemon --config (\S+)", unit, re.MULTILINE)
    folder = re.search(r"^ReadWritePaths=(\S+)$", unit, re.MULTILINE)
    user = re.search(r"^User=(\S+)$", unit, re.MULTILINE)
    assert command is not None
    assert folder is not None
    assert user is not None
    assert f"{command[1]} config check --config {command[2]}" in guide
    assert f'path = "{folder[1]}"' in guide
    assert re.search(rf"useradd .* {user[1]}$", guide, re.MULTILINE)


def test_the_guide_sets_what_the_module_prints() -> None:
    """The guide's settings have the keys of the fragment, which the engine accepts."""
    guide = (ROOT / "docs" / "deploy-aws.md").read_text(encoding="utf-8")
    block = re.search(r"```toml\n(\[cold\]\nurl = \"s3://acme.*?)```", guide, re.DOTALL)
    assert block is not None
    shown = tomllib.loads(block[1])
    assert set(shown["cold"]) == {"url", "region", "encryption", "kms_key_id", "tags"}
    tiered.Settings.model_validate(shown)
    template = (MODULE / "outputs.tf").read_text(encoding="utf-8")
    assert all(re.search(rf'"{key} = ', template) for key in shown["cold"])

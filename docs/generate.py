"""Write api.md, cli.md and metrics.md from docstrings, help texts and tables: ``make docs``. A test compares them."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator
from enum import EnumType
from pathlib import Path
from typing import Any, get_args, get_type_hints

import typer

import tiered
from tiered import aio, errors
from tiered.cli import app
from tiered.monitor.metrics import METRICS
from tiered.monitor.status import PartitionStatus, TierHoldings
from tiered.policies.policy import PRESETS, Policy
from tiered.reader.scan import TierShare
from tiered.settings.sections import PRESET_EXEMPT_RULES, PolicyTable
from tiered.spark import TieredDataSource, session
from tiered.verify.report import Problem, Repair, Unknown

DOCS = Path(__file__).resolve().parent
ROW = 100

Lines = Iterator[str]


def pages() -> dict[str, str]:
    """Return the generated pages by file name."""
    return {"api.md": _page(_api()), "cli.md": _page(_cli()), "metrics.md": _page(_metrics())}


def _page(lines: Lines) -> str:
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip() + "\n"


# -- docstrings ------------------------------------------------------------------------------------


def _markdown(text: str) -> str:
    """Return reStructuredText of the few kinds used here as Markdown."""
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def _cell(text: str) -> str:
    return _markdown(" ".join(text.split())).replace("|", "\\|")


def _docstring(target: Any) -> Lines:
    """Yield a numpydoc docstring as Markdown."""
    title, lines = "", []
    for line in [*(inspect.getdoc(target) or "").splitlines(), "", "End", "---"]:
        if lines and re.fullmatch(r"-{3,}", line):
            heading = lines.pop()
            yield from _section(title, lines)
            title, lines = heading, []
        else:
            lines.append(line)


def _section(title: str, lines: list[str]) -> Lines:
    yield ""
    if not title:
        yield from _prose(lines)
    elif title == "Examples":
        yield from ("```pycon", *(line.replace("  # doctest: +SKIP", "") for line in lines if line), "```")
    elif title in ("Parameters", "Attributes", "Returns", "Raises"):
        yield f"**{title}**"
        yield ""
        for name, text in _items(lines):
            yield f"- `{name}`" + (f": {_markdown(text)}" if text else "")
    else:
        yield from (f"**{title}**", "", _markdown("\n".join(lines)))


def _items(lines: list[str]) -> Iterator[tuple[str, str]]:
    name, text = "", []
    for line in [*lines, "."]:
        if line and not line.startswith(" "):
            if name:
                yield name, " ".join(text)
            name, text = line, []
        elif line:
            text.append(line.strip())


def _prose(lines: list[str]) -> Lines:
    rules = [number for number, line in enumerate(lines) if re.fullmatch(r"=+ +=+", line)]
    place = 0
    # A table has three: above its heading, below it, and at its end.
    for first, last in zip(rules[::3], rules[2::3], strict=True):
        yield _markdown("\n".join(lines[place:first]))
        yield from _table(lines[first : last + 1])
        place = last + 1
    yield _markdown("\n".join(lines[place:]))


def _table(lines: list[str]) -> Lines:
    """Yield a simple table of reStructuredText with two columns as one of Markdown."""
    cut = lines[0].index(" =") + 1
    rows: list[list[str]] = []
    for line in lines:
        if line.startswith("="):
            continue
        left, right = line[:cut].strip(), line[cut:].strip()
        if left:
            rows.append([left, right])
        else:
            rows[-1][1] += f" {right}"
    for number, (left, right) in enumerate(rows):
        yield f"| {_cell(left)} | {_cell(right)} |"
        if number == 0:
            yield "|---|---|"


def _signature(name: str, function: Any) -> Lines:
    parts = []
    seen_star = False
    signature = inspect.signature(function)
    for item in signature.parameters.values():
        if item.name in ("self", "cls"):
            continue
        if item.kind is item.KEYWORD_ONLY and not seen_star:
            parts.append("*")
            seen_star = True
        prefix = {item.VAR_POSITIONAL: "*", item.VAR_KEYWORD: "**"}.get(item.kind, "")
        default = "" if item.default is item.empty else f" = {item.default!r}"
        parts.append(f"{prefix}{item.name}: {_type(item.annotation)}{default}")
    back = f" -> {_type(signature.return_annotation)}"
    line = f"{name}({', '.join(parts)}){back}"
    if len(line) > ROW:
        line = "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){back}"])
    if inspect.iscoroutinefunction(function):
        line = f"async {line}"
    yield from ("```py", line, "```")


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


# -- the Python API --------------------------------------------------------------------------------


def _api() -> Lines:
    yield "# Python API"
    yield ""
    yield "Generated from the docstrings by `make docs`. The names on this page are the public ones; all but those"
    yield "of [asyncio](#asyncio) and [Spark](#spark) are importable from `tiered`. For the ideas behind them see [concepts](concepts.md)."
    yield ""
    yield "## Opening a store"
    yield from _function("tiered.open", tiered.open)
    yield from _function("tiered.restore", tiered.restore)
    for cls in (
        tiered.Store,
        tiered.Topic,
        tiered.Consumer,
        tiered.Producer,
        tiered.Erasure,
        tiered.Transaction,
        tiered.Snapshot,
        tiered.Scan,
        tiered.Server,
    ):
        yield from _class(cls)
    yield "## Values"
    yield ""
    yield "What calls take and return. All are frozen."
    for value in (
        tiered.Appended,
        tiered.OffsetRange,
        tiered.Record,
        tiered.Position,
        tiered.ScanPlan,
        TierShare,
        tiered.Split,
        tiered.ScanObject,
        tiered.TableInfo,
    ):
        yield from _value(value)
    for value in (
        tiered.Plan,
        tiered.TierReport,
        tiered.SweepReport,
        tiered.PartSweep,
        tiered.StoreStatus,
        PartitionStatus,
        TierHoldings,
        tiered.VerifyReport,
        Problem,
        Unknown,
        Repair,
    ):
        yield from _value(value)
    yield from _settings()
    yield from _errors()
    yield "## asyncio"
    yield ""
    yield "In the module `tiered.aio`; see [asyncio](asyncio.md)."
    yield from _function("tiered.aio.open", aio.open)
    for cls in (aio.AsyncStore, aio.AsyncTopic, aio.AsyncConsumer, aio.AsyncTransaction):
        yield from _class(cls)
    yield "## Spark"
    yield ""
    yield "In the module `tiered.spark`; see the [Spark guide](spark.md)."
    yield from _function("tiered.spark.session", session)
    yield from ("### `tiered.spark.TieredDataSource`", *_docstring(TieredDataSource))


def _function(name: str, function: Any) -> Lines:
    yield from (
        "",
        f"### `{name}`",
        "",
        *_signature(name.rpartition(".")[2], function),
        *_docstring(function),
        "",
    )


def _class(cls: type) -> Lines:
    yield from ("", f"## `{cls.__name__}`", *_docstring(cls))
    for name, member in _members(cls):
        if isinstance(member, property):
            yield from ("", f"### `{cls.__name__}.{name}`", "", "Property.", *_docstring(member))
        else:
            plain = member.__func__ if isinstance(member, classmethod) else member
            yield from _function(f"{cls.__name__}.{name}", plain)


def _value(cls: type) -> Lines:
    yield from ("", f"### `{cls.__name__}`", "")
    fields = [
        f"    {name}: {_field_type(kind)}"
        for name, kind in inspect.get_annotations(cls).items()
        if kind != "ClassVar"
    ]
    yield from ("```py", f"class {cls.__name__}:", *fields, "```", *_docstring(cls), "")
    for name, member in _members(cls):
        text = " ".join((inspect.getdoc(member) or "").split())
        if text:
            call = name if isinstance(member, property) else f"{name}()"
            yield f"- `{call}`: {_markdown(text)}"


def _field_type(kind: Any) -> str:
    return str(getattr(kind, "__forward_arg__", kind))


# What other packages of this project use, and nobody else is to rely on.
_BETWEEN_PACKAGES = {"abandon", "common_end", "lineages", "locations", "meta", "scan_cut", "tiers"}


def _members(cls: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(cls).items():
        is_member = inspect.isfunction(member) or isinstance(member, (property, classmethod))
        # An attribute without a docstring is described with its class.
        if (
            not name.startswith("_")
            and name not in _BETWEEN_PACKAGES
            and is_member
            and inspect.getdoc(member)
        ):
            yield name, member


# -- settings and errors ---------------------------------------------------------------------------


def _settings() -> Lines:
    yield from ("", "## `Settings`", *_docstring(tiered.Settings))
    for name in ("load", "policy_for", "to_json"):
        member = vars(tiered.Settings)[name]
        yield from _function(f"Settings.{name}", getattr(member, "__func__", member))
    yield ""
    yield "### Every setting and its default"
    yield ""
    yield 'As `tiered.toml` has them. `[policies."glob"]` tables take the same keys as `[policies.default]`; the first'
    yield "glob that matches a topic's name wins, and rules that it does not have are those of `[policies.default]`. A rule is"
    yield "taken whole: a key that it leaves out does not come from another table but has its default, which is"
    yield '`"off"` for `age` and `bytes` of `local_retention`: `{ age = "6h" }` sets no limit in bytes. `tiered config show`'
    yield "shows what holds for a topic. For what to change and why see [tuning](tuning.md)."
    yield ""
    defaults = tiered.Settings(policies={"default": PolicyTable(**dict(Policy()))})
    text = "\n".join(_toml(defaults))
    assert tiered.Settings.model_validate(tomllib.loads(text)).policy_for("any") == Policy()
    yield from ("```toml", text.strip(), "```", "")
    for name, preset in PRESETS.items():
        yield from (f'`preset = "{name}"` stands for these rules:', "", "```toml", "[policies.default]")
        yield from _rules(preset.model_dump(mode="json", exclude=set(PRESET_EXEMPT_RULES)))
        yield from ("```", "")


def _toml(settings: tiered.Settings) -> Lines:
    for section, keys in settings.model_dump(mode="json").items():
        yield from ("", f"[policies.{'default'}]") if section == "policies" else ("", f"[{section}]")
        if section == "policies":
            yield from _rules(keys["default"])
            continue
        for name, value in keys.items():
            optional = {
                "sync_every": "100",
                "url": '"s3://bucket/prefix"',
                "endpoint_url": '"http://127.0.0.1:9000"',
            }
            optional |= {"region": '"us-east-1"', "cron": '"*/5 * * * *"', "metrics": '"127.0.0.1:9464"'}
            optional |= {"kms_key_id": '"alias/my-key"', "cache_path": '"/var/cache/tiered"'}
            optional |= {"jitter": '"3s"', "token_file": '"/etc/tiered/token"'}
            optional |= {"listen": '"127.0.0.1:8815"', "tls_roots": '"/etc/tiered/ca.pem"'}
            optional |= {"tls_certificate": '"/etc/tiered/cert.pem"', "tls_key": '"/etc/tiered/key.pem"'}
            if section == "flight":
                optional["metrics"] = '"127.0.0.1:9465"'  # beside a daemon's
            yield f"# {name} = {optional[name]}" if value is None else f"{name} = {_toml_value(value)}"


def _rules(rules: dict[str, Any]) -> Lines:
    for name, rule in rules.items():
        if rule is not None:
            pairs = [f"{key} = {_toml_value(value)}" for key, value in rule.items() if value is not None]
            yield f"{name} = {{ {', '.join(pairs)} }}"


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return '"on"' if value else '"off"'
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f'"{key}" = {_toml_value(item)}' for key, item in value.items()) + " }"
    return str(value) if isinstance(value, int) else f'"{"off" if value is None else value}"'


def _errors() -> Lines:
    tree = (errors.__doc__ or "").partition("::\n")[2]
    yield from ("", "## Errors", "", "By what the caller can do about them:", "", "```text")
    yield from (inspect.cleandoc(tree).replace("``", ""), "```", "")
    for name in dir(errors):
        cls = getattr(errors, name)
        if (
            isinstance(cls, type)
            and issubclass(cls, tiered.TieredError)
            and cls.__module__ == errors.__name__
        ):
            yield from ("", f"### `{name}`", *_docstring(cls))
    yield ""


# -- the command line ------------------------------------------------------------------------------


def _cli() -> Lines:
    group: Any = typer.main.get_command(app)
    yield "# Command line"
    yield ""
    yield "Generated from `tiered --help` by `make docs`. Settings come from the options, then the environment"
    yield "(`TIERED_STORE__PATH`), then the file that `--config` names. Data go to standard output, everything else to"
    yield "standard error."
    yield ""
    yield "| Command | Does |"
    yield "|---|---|"
    for name in group.list_commands(None):
        summary = (group.commands[name].help or "").partition("\n\n")[0]
        yield f"| [`tiered {name}`](#tiered-{name}) | {' '.join(summary.split())} |"
    yield ""
    yield "Exit codes: 0; 1 if the command failed or found a problem, with one line on standard error; 2 for wrong"
    yield "usage; 130 after Ctrl-C; 141 where the reader of a pipe went away."
    for name in group.list_commands(None):
        yield from _command(name, group.commands[name])


def _command(name: str, command: Any) -> Lines:
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    options = [item for item in command.params if item.param_type_name == "option"]
    usage = " ".join(["tiered", name, "[OPTIONS]", *map(_placed, arguments)])
    yield from (
        "",
        f"## `tiered {name}`",
        "",
        "```text",
        usage,
        "```",
        "",
        _markdown(inspect.cleandoc(command.help or "")),
        "",
    )
    kinds = get_type_hints(command.callback)
    yield from ("| Argument or option | Meaning |", "|---|---|")
    for item in (*arguments, *options):
        yield f"| {_cell(_names(item, kinds.get(item.name)))} | {_cell(_meaning(item))} |"
    lines = [line for line in (command.epilog or "").splitlines() if line]
    if lines:
        yield from ("", lines[0], "", "```text", *lines[1:], "```")


def _placed(item: Any) -> str:
    """Return an argument as a usage line has it: in brackets where it may be left out, with dots where it may repeat."""
    metavar = item.metavar or item.name.upper()
    return f"{metavar if item.required else f'[{metavar}]'}{'...' if item.nargs == -1 else ''}"


def _names(item: Any, kind: Any) -> str:
    metavar = item.metavar or _choices(kind) or item.name.upper()
    if item.param_type_name == "argument":
        return f"`{metavar}`"
    return ", ".join(f"`{name}`" if item.is_flag else f"`{name} {metavar}`" for name in item.opts)


def _choices(kind: Any) -> str:
    for one in (kind, *get_args(kind)):
        if isinstance(one, EnumType):
            return "|".join(member.value for member in one)
    return ""


def _meaning(item: Any) -> str:
    text = " ".join((item.help or "").split())
    default = getattr(item.default, "value", item.default)
    if item.param_type_name == "option" and not item.is_flag and default is not None:
        text += f" Default: `{default}`."
    return re.sub(r" \[default: ([^]]+)\]", r" Default: \1.", text)


# -- metrics ---------------------------------------------------------------------------------------

_METRICS_INTRO = """
# Metrics

Generated from `tiered/monitor/metrics/catalogue.py` by `make docs`. The daemon serves them at `/metrics` of the address in
`daemon.metrics`; an application that keeps a store open mounts those of its own process:

```python
import tiered

with tiered.open("./data") as store:
    store.create_topic("events").append(b"hello", sync=True)
    registry = store.metrics()  # a prometheus_client.CollectorRegistry
    print(registry.get_sample_value("tiered_appended_records_total", {"topic": "events", "partition": "0"}))
```

```text
1
```

It needs `pip install 'tiered[daemon]'`. They are collected at each scrape from what the process has counted and from
a look at the local disk, and cost no request. Each process has its own: appends and syncs are counted by the writer,
passes, lag and uploads by the process that tiers, reads and cache hits by whoever reads. So scrape all of them, and
take the lag from the daemon. Counters begin at 0 with the process.

[`examples/monitoring/`](../examples/monitoring/) has a Grafana dashboard and alert rules for Prometheus. What each
alert asks of you is in its description; the thresholds are yours to change.
"""


def _metrics() -> Lines:
    yield _METRICS_INTRO
    for group in dict.fromkeys(metric.group for metric in METRICS):
        yield from (f"## {group}", "", "| Metric | Kind | Labels | Meaning |", "|---|---|---|---|")
        for metric in METRICS:
            if metric.group == group:
                labels = ", ".join(f"`{label}`" for label in metric.labels)
                yield f"| `{metric.name}` | {metric.kind} | {labels} | {_cell(metric.help)} |"
        yield ""


if __name__ == "__main__":
    for file, page in pages().items():
        (DOCS / file).write_text(page, encoding="utf-8")

"""``tiered status``, ``tiered plan`` and ``tiered tier``."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from ..base.units import approximate_size, format_duration, parse_duration
from ..errors import ConfigError
from ..format.timestamps import to_datetime
from ..monitor.status import PartitionStatus, StoreStatus, TierHoldings
from ..policies.actions import Action
from ..policies.cost import PRICES_AS_OF
from ..policies.executor import TierReport
from ..policies.forecast.simulate import Simulation
from ..policies.outlook import TierBytes
from ..policies.plan import Plan
from ..policies.tail_pace import TailPace
from .options import (
    AsJson,
    ColdUrl,
    ConfigFile,
    StorePath,
    Verbose,
    load_settings,
    open_for_tiering,
    open_to_look,
    open_to_plan,
)
from .output import count, error_line, iso, print_json, print_table, say, size, spinner

_CONSUMERS_MAX = 5
_EXECUTOR_LOG = logging.getLogger("tiered.policies.executor")


def status(
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Show the holdings of each tier for every partition, and the lag of the bucket.

    A record can be in several tiers. Records in the memory of another process are not shown as hot; they count as warm when
    they are durable. The exit code is 1 if something cannot be read.
    """
    with open_to_look(load_settings(config, path, cold)) as store:
        report = store.status()
    if as_json:
        print_json(report.to_json())
    else:
        _print_status(report)
    problems = [item for item in report if item.problem]
    if problems:
        error_line(f"{problems[0].topic}/{problems[0].partition}: {problems[0].problem}")
        raise typer.Exit(1)
    if report.ledger_problem:
        error_line(f"the ledger of erasures cannot be read: {report.ledger_problem}")
        raise typer.Exit(1)
    if report.consumers is None:
        error_line("the positions of consumers cannot be read")
        raise typer.Exit(1)
    if any(item.damaged for item in report):
        error_line("objects are damaged: tiered verify --repair")
        raise typer.Exit(1)


def _print_status(report: StoreStatus) -> None:
    print_table(
        ("topic", ">partition", ">start", ">end", "hot", "warm", "cold", ">in bucket to", ">lag"),
        [
            (
                item.topic,
                str(item.partition),
                f"{item.start_offset:,}",
                f"{item.end_offset:,}",
                *(_holdings(tier) for tier in (item.hot, item.warm, item.cold)),
                "-" if item.published_offset is None else f"{item.published_offset:,}",
                _lag(item),
            )
            for item in report
        ],
    )
    free = f", {approximate_size(report.disk_free_bytes)} of disk free" if report.disk_free_bytes else ""
    say(f"store {report.url}, bucket {report.cold_url or 'none'}{free}")
    _print_pace(report.tails)
    for partition in report:
        for line in partition.damaged:
            say(f"damaged in the bucket: {partition.topic}/{partition.partition}: {line}")
    paused = dict.fromkeys(
        f"{partition.topic} is {partition.paused}" for partition in report if partition.paused
    )
    for line in (*paused, *_consumers(report), *_tables(report), *report.erasures, *report.waiting):
        say(line)
    for name in report.deletions:
        say(f"the deletion of topic {name} is not finished: its tombstone is not in the bucket yet")


def _consumers(report: StoreStatus) -> Iterator[str]:
    """Yield a line for each consumer that is behind, a few at most."""
    if report.consumers is None:
        yield "the positions of consumers cannot be read"
        return
    behind = sorted(report.consumers, key=lambda item: -item.records)
    for item in behind[:_CONSUMERS_MAX]:
        yield (
            f"consumer {item.consumer} is {count(item.records, 'record')} behind in {item.topic}/{item.partition}"
        )
    if len(behind) > _CONSUMERS_MAX:
        yield f"{len(behind) - _CONSUMERS_MAX} more positions are behind: tiered consumers"


def _tables(report: StoreStatus) -> Iterator[str]:
    """Yield a line for each live table that is behind or fails."""
    for lag in report.tables:
        if lag.problem:
            yield f"table {lag.topic}: {lag.problem}"
        elif lag.records:
            at = f"at version {lag.version}" if lag.version else "and was not published yet"
            yield f"table {lag.topic} is {count(lag.records, 'record')} behind, {at}"


def _print_pace(pace: TailPace | None) -> None:
    if pace is not None and (line := pace.describe()):
        say(line)


def _holdings(tier: TierHoldings) -> str:
    return f"{count(tier.records, 'record')}, {approximate_size(tier.bytes)}" if tier.records else "-"


def _lag(item: PartitionStatus) -> str:
    if item.problem:
        return "unknown"
    if not item.lag_records or item.lag_seconds is None:
        return "-"
    return f"{count(item.lag_records, 'record')}, {format_duration(int(item.lag_seconds * 1e6), parts=1)}"


def plan(
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="Show all actions until this time: 2027-01-01, or 2027-01-01T12:00:00Z.",
            show_default=False,
        ),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            "--in",
            metavar="DURATION",
            help="Show all actions in this time from now, such as 30d.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Show the actions that the policies ask for now, with bytes, requests and estimated cost; change nothing.

    A line shows the size of each tier before and after. With --at or --in, the command shows the actions of all
    passes until then, if nothing is appended, by kind, topic and rule. Sizes are estimates: an object counts with the size
    of its segment.
    """
    until = _time_to_plan_for(at, after)
    with open_to_plan(load_settings(config, path, cold)) as store, spinner() as progress:
        progress.add_task("reading segments and manifests")
        simulated = None if until is None else store.tierer.planner.simulate(until)
        result = store.plan() if simulated is None else simulated.plan
    if simulated is not None:
        _print_simulation(simulated, as_json)
        return
    if as_json:
        print_json(result.to_json())
        return
    if result.actions:
        right = {"partition", "size", "requests"}
        print_table([f">{name}" if name in right else name for name in Plan.COLUMNS], result.describe())
    say(_summary(result))
    if result.actions and result.tiers:
        say(f"afterwards: {_tiers(result.tiers)}")
    _print_pace(result.tails)
    for note in (*result.notes, *result.waiting):
        say(f"note: {note}")


def _print_simulation(simulation: Simulation, as_json: bool) -> None:
    if as_json:
        print_json(simulation.to_json())
        return
    rows = [
        (
            item.kind,
            item.topic,
            f"{item.count:,}",
            approximate_size(item.bytes),
            f"{item.requests:,}",
            _when(item.first_us, simulation.start_us),
            _when(item.last_us, simulation.start_us),
            item.rule or "-",
        )
        for item in simulation.groups()
    ]
    if rows:
        print_table(("action", "topic", ">actions", ">size", ">requests", ">first", ">last", "rule"), rows)
    say(_summary(simulation.plan))
    say(f"until {iso(to_datetime(simulation.end_us))}, if nothing is appended: {_tiers(simulation.tiers)}")
    for note in (*simulation.notes, *simulation.waiting):
        say(f"note: {note}")


def _tiers(tiers: Iterable[TierBytes]) -> str:
    return ", ".join(
        f"{item.tier} {approximate_size(item.before)} to {approximate_size(item.after)}" for item in tiers
    )


def _when(at_us: int, start_us: int) -> str:
    return "now" if at_us <= start_us else f"in {format_duration(at_us - start_us, parts=2)}"


def _time_to_plan_for(at: str | None, after: str | None) -> datetime | None:
    """Return the time that the options name; None for now.

    Raises
    ------
    ConfigError, typer.BadParameter
    """
    if at is not None and after is not None:
        raise typer.BadParameter("--at and --in exclude each other", param_hint="--at")
    if after is not None:
        try:
            return datetime.now(UTC) + parse_duration(after)
        except ValueError as error:
            raise ConfigError(f"--in {after!r}: {error}") from None
        except OverflowError:
            raise ConfigError(f"--in {after!r} ends beyond the year 9999") from None
    if at is None:
        return None
    try:
        moment = datetime.fromisoformat(f"{at}T00:00:00Z" if len(at) == len("2027-01-01") else at)
    except ValueError:
        raise ConfigError(
            f"--at {at!r} is not a time such as 2027-01-01 or 2027-01-01T12:00:00Z; for a duration write --in"
        ) from None
    if moment.tzinfo is None:
        raise ConfigError(f"--at {at!r} has no time zone; for UTC write {moment.isoformat()}Z")
    if moment < datetime.now(UTC):
        raise ConfigError(f"--at {at!r} is in the past; a plan shows future actions only")
    return moment


def _summary(plan: Plan) -> str:
    if not plan.actions:
        return "nothing to do"
    requests, cost = plan.requests, plan.cost
    return (
        f"{count(len(plan.actions), 'action')}, {approximate_size(plan.bytes)}; to the bucket "
        f"{approximate_size(plan.upload_bytes)} with {count(requests.writes, 'write')} and "
        f"{count(requests.reads, 'read')}: about ${cost.one_off_usd:.4f} once and ${cost.monthly_usd:+.4f} a month "
        f"(list prices of S3 {plan.storage_class}, {PRICES_AS_OF})"
    )


def tier(
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    verbose: Verbose = False,
) -> None:
    """Run one full pass: every action that the policies ask for, erasures and the sweep; then publish the live tables.

    The exit code is 1 if an action failed, or if a partition or table cannot be read; all other actions are done.
    """
    with open_for_tiering(load_settings(config, path, cold)) as store, spinner() as progress:
        progress.add_task("tiering")
        # The table names the failed actions, so the log need not.
        _EXECUTOR_LOG.disabled = not verbose
        try:
            report, problems = store.tierer.run_once()
        finally:
            _EXECUTOR_LOG.disabled = False
        paused = {name: str(pause) for name, pause in store.tierer.pauses.among(store.topics()).items()}
    if as_json:
        notes = {"problems": [str(problem) for problem in problems], "paused": paused}
        print_json(report.to_json() | notes)
    elif report.done or report.failed or report.skipped or not problems:
        _print_report(report)
    if not as_json:
        for name, pause in paused.items():
            say(f"note: {name}: {pause}")
    if report.failed:
        total = len(report.done) + len(report.failed) + len(report.skipped)
        error_line(f"{len(report.failed)} of {count(total, 'action')} failed: {report.failed[0][1]}")
    elif problems:
        error_line(str(problems[0]))  # the log has all of them
    if report.failed or problems:
        raise typer.Exit(1)


def _print_report(report: TierReport) -> None:
    rows = [
        *(_row(action, size(moved), "done", "") for action, moved in report.done),
        *(_row(action, "-", "FAILED", message) for action, message in report.failed),
        *(_row(action, "-", "skipped", why) for action, why in report.skipped),
    ]
    if not rows:
        say("nothing to do")
        return
    print_table(("action", "topic", ">partition", "offsets", ">size", "result", "why"), rows)
    say(
        f"{len(report.done)} done, {len(report.failed)} failed, {len(report.skipped)} skipped; "
        f"{approximate_size(report.bytes)} in {report.seconds:.1f} s"
    )


def _row(action: Action, moved: str, result: str, why: str) -> tuple[Any, ...]:
    return action.kind, *action.location(), moved, result, why or action.reason

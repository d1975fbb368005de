"""The plan of a scan at the server: an endpoint for each split, with its ticket and the other places where it can be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow.flight as fl

from ...errors import ConfigError
from ...format.document import SPARSE_FEATURES
from ...format.timestamps import to_datetime
from ...reader.scan import Scan
from ...reader.splits import Split, borders
from ..wire.directory_id import directory_id
from ..wire.messages import PlanInfo, ScanCommand, SplitInfo, Ticket
from ..wire.topic_ref import resolve_topic

if TYPE_CHECKING:
    from ...store.local_store import LocalStore
    from ...store.local_topic import LocalTopic


def command_of(descriptor: fl.FlightDescriptor) -> ScanCommand:
    """Return the scan that a descriptor asks for; a path names a topic and asks for all of it.

    Raises
    ------
    ConfigError
    """
    if descriptor.descriptor_type == fl.DescriptorType.PATH:
        if len(descriptor.path) != 1:
            raise ConfigError("the path of a flight is the name of a topic")
        return ScanCommand(descriptor.path[0].decode("utf-8", "replace"))
    return ScanCommand.decode(bytes(descriptor.command))


def scan_of(topic: LocalTopic, command: ScanCommand) -> Scan:
    """Take the snapshot; its records are durable (promise P2)."""
    return topic.scan(
        partitions=command.partitions,
        start_offset=command.start_offset,
        end_offset=command.end_offset,
        start_timestamp=moment(command.start_timestamp_us),
        end_timestamp=moment(command.end_timestamp_us),
        key=command.key,
        columns=command.columns,
        limit=command.limit,
        filter=command.filter,
    )


def moment(time_us: int | None) -> object:
    """Return microseconds as a timestamp for `Topic.scan`."""
    try:
        return None if time_us is None else to_datetime(time_us)
    except OverflowError:
        raise ConfigError(f"{time_us} µs since the epoch is out of range: years 1 to 9999") from None


def plan_flight(store: LocalStore, descriptor: fl.FlightDescriptor) -> fl.FlightInfo:
    """Plan the scan that a descriptor asks for."""
    command = command_of(descriptor)
    topic = resolve_topic(store, command.topic, command.topic_id)
    lineages = topic.lineages_of(range(topic.partitions))  # before the scan: a restore in between is noticed
    scan = scan_of(topic, command)
    splits = [piece for split in scan.splits() for piece in cut(split, command.split_bytes)]
    dense = SPARSE_FEATURES.isdisjoint(store.context.catalog.features())
    base = replace(ticket_of(topic, scan, command), dense=dense)
    counted = dense and command.limit is None and not base.query.filters
    endpoints = [
        fl.FlightEndpoint(
            replace(
                base,
                partition=item.partition,
                start_offset=item.start_offset,
                end_offset=item.end_offset,
                lineage=lineages.get(item.partition),
            ).encode(),
            [],  # no location: the server that planned
            app_metadata=SplitInfo.of(item).encode(),
        )
        for item in splits
    ]
    return fl.FlightInfo(
        scan.schema,
        descriptor,
        endpoints,
        sum(item.record_count for item in splits) if counted else -1,
        sum(item.bytes for item in splits),
        ordered=True,
        app_metadata=plan_info(store, topic, scan).encode(),
    )


def ticket_of(topic: LocalTopic, scan: Scan, command: ScanCommand) -> Ticket:
    """Return the part of a ticket that all splits of a scan share."""
    query = scan.query
    return Ticket(
        topic.name,
        topic.opened.meta.topic_id,
        0,
        0,
        0,
        tuple(scan.schema.names),
        command.start_timestamp_us,
        command.end_timestamp_us,
        query.key,
        query.key_column,
        command.limit,
        query.filter,
    )


def plan_info(store: LocalStore, topic: LocalTopic, scan: Scan) -> PlanInfo:
    """Return the facts that all splits share."""
    locations = store.context.tiers.locations
    options = locations.cold_options
    return PlanInfo(
        topic.opened.meta,
        scan.offsets,
        tuple(scan.schema.names),
        locations.cold_url,
        options.endpoint_url,
        options.region,
        None if locations.root is None else str(locations.root),
        None if locations.root is None else directory_id(locations.root),
    )


def cut(split: Split, bytes_max: int | None) -> Iterator[Split]:
    """Yield a split in pieces of about `bytes_max` that begin where a row group or block begins. Pure."""
    if bytes_max is None or split.bytes <= bytes_max:
        yield split
        return
    start, size = split.start_offset, 0
    for offset, length in borders(split):
        if offset >= split.end_offset:
            break
        if offset > start and size + length > bytes_max and size:
            yield replace(split, start_offset=start, end_offset=offset, bytes=size)
            start, size = offset, 0
        # Blocks before the start of the split do not count, except the one with the start.
        size = length if offset <= split.start_offset else size + length
    yield split if start == split.start_offset else replace(split, start_offset=start, bytes=size)

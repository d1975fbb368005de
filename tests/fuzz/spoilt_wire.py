"""A proxy that spoils what a Flight client sends, within messages of Arrow: all around them stays as it was.

So a real client meets a real server, in another process, and no layer but Arrow's reader and ours is given nonsense.
Lengths stay as they are: those of gRPC and HTTP/2 frame the messages.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

Spoil = Callable[[bytes, bool], bytes]
"""Returns as many bytes as it is given: a message's metadata, or, where the second argument says so, its body."""

_PREFACE_BYTES = 24
_FRAME_BYTES = 9
_DATA_FRAME = 0
_GRPC = struct.Struct(">BI")
# Fields of Flight's protobuf message `FlightData`.
_METADATA, _BODY = 2, 1000


class SpoiltWire:
    """Forwards connections to a server; also a context manager.

    Attributes
    ----------
    port : int
        Where to connect.
    sent : list of bytes
        Metadata and bodies as they were spoilt, since it was cleared last.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listening]
        self.port = self._listening.getsockname()[1]
        self.sent: list[bytes] = []
        self._spoil: Spoil | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def use(self, spoil: Spoil | None) -> None:
        """Spoil by this from now on."""
        self._spoil = spoil
        self.sent.clear()

    def close(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def __enter__(self) -> SpoiltWire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for forward, one, other in (
                    (self._forward, client, server),
                    (_copy, server, client),
                ):
                    threading.Thread(target=forward, args=(one, other), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError), client.makefile("rb") as stream:
            server.sendall(stream.read(_PREFACE_BYTES))
            while len(head := stream.read(_FRAME_BYTES)) == _FRAME_BYTES:
                payload = stream.read(int.from_bytes(head[:3]))
                if head[3] == _DATA_FRAME:
                    payload = self._spoilt(payload)
                server.sendall(head + payload)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _spoilt(self, payload: bytes) -> bytes:
        """Spoil the messages that lie in one frame wholly."""
        found, at = bytearray(payload), 0
        while at + _GRPC.size <= len(found):
            _, length = _GRPC.unpack_from(found, at)
            first, at = at + _GRPC.size, at + _GRPC.size + length
            if at > len(found):
                break
            for start, end, is_body in _arrow_parts(found, first, at):
                if self._spoil is not None:
                    part = self._spoil(bytes(found[start:end]), is_body)
                    assert len(part) == end - start
                    found[start:end] = part
                    self.sent.append(part)
        return bytes(found)


def _copy(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while data := one.recv(1 << 16):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)


def _arrow_parts(data: bytearray, at: int, end: int) -> Iterator[tuple[int, int, bool]]:
    """Yield where metadata and body of a `FlightData` lie, and which it is; nothing of what is none."""
    while at < end:
        tag, at = _varint(data, at)
        if tag & 7 != 2:
            return
        length, at = _varint(data, at)
        if tag >> 3 in (_METADATA, _BODY) and length:
            yield at, at + length, tag >> 3 == _BODY
        at += length


def _varint(data: bytearray, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, at, shift = value | (byte & 127) << shift, at + 1, shift + 7
        if byte < 128:
            return value, at

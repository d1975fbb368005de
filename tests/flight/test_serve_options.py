"""Options of serving and connecting: who is let in, which token counts, and what an address is."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import tiered
from tiered.errors import ConfigError
from tiered.flight.wire.options import (
    TOKEN_VARIABLE,
    Address,
    ConnectOptions,
    ServeOptions,
    chosen_token,
    connect_options,
    is_loopback,
    read_file,
    read_token,
)


def settings_of(**flight: object) -> tiered.Settings:
    return tiered.Settings.model_validate({"flight": flight})


@pytest.mark.parametrize(
    ("host", "token", "allow_remote"),
    [
        *itertools.product(
            ["127.0.0.1", "::1", "localhost", "10.0.0.1", "0.0.0.0", "a.host"], [None, "t"], [False, True]
        )
    ],
)
def test_other_hosts_are_let_in_by_a_token_or_by_name_alone(
    host: str, token: str | None, allow_remote: bool
) -> None:
    options = ServeOptions(token=token, allow_remote=allow_remote)
    if host in ("127.0.0.1", "::1", "localhost") or token or allow_remote:
        options.check(host)
        return
    with pytest.raises(ConfigError, match=r"can be reached from other hosts.*give a token"):
        options.check(host)


@pytest.mark.parametrize(("certificate", "key"), [*itertools.product([None, b"PEM"], repeat=2)])
def test_a_certificate_and_its_key_are_given_together(certificate: bytes | None, key: bytes | None) -> None:
    options = ServeOptions(tls_certificate=certificate, tls_key=key)
    if certificate == key:
        options.check("127.0.0.1")
        return
    with pytest.raises(ConfigError, match="together, or neither"):
        options.check("127.0.0.1")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True), ("127.8.9.10", True), ("::1", True), ("localhost", True),
        ("10.0.0.1", False), ("0.0.0.0", False), ("::", False), ("localhost.example", False), ("", False),
    ],
)  # fmt: skip
def test_only_this_host_reaches_a_loopback_address(host: str, loopback: bool) -> None:
    assert is_loopback(host) == loopback


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("grpc://a.host:8815", Address("a.host", 8815)),
        ("grpc://a.host:8815/", Address("a.host", 8815)),
        ("grpc+tls://a.host:65535", Address("a.host", 65535, tls=True)),
        ("grpc://[::1]:1", Address("::1", 1)),
    ],
)
def test_a_url_names_a_server_and_is_made_of_its_address(url: str, address: Address) -> None:
    assert Address.of_url(url) == address
    assert address.location == url.removesuffix("/")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "a.host:8815",
        "grpc://a.host",
        "grpc://a.host:65536",
        "grpc://me:secret@a.host:8815",
        "grpc://::1:8815",
    ],
)
def test_what_is_no_url_of_a_server_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(ConfigError, match="grpc://host:port") as caught:
        Address.of_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:0", Address("127.0.0.1", 0, tls=True)),
        ("grpc://a.host:65535", Address("a.host", 65535, tls=True)),
        ("[::1]:8815", Address("::1", 8815, tls=True)),
    ],
)
def test_a_server_listens_at_a_host_and_a_port(text: str, address: Address) -> None:
    assert Address.to_listen(text, tls=True) == address


@pytest.mark.parametrize(
    "text", ["", ":8815", "a.host:", "a.host", "8815", "a.host:x", "a.host:-1", "a.host:65536"]
)
def test_what_is_no_address_to_listen_at_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no address to listen at"):
        Address.to_listen(text, tls=False)


def test_a_token_that_is_given_comes_before_the_environment_and_that_before_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    file = tmp_path / "token"
    file.write_text(" of-the-file\n")
    settings = settings_of(token_file=str(file))
    assert chosen_token(settings_of(), None) is None
    assert chosen_token(settings, None) == "of-the-file"
    monkeypatch.setenv(TOKEN_VARIABLE, "of-the-environment")
    file.unlink()  # and is not looked at
    assert chosen_token(settings, None) == "of-the-environment"
    assert chosen_token(settings, "given") == "given"


@pytest.mark.parametrize("token", ["", " ", "a b ", " a", "a\x07b", "a\nb", "tökén", b"token", 5])
def test_what_a_header_cannot_carry_is_no_token(token: Any) -> None:
    with pytest.raises(ConfigError, match="printable ASCII"):
        chosen_token(settings_of(), token)


@pytest.mark.parametrize("path", [5, b"cert.pem", "\0"])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(ConfigError, match=r"flight\.tls_key: .* is no path of a file"):
        read_file(path, "flight.tls_key")


def test_no_file_is_no_token_and_no_certificate() -> None:
    assert read_token(None) is None
    assert read_file(None, "flight.tls_roots") is None
    assert connect_options(settings_of(), "t") == ConnectOptions("t", None)


def test_a_file_that_a_setting_names_has_to_be_there_and_to_hold_something(tmp_path: Path) -> None:
    file = tmp_path / "file"
    with pytest.raises(ConfigError) as caught:
        read_file(file, "flight.token_file")
    assert str(caught.value) == f"flight.token_file: {file}: No such file or directory"
    file.write_bytes(b" \n")
    with pytest.raises(ConfigError, match="is empty"):
        read_file(file, "flight.token_file")
    file.write_bytes(b" x\n")
    assert read_file(file, "flight.token_file") == b" x\n"


def test_certificates_to_trust_are_looked_at_before_anybody_is_called(tmp_path: Path) -> None:
    file = tmp_path / "roots.pem"
    file.write_text("no certificate")
    with pytest.raises(ConfigError, match="holds no certificates in PEM"):
        connect_options(settings_of(tls_roots=str(file)), None)

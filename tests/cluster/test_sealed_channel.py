"""Tests of the encryption between a Jupyter server and a node agent."""

from __future__ import annotations

import json

import pytest

from jupyter_gpushare.cluster.channel.sealed_channel import ChannelError, SealedChannel


def pair() -> tuple[SealedChannel, SealedChannel]:
    server, agent = SealedChannel(is_server=True), SealedChannel(is_server=False)
    server.accept(agent.greeting())
    agent.accept(server.greeting())
    return server, agent


def test_each_end_opens_what_the_other_has_sealed() -> None:
    server, agent = pair()
    for text in (b"", b"one", b"\n two \n", bytes(100_000)):
        assert agent.open(server.seal(text)) == text
        assert server.open(agent.seal(text)) == text


def test_a_recording_shows_neither_texts_nor_repetitions() -> None:
    server, agent = pair()
    lines = [server.seal(b"secret"), server.seal(b"secret"), agent.seal(b"secret")]
    assert len(set(lines)) == 3
    assert not any(b"secret" in line for line in [*lines, server.greeting()])


def test_a_changed_a_repeated_and_a_reflected_line_are_refused() -> None:
    server, agent = pair()
    line = server.seal(b"text")
    with pytest.raises(ChannelError):
        agent.open(line.replace(line[:4], b"AAAA", 1))
    with pytest.raises(ChannelError):
        server.open(line)
    assert agent.open(line) == b"text"
    with pytest.raises(ChannelError):
        agent.open(line)


@pytest.mark.parametrize(
    "line", [b"", b"Last login: today\n", b"[]\n", b"{}\n", b'{"gpushare-node": 1, "public_key": "?"}\n']
)
def test_a_line_of_another_program_is_no_greeting(line: bytes) -> None:
    with pytest.raises(ChannelError, match="no greeting"):
        SealedChannel(is_server=True).accept(line)


def test_another_version_is_refused_with_both_versions() -> None:
    greeting = json.loads(SealedChannel(is_server=False).greeting())
    greeting["gpushare-node"] = 7
    with pytest.raises(ChannelError, match=r"version 7.*version 1"):
        SealedChannel(is_server=True).accept(json.dumps(greeting).encode())

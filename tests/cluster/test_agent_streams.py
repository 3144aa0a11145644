"""Tests of the standard streams of a node agent."""

from __future__ import annotations

import argparse
import fcntl
import shlex
import socket
import subprocess
import sys
import termios
from pathlib import Path

import msgspec
import pytest

from jupyter_gpushare.cluster.channel.messages import Output
from jupyter_gpushare.cluster.channel.sealed_channel import SealedChannel
from jupyter_gpushare.cluster.node import kernel_folder, node_agent
from jupyter_gpushare.cluster.settings import GpuShareCluster

from ..support.polling import wait_until
from .conftest import WAIT


def test_the_agent_refuses_a_program_that_is_no_jupyter_server(state: Path) -> None:
    command = GpuShareCluster().command("localhost")
    done = subprocess.run(command, input=b"status\n", capture_output=True, timeout=WAIT, check=False)
    assert done.returncode == 2
    assert b"Jupyter servers start this command" in done.stderr


@pytest.mark.parametrize("redirection", ["< /dev/null", "< /etc/hosts", "< /dev/ptmx", "<&-"])
def test_the_agent_refuses_an_input_for_which_it_cannot_wait(state: Path, redirection: str) -> None:
    command = f"{shlex.join(GpuShareCluster().command('localhost'))} {redirection}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=WAIT, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    sentence = "the standard input is neither a pipe nor a socket; Jupyter servers start this command"
    assert done.stderr == f"jupyter gpushare agent: {sentence}\n"


@pytest.mark.parametrize(
    ("redirection", "reason"), [("> /dev/full", "cannot be written: No space left on device"), (">&-", "is closed")]
)
def test_the_agent_ends_without_an_output(state: Path, redirection: str, reason: str) -> None:
    command = f"{shlex.join(GpuShareCluster().command('localhost'))} {redirection}"
    done = subprocess.run(["sh", "-c", command], input="", capture_output=True, text=True, timeout=WAIT, check=False)
    sentence = f"the standard output {reason}; Jupyter servers start this command"
    assert (done.returncode, done.stderr) == (2, f"jupyter gpushare agent: {sentence}\n")


def test_the_agent_refuses_a_line_that_is_too_long(state: Path) -> None:
    command = GpuShareCluster().command("localhost")
    text = b"x" * (2 * node_agent.MAX_LINE_BYTES)
    done = subprocess.run(command, input=text, capture_output=True, timeout=WAIT, check=False)
    sentence = b"a line of the standard input has more than 16 MiB; Jupyter servers start this command"
    assert (done.returncode, done.stderr) == (2, b"jupyter gpushare agent: " + sentence + b"\n")


def test_the_agent_serves_one_socket_for_both_directions(state: Path) -> None:
    """The answer is larger than the buffer of the socket, which is full while the test reads nothing."""
    mine, theirs = socket.socketpair()
    with mine, theirs:
        agent = subprocess.Popen(GpuShareCluster().command("localhost"), stdin=theirs, stdout=theirs)
        theirs.close()
        folder = kernel_folder.KernelFolder("k1")
        folder.make()
        (folder.path / "output").write_bytes(b"x" * (2 << 20))
        channel = SealedChannel(is_server=True)
        with mine.makefile("rwb") as lines:
            channel.accept(lines.readline())
            request = msgspec.json.encode(Output(id=7, kernel="k1", max_bytes=2 << 20))
            lines.write(channel.greeting() + channel.seal(request))
            lines.flush()
            wait_until(lambda: fcntl.ioctl(mine, termios.FIONREAD, bytes(4)) != bytes(4), WAIT)
            answer = msgspec.json.decode(channel.open(lines.readline()))
        assert (answer["id"], len(answer["result"]["text"])) == (7, 2 << 20)
        mine.close()
        assert agent.wait(WAIT) == 0


def test_a_user_without_a_home_directory_has_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(sys, "stdin", None)
    assert node_agent.main(argparse.Namespace()) == 2

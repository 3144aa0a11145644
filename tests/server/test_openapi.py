"""Tests that openapi.yaml describes the routes, docs/reference/rest.md and the replies of a real server."""

from __future__ import annotations

import asyncio
import copy
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from jupyter_gpushare.server.app import ROOT, GpuShareApp
from jupyter_gpushare.server.handlers import NoSuchRoute
from jupyter_gpushare.wire import messages
from jupyter_gpushare.wire.client import encode

DESCRIPTION = Path(sys.modules[GpuShareApp.__module__].__file__ or "").with_name("openapi.yaml")
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "rest.md"
CLIENTS = ("6b9ad1b2-0a4c-4d6c-a0a2-1f0f7e7e0001", "run:job.1@host")
EXAMPLES = os.environ.get("GPUSHARE_TEST_EXAMPLES", "3")
SEED = os.environ.get("GPUSHARE_TEST_SEED", "1")
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
CHECKS += ",unsupported_method,allow_header_conformance,ignored_auth,negative_data_rejection"

description = yaml.safe_load(DESCRIPTION.read_text())
described = {(method, path) for path, item in description["paths"].items() for method in item if method != "parameters"}


async def test_every_route_and_method_is_described(extension: GpuShareApp) -> None:
    served = {
        (method.lower(), anonymous(pattern.removeprefix(ROOT)))
        for pattern, handler, _ in extension.handlers
        if pattern.startswith(ROOT) and handler is not NoSuchRoute
        for method in handler.allowed_methods()
    }
    assert served == {(method, anonymous(path)) for method, path in described}


def anonymous(path: str) -> str:
    """Replace the parameters of a path by asterisks."""
    return re.sub(r"\(.*?\)|\{\w+\}", "*", path)


def test_rest_document_lists_the_described_routes() -> None:
    routes = re.findall(r"^\| `([A-Z]+) /gpushare/api(/[^`?]*)(?:\?[^`]*)?` \|", DOCUMENT.read_text(), re.MULTILINE)
    assert {(method.lower(), path) for method, path in routes} == described


def test_every_reason_that_is_documented_has_its_status() -> None:
    """Each status in the table of errors belongs to a route, except 405 and 500, which belong to all."""
    rows = re.findall(r"^\| (\d{3}) \|", DOCUMENT.read_text(), re.MULTILINE)
    in_routes = {
        code
        for item in description["paths"].values()
        for operation in item.values()
        if isinstance(operation, dict)
        for code in operation["responses"]
    }
    assert set(rows) - {"405", "500"} == in_routes - {"200", "101"}


async def attached(path: str, client: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Attach as a kernel, so that the coordinator keeps the client."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(encode(messages.Attach(client=client, token="secret")))
    assert b"welcome" in await reader.readline()
    return reader, writer


@pytest.mark.skipif(not importlib.util.find_spec("schemathesis"), reason="schemathesis is not installed (extra `test`)")
@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_random_requests_get_described_replies(
    jp_serverapp: Any, jp_base_url: str, jp_auth_header: dict[str, str], coordinator: Any, api: Any, tmp_path: Path
) -> None:
    """Every request made from the description gets an answer of the description."""
    await coordinator.start(*CLIENTS)
    kernels = [await attached(coordinator.path, client) for client in CLIENTS]
    document: dict[str, Any] = copy.deepcopy(description)
    # A random id almost never is the id of a client.
    document["components"]["parameters"]["Client"]["schema"] = {"enum": [*CLIENTS, "nobody"]}
    file = tmp_path / "openapi.yaml"
    file.write_text(yaml.safe_dump(document))
    header = f"Authorization: {jp_auth_header['Authorization']}"
    url = f"http://127.0.0.1:{jp_serverapp.port}{jp_base_url}gpushare/api"
    options = ["--checks", CHECKS, "--max-examples", EXAMPLES, "--seed", SEED, "--phases", "examples,coverage,fuzzing"]
    options += ["--header", header, "--no-color", "--generation-database", "none", "--suppress-health-check", "all"]
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "run", str(file), "--url", url, *options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=tmp_path,
    )
    output, _ = await run.communicate()
    print(output.decode())
    assert run.returncode == 0, output.decode()
    for _, kernel in kernels:
        kernel.close()
    assert (await api("GET", "status"))["coordinator"]["pid"] == coordinator.pid, "the coordinator must not restart"

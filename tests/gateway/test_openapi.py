"""The description against the routes: whatever comes, nothing breaks, and nothing undocumented comes back."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from perdure import cli
from tests.gateway.conftest import Gateway

ROUTE = re.compile(r"`((?:GET|POST|DELETE) [^`]+)`")
SECONDS = 35  # of fuzzing
OPEN = ("/v1/webhooks/", "/v1/mcp/callback")  # a signature, and the state of a login, stand for a token
EXCLUDED = (
    # Whether a run exists, waits, or still goes, is no matter of the schema.
    "positive_data_acceptance,ensure_resource_availability,use_after_free"
)


# A body that is too large is refused too.
CONFIG = """
[checks]
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 409, 413, 415, 422, 429, 503]
"""


def test_nothing_breaks_and_nothing_undocumented_comes_back(gateway: Gateway, tmp_path: Path) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIG)
    command = [str(Path(sys.executable).parent / "schemathesis"), "run", f"{gateway.url}/openapi.json"]
    command += ["--header", f"Authorization: Bearer {gateway.token}", "--checks", "all", "--exclude-checks", EXCLUDED]
    command += ["--phases", "examples,coverage,fuzzing", "--max-examples", "12", "--max-time", str(SECONDS)]
    command += ["--seed", "7", "--continue-on-failure", "--no-color", "--request-timeout", "45"]
    command += ["--generation-database", "none", "--suppress-health-check", "all"]
    command += ["--max-response-time", "40"]  # a result may be waited for 30 s
    # Streams of runs that go on do not end; test_live has them.
    command += ["--exclude-path", "/v1/runs/{run_id}/events"]
    plain = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    done = subprocess.run(command, cwd=tmp_path, env=plain, capture_output=True, text=True, timeout=200, check=False)
    said = "\n".join(line[:500] for line in (done.stdout + done.stderr).splitlines())  # a body may be a megabyte
    assert done.returncode == 0, said
    assert "Traceback" not in done.stderr


async def test_the_description_names_problems_and_scopes(gateway: Gateway) -> None:
    described = (await gateway.get("/openapi.json")).json()
    for path, methods in described["paths"].items():
        for operation in methods.values():
            refusals = {code: answer for code, answer in operation["responses"].items() if int(code) >= 400}
            assert path == "/readyz" or all("application/problem+json" in each["content"] for each in refusals.values())
            assert ("security" in operation) == (path.startswith(("/v1", "/a2a")) and not path.startswith(OPEN))
    schema: dict[str, Any] = {"$ref": "#/components/schemas/Problem", "components": described["components"]}
    Draft202012Validator(schema).validate((await gateway.get("/v1/runs/nobody")).json())
    assert described["paths"]["/v1/runs"]["post"]["security"] == [{"token": ["runs:start"]}]


async def test_the_docs_name_every_route_with_its_scope(gateway: Gateway) -> None:
    text = (Path(cli.__file__).parents[1] / "docs" / "gateway.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:3] for line in text.splitlines() if ROUTE.match(line, 2)]
    table = {route: scope.strip(" `") for named, scope in rows for route in ROUTE.findall(named)}
    paths = (await gateway.get("/openapi.json")).json()["paths"]
    plain = {
        "run_id": "id",
        "conversation_id": "id",
        "chat_id": "id",
        "thread_id": "id",
        "name": "name",
        "agent": "agent",
    }
    served = {
        # A second id keeps its name.
        f"{method.upper()} {re.sub(r'{(.*?)}', lambda name: '{' + plain[name[1]] + '}', path, count=1)}": operation
        for path, methods in paths.items()
        for method, operation in methods.items()
    }
    assert table.keys() - {"GET /openapi.json"} == served.keys()
    for route, operation in served.items():
        scopes = [scope for each in operation.get("security", ()) for scope in each["token"]]
        assert (scopes or [table[route]]) == [table[route]]

"""Headers of tools and of the outbox that come from the environment: sent to their one host, shown nowhere else."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest

from perdure.activities.storage.workspace import Workspace
from perdure.activities.tools.interface import CallContext
from perdure.features.follow_ups.contract import Outbound
from perdure.features.follow_ups.outbox import outbox_of
from perdure.process.project import build_project
from perdure.settings import ProjectError, Settings, load_settings

TOKEN = "Bearer shop-canary-81723"
TABLES = """
[tools.ask]
kind = "http"
description = "Asks."
input_schema = {{ type = "object" }}
url = "{url}"
headers_env = {{ Authorization = "SHOP_AUTH", X-Team = "SHOP_TEAM" }}

[tools.later]
kind = "signal"
description = "Asks."
input_schema = {{ type = "object" }}
url = "{url}"
headers_env = {{ Authorization = "SHOP_AUTH" }}

[outbox]
kind = "http"
url = "{url}"
headers_env = {{ authorization = "SHOP_AUTH" }}
"""
ENV = {"SHOP_AUTH": f"{TOKEN}\n", "SHOP_TEAM": "team-canary-5512"}

Seen = list[tuple[str, dict[str, str], str]]


@contextmanager
def site(redirects_to: str = "") -> Iterator[tuple[str, Seen]]:
    seen: Seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(307 if redirects_to else 200)
            if redirects_to:
                self.send_header("location", redirects_to)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/in", seen
    finally:
        server.shutdown()
        server.server_close()


def settings_of(folder: Path, toml: str, **env: str) -> Settings:
    (folder / "perdure.toml").write_text(toml, encoding="utf-8")
    return load_settings(env, folder)


async def post_all(settings: Settings, folder: Path) -> list[str]:
    """Make one POST of each kind; return what is recorded of them."""
    context = CallContext("r", 3, "key", datetime.now(UTC), Workspace(folder / "run"))
    async with httpx.AsyncClient(trust_env=False, follow_redirects=True) as client:
        project = build_project(settings, client)
        outbox = outbox_of(project)
        assert outbox is not None
        outcomes = [await project.tools[name].run({}, context) for name in ("ask", "later")]
        outcomes.append(await outbox.send(Outbound(channel_id="c", text="hello"), "key"))
    return [outcome.model_dump_json() for outcome in outcomes]


async def test_each_kind_of_post_has_its_headers_and_nothing_else_does(tmp_path: Path) -> None:
    with site() as (url, seen):
        settings = settings_of(tmp_path, TABLES.format(url=url), **ENV)
        settings.check_headers()
        recorded = await post_all(settings, tmp_path)
    assert [headers["authorization"] for _, headers, _ in seen] == [TOKEN] * 3
    assert ["x-team" in headers for _, headers, _ in seen] == [True, False, False]
    assert all(headers["idempotency-key"] for _, headers, _ in seen)
    text = json.dumps([recorded, [body for *_, body in seen], repr(settings)])
    assert "canary" not in text
    for secret in (TOKEN, TOKEN.removeprefix("Bearer "), "team-canary-5512"):
        assert "canary" not in settings.secrets.redact(f"it said {secret}!")


async def test_no_header_follows_a_redirect(tmp_path: Path) -> None:
    with site() as (other, stolen), site(redirects_to=other) as (url, seen):
        recorded = await post_all(settings_of(tmp_path, TABLES.format(url=url), **ENV), tmp_path)
    assert (len(seen), stolen) == (3, [])
    assert all("307" in outcome for outcome in recorded)


def test_a_variable_that_is_not_set_is_named_where_a_worker_starts(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, TABLES.format(url="https://shop.test/in"), SHOP_AUTH=TOKEN)
    with pytest.raises(ProjectError, match=r"line 7: tools\.ask\.headers_env\.X-Team: SHOP_TEAM is not set$"):
        settings.check_headers()


OUTBOX = '[outbox]\nkind = "http"\nurl = "https://a.test"\nheaders_env = {env}'
SIGNAL = '[tools.t]\nkind = "signal"\ndescription = "x"\ninput_schema = {{ type = "object" }}\nheaders_env = {env}'


@pytest.mark.parametrize(
    ("toml", "env", "said"),
    [
        ("[outbox]\nheaders_env = {env}", '{ A = "B" }', "a log file takes no headers"),
        (SIGNAL, '{ A = "B" }', "needs a url"),
        (OUTBOX, '{ Idempotency-Key = "B" }', "is set by Perdure"),
        (OUTBOX, '{ A-b = "B", a-B = "C" }', "duplicate header a-b"),
        (OUTBOX, '{ "A:" = "B" }', "headers_env"),
        (OUTBOX, '{ A = "the value" }', "headers_env"),
        (OUTBOX, '{ A = "BROKEN" }', "BROKEN: expected"),
        (OUTBOX.replace("https", "http"), '{ A = "SHOP_AUTH" }', "https:// only"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused_without_their_value(
    tmp_path: Path, toml: str, env: str, said: str
) -> None:
    with pytest.raises(ProjectError, match=said) as raised:
        settings_of(tmp_path, toml.format(env=env), SHOP_AUTH=TOKEN, BROKEN="canary\x07canary")
    assert "canary" not in str(raised.value)

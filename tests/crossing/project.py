"""One project that has every feature on, and what stands around it: a model on both wires, a sink, another worker."""

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from perdure.answer_keys import format_public, read_answer_keys
from tests.e2e.projects import ROOT, CommandResult, Json, Project

BANK = "bank"  # the folder of the state of the MCP server whose calls become tasks
HOSTILE = ROOT / "tests" / "mcp" / "hostile.py"
ANSWER_KEY = "k1:QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFBQUE="
ANSWER_KEY_OF_WORKERS = format_public(read_answer_keys(ANSWER_KEY))
CODEC_KEY = "k1:QkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkI="
GITHUB_SECRET = "a-secret-of-the-tests-of-the-doors"
NOTICE_SECRET = "whsec_c2VjcmV0LXNlY3JldC1zZWNyZXQ="
WAREHOUSE = "warehouse"

CONFIG = """
[project]
name = "crossing"

[features]
use = []

[model]
default = "scripted"
summary = "scripted"
window = 24000
record_thinking = true

[model.batch]
size = 1
wait = "1s"

[model.providers.anthropic]
requests_per_minute = 6000
tokens_per_minute = 100_000_000
shared = true

[model.providers.relay]
kind = "relay"

[model.providers.second]
kind = "openai"
base_url = "{model}/v1"

[prices.scripted]
input = 3
output = 15

[prices."second:scripted"]
input = 1
output = 2

[[budget]]
name = "crossed"
per = "agent"
runs = 1000
every = "day"

[[budget]]
name = "refunds"
per = "requester"
agent = "clerk"
usd = 50.0
every = "day"

[[budget]]
name = "thrift"
agent = "frugal"
steps = 150  # a reply may ask for 200
when_used_up = "ask"
raise_by = ["finance"]

[worker]
fuse_reads = true

[people]
finance = ["ann", "ben"]
support = ["cleo"]

[limits]
max_steps = 40

[limits.ceiling]
max_steps = 60

[fetch]
only_hosts = ["docs.example.com"]

[outbox]
kind = "log"

[[notify]]
name = "sink"
kind = "webhook"
url = "{sink}"
secret_env = "NOTICE_SECRET"
on = ["waiting", "waiting_long", "expired", "ended", "budget", "failed", "wedged"]

[gateway]
public_url = "https://perdure.example/"

[gateway.webhooks.github]
scheme = "github"
secret_env = "GITHUB_SECRET"

[[start]]
name = "issues"
webhook = "github"
on = ["issues.opened"]
agent = "clerk"
goal = "shape started: {{title}}"
fields = {{ title = "event.issue.title" }}
answer = true

[tools.look]
kind = "python"
effect = "read"
target = "shop:look"

[tools.reserve]
kind = "python"
effect = "keyed"
target = "shop:reserve"

[tools.refund]
kind = "python"
max_running = 20
effect = "once"
target = "shop:refund"

[tools.send_mail]
kind = "python"
effect = "once"
approval = "always"
target = "shop:send_mail"

[tools.charge]
kind = "http"
effect = "keyed"
description = "Charge a card."
url = "{sink}"
input_schema = {{ type = "object", properties = {{ cents = {{ type = "integer" }} }}, required = ["cents"] }}

[tools.stock]
kind = "queue"
task_queue = "warehouse"
activity = "look_up_stock"
effect = "read"
description = "Count an item."
input_schema = {{ type = "object", properties = {{ item = {{ type = "string" }} }}, required = ["item"] }}

[tools.translate]
kind = "a2a"
description = "Translate a text."
url = "{elsewhere}"

[tools.tell]
kind = "signal"
effect = "read"
description = "Ask a program outside."
input_schema = {{ type = "object" }}
"""
POLICY = """
[[rule]]
name = "large refunds"
tools = ["refund"]
when = "args.cents > 5000"
then = "deny"
reason = "refunds above 50 euro are made by the bank"

[[rule]]
name = "refunds"
tools = ["refund"]
when = "args.cents > 100"
then = "ask"
approvers = ["finance"]
quorum = 2
not_requester = true

[[rule]]
name = "mail"
tools = ["send_mail"]
then = "review"
review = "checks:review_mail"
approvers = ["support"]

[[rule]]
name = "cards"
tools = ["charge"]
then = "review"

[rule.review]
rubric = "Allow small amounts."
"""
CODE = '''
from pathlib import Path


def _write(line: str) -> None:
    with Path("effects.txt").open("a", encoding="utf-8") as file:
        file.write(line + "\\n")


def look(order: str) -> str:
    """Look at an order."""
    return f"order {order} is open. " + "lorem ipsum " * (2000 if order.startswith("long") else 1)


def reserve(order: str, idempotency_key: str) -> str:
    """Reserve an order."""
    _write(f"reserve {order} {idempotency_key}")
    return "reserved"


def refund(order: str, cents: int) -> str:
    """Pay an order back."""
    _write(f"refund {order} {cents}")
    return f"paid {cents} back"


def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    _write(f"mail {to}")
    return "sent"
'''
CHECKS = """
def review_mail(facts: dict) -> tuple[str, str]:
    return ("allow", "it goes to a customer") if "customer" in facts["args"]["to"] else ("ask", "a stranger's address")


def is_signed(outcome: str) -> bool | str:
    return outcome.endswith("yours, the clerk") or "the outcome is not signed"
"""
AGENTS = {
    "clerk": "tools: [look, reserve, refund, send_mail, charge, stock, tell, h__look, write_file, read_file]",
    "envoy": "tools: [translate]",
    "interpreter": "model: relay:translate\ntools: [translate]",
    "second": "model: second:scripted\ntools: [look, refund]",
    "bulk": "pace: batch\ntools: [look]",
    "counter": "tools: []\noutput_schema: {type: object, properties: {total: {type: integer}}, required: [total]}",
    "signer": "tools: []\naccept: checks:is_signed",
    "lead": "peers: [clerk, counter]\ntools: [look]",
    "waiter": "tools: []\nfollow_ups: {}",
    "searcher": "search_tools: true\ntools: [look, reserve, refund, send_mail, charge, stock]",
    "seer": "sees: true\ntools: [look]",
    "paused": "tools: [look]",
    "narrow": "tools: [tell]\nlimits: {max_running: 1}",
    "frugal": "tools: [look]",
    "banker": "tools: [bank__pay, bank__watch, bank__ask]",
    "scribe": "tools: [write_file]",
    "default": "tools: [look]",
    "outside": "mailbox: true",
    "tuned": (
        "name: tuned\nmax_tokens: 2000\ntemperature: 0.5\ncache: 5m\nbetas: [a-beta]\nheaders: {x-team: shop}\n"
        "extra: {metadata: {user_id: u1}}\njournal: false\nfuse_reads: false\n"
        "limits: {max_turns: 30, max_running: 50, per_owner: true}\n"
        "input_schema: {type: object, properties: {order: {type: string}}}\ntools: [look]"
    ),
}


@dataclass
class CrossedProject(Project):
    """`used` are the commands that were given so far."""

    used: set[str] = field(default_factory=set)

    def perdure(self, *args: str, typed: str = "", **env: str) -> CommandResult:
        self.used.add(args[0])
        return super().perdure(*args, typed=typed, **env)


def write_project(project: Project, model: str, sink: str, elsewhere: str) -> None:
    """Write all files of the project; the addresses are those of its model, its sink and an agent elsewhere."""
    state = project.folder / "state"
    state.mkdir()
    server = {"command": sys.executable, "args": [str(HOSTILE), str(state), "plain"]}
    (project.folder / BANK).mkdir()
    bank = {
        "command": sys.executable,
        "args": ["-m", "tests.mcp.tasks", str(project.folder / BANK), "0"],
        "cwd": str(ROOT),
    }
    project.write_all(
        {
            "perdure.toml": CONFIG.format(model=model, sink=sink, elsewhere=elsewhere),
            "policy.toml": POLICY,
            "shop.py": CODE,
            "checks.py": CHECKS,
            ".mcp.json": json.dumps({"mcpServers": {"h": server, "bank": bank}}),
        }
    )
    for name, head in AGENTS.items():
        project.write(f"agents/{name}.md", f"---\ndescription: the {name}\n{head}\n---\nYou are the {name}.\n")
    project.env |= {
        "ANTHROPIC_API_KEY": "sk-none",
        "ANTHROPIC_BASE_URL": model,
        "PERDURE_CODEC_KEYS": CODEC_KEY,
        "PERDURE_ANSWER_KEY": ANSWER_KEY,
        "GITHUB_SECRET": GITHUB_SECRET,
        "NOTICE_SECRET": NOTICE_SECRET,
    }


def read_effects(project: Project) -> list[str]:
    """The effects of the project's tools, one line each."""
    file = project.folder / "effects.txt"
    return file.read_text(encoding="utf-8").splitlines() if file.exists() else []


def goal_texts(body: Mapping[str, Any]) -> str:
    """The first message of a request, which has the goal of the run or of the conversation's first turn."""
    first: Json = body["messages"][0]
    content = first["content"]
    return content if isinstance(content, str) else " ".join(str(block.get("text", "")) for block in content)


@contextmanager
def take_all() -> Iterator[tuple[str, list[bytes]]]:
    """A program outside that takes everything, and what it took."""
    taken: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            taken.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    listener = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{listener.server_address[1]}/hook", taken
    listener.shutdown()
    thread.join()
    listener.server_close()


def make_person(project: Project, gateway: str, name: str) -> httpx.AsyncClient:
    scopes = ("runs:start", "runs:read", "human:answer", "tools:result")
    flags = [flag for scope in scopes for flag in ("--scope", scope)]
    token = project.perdure("token", "create", name, *flags).out.strip()
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.AsyncClient(base_url=gateway, headers=headers, timeout=60, trust_env=False)

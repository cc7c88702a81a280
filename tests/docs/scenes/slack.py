"""docs/slack.md. Slack is played by a server on loopback that takes messages, and signs the events that it sends."""

import hashlib
import hmac
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from perdure.testkit.model_server import Reply, calls, says
from tests.docs.stage import Scene, Stage, Step

SECRET, TOKEN = "the signing secret of a test", "xoxb-of-a-test"
CHANNEL, TS = "C0123456789", "1732300000.000100"


def liaison(body: dict[str, Any]) -> Reply:
    """As the agent's file asks it to; what was called counts from its latest instruction."""
    text, results = "", 0
    for block in (block for message in body["messages"] for block in message["content"]):
        text, results = (
            (block["text"], 0) if is_instruction(block) else (text, results + (block["type"] == "tool_result"))
        )
    wait = {"platform": "slack", "channelId": CHANNEL, "messageId": TS, "description": "whether Friday is fine"}
    if "replied in channel" in text:
        thanks = calls(("post_to_slack", {"channel": CHANNEL, "text": "Thank you!", "thread_ts": TS}))
        return (thanks, says(f"They say {'yes' if 'yes, go' in text else 'no'}."))[results]
    asks = calls(("post_to_slack", {"channel": CHANNEL, "text": "Can the release go out on Friday?"}))
    return (asks, calls(("workflow_wait_for_reply", wait)), says("I have asked in Slack."))[results]


def is_instruction(block: dict[str, Any]) -> bool:
    return "ask in C0" in block.get("text", "") or "replied in channel" in block.get("text", "")


class Slack(ThreadingHTTPServer):
    """`posted` are the messages that it was given."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Api)
        self.posted: list[dict[str, Any]] = []
        self.address = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def send(self, to: str, event: dict[str, Any]) -> dict[str, Any]:
        """An event to the gateway, as Slack signs it."""
        body, stamp = json.dumps(event).encode(), str(int(time.time()))
        signed = hmac.new(SECRET.encode(), f"v0:{stamp}:".encode() + body, hashlib.sha256).hexdigest()
        headers = {"X-Slack-Request-Timestamp": stamp, "X-Slack-Signature": f"v0={signed}"}
        answer = httpx.post(f"{to}/v1/webhooks/slack", content=body, headers=headers, timeout=60, trust_env=False)
        said: dict[str, Any] = answer.raise_for_status().json()
        return said


class _Api(BaseHTTPRequestHandler):
    server: Slack

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_known = self.headers["Authorization"] == f"Bearer {TOKEN}"
        self.server.posted.append(message)
        text = (
            {"ok": True, "channel": message["channel"], "ts": TS} if is_known else {"ok": False, "error": "not_authed"}
        )
        answer = json.dumps(text).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        pass


SLACK: list[Slack] = []


def gateway(stage: Stage) -> str:
    """Its address, as it tells it."""
    text = stage.outputs[next(command for command in stage.outputs if command.startswith("perdure gateway"))]
    return text.split()[1]


def slack_is_up(stage: Stage) -> None:
    SLACK.append(Slack())
    stage.ok(f"export SLACK_API={SLACK[-1].address}")


def is_ours(stage: Stage) -> None:
    asked = SLACK[-1].send(gateway(stage), {"type": "url_verification", "challenge": "abc"})
    assert asked["challenge"] == "abc"


def somebody_replies(stage: Stage) -> None:
    event = {"type": "message", "channel": CHANNEL, "user": "U1", "text": "yes, go", "ts": "1732300100.000200"}
    body = {"type": "event_callback", "team_id": "T1", "event_id": "Ev1", "event": event}
    assert not SLACK[-1].send(gateway(stage), body)["accepted"]  # not in the thread
    event["thread_ts"] = TS
    for _ in range(2):
        assert SLACK[-1].send(gateway(stage), body)["accepted"]
    stage.until(lambda: stage.ok("perdure list").count("completed") == 2, "the turn that tells the reply")


def has_thanked_once(_: Stage) -> None:
    slack = SLACK.pop()
    threads = [message.get("thread_ts") for message in slack.posted]
    assert threads == [None, TS], slack.posted
    slack.shutdown()
    slack.server_close()


SCENE = Scene(
    "docs/slack.md",
    dev=False,
    model=liaison,
    prepare=slack_is_up,
    swap={"xoxb-…": TOKEN, "SLACK_SIGNING_SECRET=…": f"SLACK_SIGNING_SECRET='{SECRET}'", "8080": "0"},
    steps={
        "perdure gateway": Step(until="Ctrl-C"),
        "perdure chat": (
            Step(shows="I have asked in Slack.", before=is_ours),
            Step(shows="They say yes.", before=somebody_replies),
        ),
        "perdure list": Step(shows="wf:"),
    },
    claim=has_thanked_once,
)

"""docs/own-ui.md. Between the gateway and its clients stands a proxy that breaks streams off, again and again."""

import json
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from tests.docs.pages import ROOT
from tests.docs.stage import Scene, Stage, Step

LINES = 12  # of a stream, until it breaks: in the middle of an event
IN_NODE = """
let names = [];
follow(process.argv[2], process.argv[3], process.env.TOKEN, (name, it) => names.push(it.type ?? name))
  .then(() => console.log(JSON.stringify(names)));
"""


class Breaking(ThreadingHTTPServer):
    """`broken` counts the streams that it broke off."""

    def __init__(self, gateway: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.gateway, self.broken = gateway, 0
        self.address = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Passing(BaseHTTPRequestHandler):
    server: Breaking

    def do_GET(self) -> None:
        kept = {"authorization", "content-type", "last-event-id"}
        headers = {name: value for name, value in self.headers.items() if name.lower() in kept}
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = self.server.gateway + self.path
        with httpx.stream(self.command, address, headers=headers, content=body, timeout=60, trust_env=False) as answer:
            self.send_response(answer.status_code)
            self.send_header("Content-Type", answer.headers["content-type"])
            self.end_headers()
            for number, line in enumerate(answer.iter_lines()):
                if number == LINES and self.path.endswith("/events"):
                    self.server.broken += 1
                    return
                self.wfile.write(f"{line}\n".encode())
                self.wfile.flush()

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        pass


PROXIES: list[Breaking] = []


def proxy_is_up(stage: Stage) -> None:
    PROXIES.append(Breaking(stage.outputs["perdure gateway"].split()[1]))
    stage.ok(f"export GATEWAY={PROXIES[-1].address} NO_PROXY=127.0.0.1")


def every_event_came_once(stage: Stage) -> None:
    proxy = PROXIES.pop()
    (said,) = [out for command, out in stage.outputs.items() if "follow.py" in command]
    assert proxy.broken > 2
    assert [said.count(f"calls {tool}") for tool in ("fetch", "write_file")] == [1, 1], said
    run_id = json.loads(stage.ok("perdure list --json").splitlines()[0])["run_id"]
    (script,) = re.findall(r"```js\n(.*?)```", (ROOT / "docs/own-ui.md").read_text(encoding="utf-8"), re.DOTALL)
    stage.write("follow.mjs", script + IN_NODE)
    if shutil.which("node"):
        names = json.loads(stage.ok(f"node follow.mjs {proxy.address} {run_id}"))
        assert (names[0], names[-2:]) == ("run_started", ["run_ended", "end"])
        assert [names.count(each) for each in ("tool_call_finished", "wait_started", "wait_ended")] == [2, 1, 1], names
    proxy.shutdown()
    proxy.server_close()


SCENE = Scene(
    "docs/own-ui.md",
    dev=False,
    steps={
        "perdure gateway": Step(until="Ctrl-C", swap={"gateway": "gateway --port 0"}),
        "python follow.py": Step(
            before=proxy_is_up, typed="https://example.com\n", shows="generated in artifacts/report.md"
        ),
    },
    claim=every_event_came_once,
)

"""An MCP server that does what no server should. Raw JSON-RPC over stdio, so that it can say anything.

`hostile.py STATE MODE`: STATE is a folder by which the test speaks to it. There it notes its process id and each call
that it was asked for, and from there it reads how its tools are defined (`tools.json`, in place of its own).
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

STATE, MODE = Path(sys.argv[1]), sys.argv[2]
LATER: list[Any] = []


def send(message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def note(name: str, text: str) -> None:
    with (STATE / name).open("a") as file:
        file.write(text + "\n")


def tools() -> list[dict[str, Any]]:
    path = STATE / "tools.json"
    if path.exists():
        listed: list[dict[str, Any]] = json.loads(path.read_text())
        return listed
    read = {"readOnlyHint": True}
    plain = {"description": "A tool.", "inputSchema": {"type": "object"}}
    return [{"name": "look", **plain, "annotations": read}, {"name": "act", **plain}]


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}], **more}


def result(arguments: dict[str, Any]) -> dict[str, Any]:  # noqa: C901, PLR0911 - a table of what it may answer
    match arguments.get("do"):
        case "large":
            return text("x" * 3_000_000)
        case "image":
            return {"content": [{"type": "image", "data": arguments["data"], "mimeType": "image/png"}]}
        case "blob":
            blob = {"uri": "test://blob", "mimeType": "application/pdf", "blob": arguments["data"]}
            page = {"uri": "test://page", "mimeType": "text/markdown", "text": "# page"}
            link = {"type": "resource_link", "uri": "test://link", "name": "link"}
            resources = [{"type": "resource", "resource": each} for each in (blob, page)]
            return {"content": [{"type": "text", "text": "see"}, *resources, link]}
        case "broken image":
            return {"content": [{"type": "image", "data": "%%%", "mimeType": "image/png"}]}
        case "structured":
            return text("plain", structuredContent={"n": 1})
        case "unfit":
            return text("plain", structuredContent={"n": "one"})
        case "long name":
            return text("plain", structuredContent={"n" * 60 + "!": 1})
        case "nothing":
            return {"content": []}
        case "fail":
            return text("no such thing", isError=True)
        case "nonsense":
            return {"content": "none"}
        case _:
            return text("done")


def flood() -> None:
    line = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 200}}
    while True:
        send(line)


def call(number: Any, arguments: dict[str, Any]) -> None:  # noqa: C901, PLR0912 - a table of what it may do
    note("calls", json.dumps(arguments))
    match arguments.get("do"):
        case "die":
            os._exit(7)
        case "hang":
            return
        case "later":  # once a listing was refused
            LATER.append(number)
            return
        case "deaf":
            time.sleep(3600)
        case "flood":
            flood()
        case "ask":
            for asked in range(5000):
                send({"jsonrpc": "2.0", "id": f"s{asked}", "method": "sampling/createMessage", "params": {}})
        case "endless line":
            while True:
                sys.stdout.write("x" * 65536)
        case "not json":
            sys.stdout.write("Traceback (most recent call last):\n\n{{{\n[1,2]\n\xff\n")
        case "wrong id":
            send({"jsonrpc": "2.0", "id": 99999, "result": text("not yours")})
            send({"jsonrpc": "2.0", "id": "x", "error": {"code": -1, "message": "not yours"}})
            return
        case "stderr":
            for _ in range(1000):
                sys.stderr.write(f"noise {os.environ.get('HOSTILE_TOKEN')} {'y' * 2000}\n")
            sys.stderr.flush()
        case "blab":
            sys.stderr.write("my key is token-canary-5521\n")
            sys.stderr.flush()
        case "error":
            send({"jsonrpc": "2.0", "id": number, "error": {"code": -32603, "message": "it broke"}})
            return
        case _:
            pass
    send({"jsonrpc": "2.0", "id": number, "result": result(arguments)})


def list_tools(number: Any) -> None:
    note("lists", "")
    if not (STATE / "refuse").exists():
        send({"jsonrpc": "2.0", "id": number, "result": {"tools": tools()}})
        return
    send({"jsonrpc": "2.0", "id": number, "error": {"code": -32603, "message": "not just now"}})
    while LATER:
        send({"jsonrpc": "2.0", "id": LATER.pop(), "result": text("done")})


def main() -> None:
    note("pids", str(os.getpid()))
    if MODE == "silent":
        time.sleep(3600)
    if MODE == "dead":
        sys.stderr.write("cannot read the configuration\n")
        sys.exit(3)
    for line in sys.stdin:
        message = json.loads(line)
        method, number = message.get("method"), message.get("id")
        if method == "initialize":
            version = message["params"]["protocolVersion"]
            info = {"name": "hostile", "version": "1"}
            about = {"protocolVersion": version, "capabilities": {"tools": {"listChanged": True}}, "serverInfo": info}
            send({"jsonrpc": "2.0", "id": number, "result": about})
        elif method == "tools/list":
            list_tools(number)
        elif method == "tools/call":
            call(number, message["params"].get("arguments") or {})
            if (STATE / "announce").exists():
                send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        elif number is not None and method:
            send({"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": f"no method {method}"}})
    if MODE == "stays":  # its stdin is closed, and it does not mind
        time.sleep(3600)


main()

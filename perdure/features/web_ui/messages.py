"""A turn as the AI SDK's `UIMessage`s: made of the same parts that are streamed, as the client would."""

from collections.abc import Iterable
from typing import Any

from perdure.features.web_ui.parts import Part

_STATES = {"tool-output-available": "output-available", "tool-output-error": "output-error"}


def to_message(parts: Iterable[Part]) -> Part:
    """Return the assistant's message that a client makes of these parts of a stream."""
    builder = _Builder()
    for part in parts:
        builder.add(part)
    return {"id": builder.id, "role": "assistant", "metadata": builder.metadata, "parts": builder.parts}


class _Builder:
    def __init__(self) -> None:
        self.id = ""
        self.metadata: dict[str, Any] = {}
        self.parts: list[Part] = []
        self._open: dict[str, Part] = {}  # texts, by their ids
        self._calls: dict[str, Part] = {}
        self._data: dict[tuple[str, str], Part] = {}

    def add(self, part: Part) -> None:
        kind = part["type"]
        self.metadata |= part.get("messageMetadata", {})
        self.id = part.get("messageId", self.id)
        if kind == "start-step":
            self.parts.append({"type": "step-start"})
        elif kind == "reset-step":
            last = max((at for at, each in enumerate(self.parts) if each["type"] == "step-start"), default=-1)
            del self.parts[last + 1 :]
        elif kind.startswith(("text-", "reasoning-")):
            self._add_text(part)
        elif kind.startswith("tool-"):
            self._add_to_call(part)
        elif kind in ("file", "source-url"):
            self.parts.append(part)
        elif kind.startswith("data-") and not part.get("transient"):
            self._put_data(part)

    def _add_text(self, part: Part) -> None:
        kind, _, move = part["type"].partition("-")
        if move == "start":
            identity = {"id": part["id"]} if kind == "reasoning" else {}
            self._open[part["id"]] = {"type": kind, **identity, "text": "", "state": "streaming"}
            self.parts.append(self._open[part["id"]])
        elif move == "delta":
            self._open[part["id"]]["text"] += part["delta"]
        else:
            self._open.pop(part["id"])["state"] = "done"

    def _add_to_call(self, part: Part) -> None:
        kind = part["type"]
        if kind == "tool-approval-response":
            call = next(c for c in self._calls.values() if c.get("approval", {}).get("id") == part["approvalId"])
            call["state"] = "approval-responded"
            call["approval"]["approved"] = part["approved"]
            return
        if kind == "tool-input-available" and part["toolCallId"] not in self._calls:
            self._calls[part["toolCallId"]] = {}
            self.parts.append(self._calls[part["toolCallId"]])
        call = self._calls[part["toolCallId"]]
        if kind == "tool-input-available":
            named = {name: part[name] for name in ("toolName", "toolCallId", "input", "providerExecuted")}
            call |= {"type": "dynamic-tool", "state": "input-available", **named}
        elif kind == "tool-approval-request":
            call |= {"state": "approval-requested", "approval": {"id": part["approvalId"]}}
        elif kind == "tool-output-denied":
            call["state"] = "output-denied"
        else:
            call["state"] = _STATES[kind]
            call |= {name: part[name] for name in ("output", "errorText") if name in part}

    def _put_data(self, part: Part) -> None:
        key = part["type"], part["id"]
        if key not in self._data:
            self._data[key] = {"type": part["type"], "id": part["id"]}
            self.parts.append(self._data[key])
        self._data[key]["data"] = part["data"]

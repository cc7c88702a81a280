"""The kind `relay`: no model. It hands what it is asked to one tool, such as an agent elsewhere, and the result back.

So an agent whose work is done elsewhere is an agent like the others: with conversations, as a peer of a delegation,
with questions to people, limits and a record.
"""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from pydantic_core import from_json, to_json

from perdure.activities.providers.port import ModelCall, ModelReply
from perdure.contracts.run.turn import Usage
from perdure.decisions.tools import ESCALATE, FINISH

Json = dict[str, Any]
CONTEXT = "context_id"  # the argument, and the part of a result, by which a tool goes on in a conversation


class RelayModel:
    """A provider whose models are tools, by name, that take a `message`."""

    async def reply(self, call: ModelCall) -> ModelReply:
        """Call the tool, or end the run with its result."""
        tool, blocks = call.definition.model, list(_blocks(call.messages))
        results = {block["tool_use_id"]: block for _, block in blocks if block["type"] == "tool_result"}
        uses = [block for _, block in blocks if block["type"] == "tool_use"]
        given = [results[use["id"]] for use in uses if use["name"] == tool and use["id"] in results]
        is_done = bool(uses) and uses[-1]["name"] == tool and uses[-1]["id"] in results
        if call.is_closing or (call.force not in (None, tool) and not is_done):
            content: Json = {"type": "text", "text": _text_of(given[-1]) if given else "Nothing was handed on."}
        elif is_done:
            content = _end(given[-1], has_schema=call.definition.output_schema is not None)
        else:
            context = next((found for each in reversed(given) if (found := _context_of(each))), None)
            arguments = {"message": _request_in(blocks), **({CONTEXT: context} if context else {})}
            content = _use(tool, arguments)
        stop = "end_turn" if content["type"] == "text" else "tool_use"
        return ModelReply(content=[content], stop_reason=stop, model=tool, usage=Usage())


def _blocks(messages: list[Json]) -> Iterator[tuple[str, Json]]:
    """Yield each block of a conversation, with its role."""
    for message in messages:
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            yield message["role"], block


def _request_in(blocks: list[tuple[str, Json]]) -> str:
    """Return what is asked: the texts since the last reply."""
    last = max((at for at, (role, _) in enumerate(blocks) if role == "assistant"), default=-1)
    texts = [block["text"] for role, block in blocks[last + 1 :] if role == "user" and block["type"] == "text"]
    return "\n\n".join(texts)


def _end(result: Json, *, has_schema: bool) -> Json:
    """Return the call that ends the run: with the outcome, or with the error."""
    text, value = _text_of(result), _value_of(result)
    if result.get("is_error"):
        return _use(ESCALATE, {"reason": text})
    answer = value.get("content", value) if isinstance(value, Mapping) else text
    outcome = answer if isinstance(answer, str) else to_json(answer).decode()
    files = [file["path"] for file in value.get("files", []) if file.get("path")] if isinstance(value, Mapping) else []
    typed = {"result": answer} if has_schema and not isinstance(answer, str) else {}
    return _use(FINISH, {"outcome": outcome, **typed, **({"artifacts": files} if files else {})})


def _use(tool: str, arguments: Json) -> Json:
    return {"type": "tool_use", "id": f"toolu_{uuid4().hex[:24]}", "name": tool, "input": arguments}


def _text_of(result: Json) -> str:
    content = result.get("content", "")
    if isinstance(content, str):
        return content
    return "\n".join(block["text"] for block in content if block.get("type") == "text")


def _value_of(result: Json) -> Any:
    try:
        return from_json(_text_of(result))
    except ValueError:
        return None


def _context_of(result: Json) -> str | None:
    value = _value_of(result)
    found = value.get(CONTEXT) if isinstance(value, Mapping) else None
    return found if isinstance(found, str) and found else None

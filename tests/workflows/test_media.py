"""Images and PDF: from every source into the model's request, and never into history."""

import io
import json
import shutil
from base64 import b64decode
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from temporalio.exceptions import ApplicationError

from perdure.activities.media.store import ResultFiles, put_upload
from perdure.activities.storage.workspace import folder_name
from perdure.activities.tools.files import ReadFile
from perdure.activities.tools.interface import CallContext
from perdure.contracts.agent import Agent
from perdure.contracts.failures import WORKER_SHUTDOWN, RunFailure
from perdure.contracts.media import StoredMedia
from perdure.contracts.model_settings import ModelOverrides
from perdure.contracts.run.signals import HumanInput, Question, QuestionKind
from perdure.contracts.tool import Effect, ToolOutcome
from perdure.decisions.ids import UPLOADS_STORE
from perdure.decisions.run.question import answer_rejection
from perdure.testkit.model_server import calls, says
from perdure.testkit.tools import ScriptedTool
from tests.media_files import image_bytes, pdf_bytes
from tests.workflows.conftest import MakeWorld, Run, World
from tests.workflows.lane import new_id, run_of, say, until_idle
from tests.workflows.runs import failure_of, result_of
from tests.workflows.script import FINISH, is_summary, message_blocks, texts
from tests.workflows.test_context import SUMMARY
from tests.workflows.tools import HeldTool

EYES = Agent(name="eyes", tools=(), options=ModelOverrides(sees=True))
LOOK = calls(("look", {}))


def flat_png() -> bytes:
    """A small file: the scripted model counts bytes, not pixels, as its tokens."""
    buffer = io.BytesIO()
    Image.new("L", (40, 30)).save(buffer, "PNG")
    return buffer.getvalue()


def seeing(*tools: str) -> Agent:
    return EYES.evolve(tools=tools)


async def upload(it: World, data: bytes, name: str) -> dict[str, Any]:
    media = await put_upload(it.project.stores, data, name)
    return {"name": name, "sha256": media.sha256}


def shown(body: dict[str, Any]) -> list[bytes]:
    """The bytes of all images and PDF in a request, those in results included."""
    blocks = [block for message in body["messages"] for block in message["content"]]
    inner = [part for block in blocks if isinstance(block.get("content"), list) for part in block["content"]]
    return [b64decode(block["source"]["data"]) for block in [*blocks, *inner] if block["type"] in ("image", "document")]


def camera(data: bytes, effect: Effect = Effect.read) -> ScriptedTool:
    """A tool whose result is an image."""

    def look(_: Any, context: CallContext) -> ToolOutcome:
        return ResultFiles(f"look-{context.step:02}", context.workspace, context.store).to_outcome("image/png", data)

    return ScriptedTool("look", look, effect=effect)


async def must_hold_no_bytes(it: World, run: Run, *files: bytes) -> None:
    """History and transcript name the files, and have nothing of their bytes."""
    history, parts = await it.raw_history(run), json.dumps(await it.parts(run))
    for data in files:
        assert sha256(data).hexdigest() in parts
        assert data[40:60] not in history
        assert len(history) + len(parts) < 40_000 + len(data)


async def test_a_start_shows_its_attachments_to_the_model_and_keeps_them_with_the_run(
    world: MakeWorld, tmp_path: Path
) -> None:
    picture, paper = image_bytes("JPEG", (300, 200)), pdf_bytes(3)
    async with world([LOOK, FINISH], camera(image_bytes()), agents=[seeing("look")]) as it:
        attachments = [await upload(it, picture, "a photo.jpg"), await upload(it, paper, "../../paper")]
        gone = tmp_path / folder_name(UPLOADS_STORE)
        run = await it.start("what is it?", agent="eyes", attachments=attachments, run_id="seen")
        await it.until(lambda: len(it.model.requests) >= 1)
        shutil.rmtree(gone)  # the run needs it no more
        await result_of(run)
        first, second = it.model.requests
        await must_hold_no_bytes(it, run, picture, paper)
        [_, said, *_] = await it.parts(run)
    assert shown(first) == [picture, paper]
    assert shown(second)[:2] == [picture, paper]
    assert [block["type"] for block in first["messages"][0]["content"]] == ["text", "text", "image", "text", "document"]
    assert message_blocks(first, "document")[0]["title"] == "../../paper"
    assert texts(first)[1] == f"Attached: artifacts/inputs/a photo.jpg (image/jpeg, 300x200, {len(picture):,} bytes)"
    assert said["kind"] == "said"
    assert said["content"][1]["source"]["type"] == "stored"
    inputs = tmp_path / "seen" / "artifacts" / "inputs"
    assert {path.name: path.read_bytes() for path in inputs.iterdir()} == {"a photo.jpg": picture, "paper.pdf": paper}


@pytest.mark.parametrize(
    ("agent", "attachment", "reason"),
    [
        ("default", {}, "payload.attachments: x.png: agent default (scripted) cannot see it; set `sees` of [model]"),
        ("eyes", {"sha256": "0" * 64}, f"payload.attachments: x.png: no upload has the hash {'0' * 64}"),
        ("eyes", {"sha256": None, "path": "no.png"}, "payload.attachments: x.png: there is no such file"),
        ("eyes", {"sha256": None, "path": "../x"}, "payload.attachments: x.png: path '../x' is refused"),
        ("eyes", {"sha256": None, "artifact": "other/artifacts/no.png"}, "payload.attachments: x.png: there is no"),
        ("eyes", {"sha256": None, "path": "context.md"}, "payload.attachments: x.png: not an image or a PDF"),
    ],
)
async def test_a_start_with_what_cannot_be_shown_is_refused_before_anything_is_spent(
    world: MakeWorld, agent: str, attachment: dict[str, Any], reason: str
) -> None:
    async with world([FINISH], agents=[EYES]) as it:
        uploaded = await upload(it, image_bytes(), "x.png")
        fields = {name: value for name, value in {**uploaded, **attachment}.items() if value is not None}
        failure = await failure_of(await it.start("look", agent=agent, attachments=[fields]))
        assert (failure.type, failure.message.startswith(reason)) == (RunFailure.invalid_input, True), failure.message
        assert it.model.requests == []


async def test_attachments_that_fill_the_window_are_refused(world: MakeWorld) -> None:
    async with world([FINISH], agents=[EYES], window=20_000) as it:
        failure = await failure_of(
            await it.start("read", agent="eyes", attachments=[await upload(it, pdf_bytes(8), "long.pdf")])
        )
        assert failure.message == (
            "payload.attachments: about 24,000 tokens, too many for the window of scripted, 20,000; attach fewer pages"
        )


async def test_a_file_of_another_run_is_attached_by_its_path(world: MakeWorld) -> None:
    picture = image_bytes()
    async with world([LOOK, FINISH], camera(picture), agents=[seeing("look")]) as it:
        await it.run_to_end(agent="eyes", run_id="first")
        attached = {"name": "x.png", "artifact": "first/artifacts/look-01.png"}
        await it.run_to_end(agent="eyes", attachments=[attached])
        assert shown(it.model.requests[2]) == [picture]


async def test_a_steer_and_an_answer_bring_pictures_and_say_what_was_not_taken(world: MakeWorld) -> None:
    steered, answered, hold = image_bytes(), image_bytes(), HeldTool("hold", Effect.keyed)
    ask = calls(("ask_human", {"question": "Which one?"}))
    async with world([calls(("hold", {})), ask, FINISH], hold.tool, agents=[seeing("hold")]) as it:
        run = await it.start(agent="eyes")
        await hold.started.wait()
        files = [await upload(it, steered, "s.png"), {"name": "gone.png", "sha256": "1" * 64}]
        await run.signal("steer", {"request_id": "r1", "text": "see this", "attachments": files})
        hold.go_on.set()
        await it.until_question(run, "q1")
        await it.answer(run, question_id="q1", attachments=[await upload(it, answered, "a.png")])
        await result_of(run)
        _, second, third = it.model.requests
        await must_hold_no_bytes(it, run, steered, answered)
    assert shown(second) == [steered]
    assert f"see this\n[an attachment was not taken: gone.png: no upload has the hash {'1' * 64}]" in texts(second)
    assert shown(third) == [steered, answered]


@pytest.mark.parametrize("kind", [kind for kind in QuestionKind if kind is not QuestionKind.question])
def test_only_a_question_of_the_agent_takes_attachments(kind: QuestionKind) -> None:
    question = Question(id="q1", kind=kind, text="?", options=("a",), asked_at=datetime.now(UTC))
    attached = {"text": "a", "attachments": [{"name": "x.png", "sha256": "0" * 64}]}
    assert answer_rejection(question, HumanInput.model_validate(attached)) == "question q1 takes no attachments"
    asked = question.evolve(kind=QuestionKind.question)
    assert answer_rejection(asked, HumanInput.model_validate({**attached, "text": None})) is None


async def test_the_result_of_a_tool_and_a_file_that_is_read_are_shown(world: MakeWorld) -> None:
    picture = image_bytes()
    again = calls(("read_file", {"path": "artifacts/look-01.png"}))
    async with world([LOOK, again, FINISH], camera(picture), ReadFile(), agents=[seeing("look", "read_file")]) as it:
        run = await it.run_to_end(agent="eyes")
        await must_hold_no_bytes(it, run, picture)
        assert shown(it.model.requests[1]) == [picture]
        assert shown(it.model.requests[2]) == [picture, picture]
        assert (await it.state(run))["artifacts"] == ["artifacts/look-01.png"]


async def test_a_model_that_cannot_see_gets_a_note_instead(world: MakeWorld) -> None:
    async with world([LOOK, FINISH], camera(image_bytes())) as it:
        await it.run_to_end()
        [result] = message_blocks(it.model.requests[1], "tool_result")
    text = result["content"][1]["text"]
    assert text.startswith("[image artifacts/look-01.png (image/png, 40x30, ")
    assert text.endswith("bytes): this model cannot see images; read_file shows artifacts/look-01.png again]")


async def test_a_summary_names_the_images_that_it_replaces(world: MakeWorld) -> None:
    made = iter(range(14))

    def script(body: dict[str, Any]) -> Any:
        if is_summary(body):
            return SUMMARY
        number = next(made, None)
        return FINISH if number is None else calls(("look", {"n": number}))

    look = camera(flat_png())
    small = look._behaviour
    look._behaviour = lambda given, context: small(given, context).evolve(result=f"{given['n']}" + "lorem ipsum " * 300)
    async with world(script, look, agents=[seeing("look")], window=20_000, max_steps=50) as it:
        await it.run_to_end(agent="eyes")
        requests = it.model.requests
    summaries = [at for at, body in enumerate(requests) if is_summary(body)]
    assert summaries
    assert shown(requests[summaries[0]]) == []
    assert "[image artifacts/look-01.png (image/png, 40x30" in json.dumps(requests[summaries[0]])
    assert len(shown(requests[summaries[0] + 1])) < len(shown(requests[summaries[0] - 1]))


async def test_a_fork_has_its_own_copies(world: MakeWorld, tmp_path: Path) -> None:
    picture = image_bytes()
    async with world([LOOK, FINISH], camera(picture), agents=[seeing("look")]) as it:
        attachments = [await upload(it, picture, "x.png")]
        run = await it.start(agent="eyes", attachments=attachments, run_id="origin")
        await result_of(run)
        shutil.rmtree(tmp_path / folder_name(UPLOADS_STORE))
        fork = await it.fork(run, 1, "again")
        await result_of(fork)
        assert shown(it.model.requests[-1])[:2] == [picture, picture]
        own = tmp_path / folder_name(fork.id.removeprefix("run:")) / ".store" / "media"
        assert [path.read_bytes() for path in own.iterdir()] == [picture]


async def test_a_later_turn_of_a_conversation_sees_what_an_earlier_one_was_sent(
    world: MakeWorld, tmp_path: Path
) -> None:
    picture, chat = image_bytes(), new_id()
    async with world(lambda body: says(f"{len(shown(body))} seen"), agents=[EYES]) as it:
        attachments = [await upload(it, picture, "x.png")]
        first = await say(it, chat, "look", agent="eyes", attachments=attachments)
        await until_idle(it, chat, 1)
        shutil.rmtree(tmp_path / folder_name(UPLOADS_STORE))
        shutil.rmtree(tmp_path / folder_name(first.run_id))
        second = await say(it, chat, "and?", agent="eyes")
        await until_idle(it, chat, 2)
        assert (await run_of(it, second).result())["payload"]["outcome"] == "1 seen"
        assert shown(it.model.requests[-1]) == [picture]


@pytest.mark.parametrize("effect", [Effect.read, Effect.keyed])
async def test_a_worker_lost_after_an_image_was_stored_loses_and_repeats_nothing(
    world: MakeWorld, effect: Effect
) -> None:
    tool, tried = camera(picture := image_bytes(), effect), list[StoredMedia]()
    look = tool._behaviour

    def lose_first(arguments: Any, context: CallContext) -> Any:
        outcome: Any = look(arguments, context)
        tried.extend(outcome.media)
        if len(tried) == 1:
            raise ApplicationError("worker is shutting down", type=WORKER_SHUTDOWN)
        return outcome

    tool._behaviour = lose_first
    async with world([LOOK, FINISH], tool, agents=[seeing("look")]) as it:
        run = await it.run_to_end(agent="eyes")
        assert shown(it.model.requests[-1]) == [picture]
        assert (await it.state(run))["artifacts"] == ["artifacts/look-01.png"]
    assert tried[0] == tried[1]


MAX_GROWTH = 1.05
MAX_WINDOW = 10**9  # the scripted model counts the bytes of images as tokens


async def test_twenty_images_of_a_megabyte_leave_history_as_small_as_without(world: MakeWorld) -> None:
    """T(20) of the benchmark, whose results have 2 KiB, with and without one image of 1 MB a step."""
    sizes: list[int] = []
    for pictures in (False, True):
        picture = image_bytes("PNG", (760, 540))
        assert 900_000 < len(picture) < 1_200_000

        def look(_: Any, context: CallContext, data: bytes = picture, *, sees: bool = pictures) -> ToolOutcome:
            outcome = ToolOutcome(result=f"{context.step}" + "x" * 2048)
            kept = ResultFiles(f"look-{context.step:02}", context.workspace, context.store)
            entry = kept.to_outcome("image/png", data)
            return outcome.evolve(media=entry.media) if sees else outcome

        script = [*[calls(("look", {"n": n})) for n in range(20)], FINISH]
        async with world(
            script, ScriptedTool("look", look), agents=[seeing("look")], max_steps=40, window=MAX_WINDOW
        ) as it:
            run = await it.run_to_end(agent="eyes")
            sizes.append(len(await it.raw_history(run)))
            assert len(shown(it.model.requests[-1])) == (20 if pictures else 0)
    assert sizes[1] <= MAX_GROWTH * sizes[0], sizes

"""Files over HTTP: uploads, and artifacts of runs, which are read in whole and in part and cannot act as pages."""

import asyncio
import errno
import hashlib
import io
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from perdure.activities.media.store import keep_media
from perdure.activities.storage.store import LocalStores
from perdure.activities.storage.workspace import OutsideWorkspaceError, Workspace
from perdure.client.files import ArtifactReader
from perdure.contracts.media import MAX_MEDIA_BYTES
from perdure.gateway.problems import ApiError
from perdure.gateway.requests import MAX_BODY_BYTES
from perdure.gateway.routes.files import _parse_range, upload_file
from tests.gateway.conftest import Gateway, make_token
from tests.gateway.test_runs import wait_for_end


def png(side: int = 4, colour: str = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), colour).save(buffer, "PNG")
    return buffer.getvalue()


PNG = png()


async def finished_run(gateway: Gateway, **files: bytes) -> tuple[str, Path]:
    """A run that has ended, with these artifacts in its folder."""
    run_id = await gateway.start("say: files")
    await wait_for_end(gateway, run_id)
    folder = gateway.project.folder / ".perdure" / "runs" / run_id / "artifacts"
    for name, data in files.items():
        (folder / name.replace("__", ".")).write_bytes(data)
    return run_id, folder


async def test_artifacts_are_listed_with_size_type_and_hash(gateway: Gateway) -> None:
    page = b"<html><script>alert(1)</script>"
    run_id, _ = await finished_run(gateway, picture__txt=PNG, page__png=page, x__bin=b"\0\1")
    listed = (await gateway.get(f"/v1/runs/{run_id}/artifacts")).json()
    assert listed["available"]
    assert {row["path"]: (row["bytes"], row["content_type"], row["sha256"]) for row in listed["artifacts"]} == {
        "artifacts/page.png": (len(page), "text/plain; charset=utf-8", hashlib.sha256(page).hexdigest()),
        "artifacts/picture.txt": (len(PNG), "image/png", hashlib.sha256(PNG).hexdigest()),
        "artifacts/x.bin": (2, "application/octet-stream", hashlib.sha256(b"\0\1").hexdigest()),
    }  # fmt: skip


async def test_an_artifact_is_read_in_whole_in_part_and_not_again(gateway: Gateway) -> None:
    data = bytes(range(256)) * 4096
    run_id, _ = await finished_run(gateway, large__bin=data)
    path = f"/v1/runs/{run_id}/artifacts/large.bin"
    whole = await gateway.get(path)
    assert (whole.status_code, whole.content) == (200, data)
    etag = whole.headers["ETag"]
    assert etag == f'"{hashlib.sha256(data).hexdigest()}"'
    part = await gateway.get(path, Range="bytes=1000-1999")
    assert (part.status_code, part.content) == (206, data[1000:2000])
    assert part.headers["Content-Range"] == f"bytes 1000-1999/{len(data)}"
    assert (await gateway.get(path, Range="bytes=-5")).content == data[-5:]
    beyond = await gateway.get(path, Range=f"bytes={len(data)}-")
    assert (beyond.status_code, beyond.headers["Content-Range"]) == (416, f"bytes */{len(data)}")
    assert (await gateway.get(path, **{"If-None-Match": etag})).status_code == 304
    changed = {"Range": "bytes=0-9", "If-Range": '"another"'}
    assert (await gateway.get(path, **changed)).status_code == 200


async def test_only_images_and_pdf_are_shown_in_place_and_nothing_can_act_as_a_page(gateway: Gateway) -> None:
    svg = b'<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>'
    run_id, folder = await finished_run(gateway, a__png=PNG, b__svg=svg, c__png=svg, d__pdf=b"%PDF-1.4 x")
    (folder / 'ü "x".html').write_bytes(b"<!doctype html>")
    shown = {}
    for name in ("a.png", "b.svg", "c.png", "d.pdf", 'ü "x".html'):
        answer = await gateway.get(f"/v1/runs/{run_id}/artifacts/{quote(name)}")
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Content-Security-Policy"].startswith("sandbox;")
        shown[name] = answer.headers["Content-Disposition"]
        assert "html" not in answer.headers["Content-Type"]
        assert "svg" not in answer.headers["Content-Type"]
    assert shown == {
        "a.png": "inline; filename*=utf-8''a.png",
        "b.svg": "attachment; filename*=utf-8''b.svg",
        "c.png": "attachment; filename*=utf-8''c.png",
        "d.pdf": "inline; filename*=utf-8''d.pdf",
        'ü "x".html': "attachment; filename*=utf-8''%C3%BC%20%22x%22.html",
    }


async def test_no_path_leads_out_of_the_artifacts(gateway: Gateway) -> None:
    run_id, folder = await finished_run(gateway, own__txt=b"own")
    (folder / "link.txt").symlink_to("/etc/hostname")
    (folder / "out").symlink_to("..")
    os.link(folder.parent / "memory.md", folder / "hard.md")
    os.mkfifo(folder / "pipe")
    outside = [
        *("../memory.md", "..%2Fmemory.md", "%2e%2e/memory.md", "%2Fetc%2Fhostname", "link.txt", "out/memory.md"),
        *("hard.md", "pipe", "own.txt/x", "nothing.txt", "%00", "../.store/seen.json", "%252e%252e/memory.md"),
    ]
    async with gateway.http as http:
        for path in outside:
            # Built by hand: the client would resolve the dots.
            url = httpx.URL(gateway.url).copy_with(raw_path=f"/v1/runs/{run_id}/artifacts/{path}".encode())
            assert (await http.get(url)).status_code == 404, path
    listed = (await gateway.get(f"/v1/runs/{run_id}/artifacts")).json()["artifacts"]
    assert [row["path"] for row in listed] == ["artifacts/own.txt"]


async def test_artifacts_are_for_tokens_that_may_read_the_run(gateway: Gateway) -> None:
    run_id, _ = await finished_run(gateway, own__txt=b"own")
    token = await asyncio.to_thread(make_token, gateway.project, "starts-only", "runs:start")
    for path in ("artifacts", "artifacts/own.txt"):
        answer = await gateway.get(f"/v1/runs/{run_id}/{path}", Authorization=f"Bearer {token}")
        assert answer.status_code == 403
        assert (await gateway.get(f"/v1/runs/missing/{path}")).status_code == 404


async def test_a_run_whose_folder_is_elsewhere_has_no_artifacts_here(gateway: Gateway) -> None:
    run_id, folder = await finished_run(gateway)
    folder.parent.rename(folder.parent.with_name(f"{run_id}-moved"))
    listed = await gateway.get(f"/v1/runs/{run_id}/artifacts")
    assert (listed.status_code, listed.json()["available"], listed.json()["artifacts"]) == (200, False, [])


def test_a_changed_file_has_another_hash(tmp_path: Path) -> None:
    workspace, reader = Workspace(tmp_path / "r"), ArtifactReader(tmp_path)
    workspace.create()
    seen = set()
    for data in (b"one", b"two"):
        workspace.write("artifacts/a.txt", data)
        file, artifact = reader.open_artifact("r", "artifacts/a.txt")
        with file:
            assert file.read() == data
        seen.add(artifact.sha256)
    assert len(seen) == 2
    with pytest.raises(OutsideWorkspaceError):
        reader.open_artifact("r", "memory.md")


@given(header=st.from_regex(r"bytes=\d{0,3}-\d{0,3}", fullmatch=True) | st.text(max_size=20), size=st.integers(0, 300))
def test_a_range_is_inside_the_file(header: str, size: int) -> None:
    try:
        first, last, status = _parse_range(header, size)
    except ValueError:
        return
    assert (first, last) == (0, size - 1) if status == 200 else 0 <= first <= last < size


async def upload(gateway: Gateway, data: bytes | AsyncIterator[bytes], name: str = "a.png") -> httpx.Response:
    async with gateway.http as http:
        return await http.post("/v1/files", params={"name": name}, content=data)


async def test_a_file_is_stored_by_its_hash_and_a_repeat_has_the_same_answer(gateway: Gateway) -> None:
    data = png()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 10):
            yield data[start : start + 10]

    answers = [await upload(gateway, sent) for sent in (data, data, pieces())]
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    stored = {"sha256": hashlib.sha256(data).hexdigest(), "media_type": "image/png", "bytes": len(data)}
    assert [answer.json() for answer in answers] == [{**stored, "name": "a.png", "pixels": [4, 4]}] * 3


async def test_an_upload_may_be_larger_than_a_body_of_json(gateway: Gateway) -> None:
    buffer = io.BytesIO()
    Image.effect_noise((1500, 1500), 100).save(buffer, "PNG")
    assert len(buffer.getvalue()) > MAX_BODY_BYTES
    assert (await upload(gateway, buffer.getvalue())).status_code == 200


@pytest.mark.parametrize(
    "data", [b"", b"<svg/>", b"\x89PNG\r\n\x1a\n", b"%PDF-1.7"], ids=["empty", "svg", "png", "pdf"]
)
async def test_what_is_no_image_and_no_pdf_is_refused_in_a_line(gateway: Gateway, data: bytes) -> None:
    answer = await upload(gateway, data, "x\n.png")
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("x .png: ")


async def test_a_file_that_is_too_large_is_refused(gateway: Gateway) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(MAX_MEDIA_BYTES // 2**20 + 2):
            yield b"\0" * 2**20

    answer = await upload(gateway, endless())
    assert (answer.status_code, answer.json()["detail"]) == (413, f"a body may have {MAX_MEDIA_BYTES:,} bytes")


async def test_uploads_are_for_tokens_that_may_start_runs(gateway: Gateway) -> None:
    token = await asyncio.to_thread(make_token, gateway.project, "reads-only", "runs:read")
    async with gateway.http as http:
        answer = await http.post("/v1/files", content=png(), headers={"Authorization": f"Bearer {token}"})
    assert answer.status_code == 403


async def test_a_full_disk_is_reported_as_such() -> None:
    class FullStores:
        def of(self, run_id: str) -> Any:
            raise OSError(errno.ENOSPC, f"no space for {run_id}")

    async def stream() -> AsyncIterator[bytes]:
        yield png()

    own: Any = SimpleNamespace(uploads=0, session=SimpleNamespace(settings=SimpleNamespace(stores=FullStores())))
    sent: Any = SimpleNamespace(stream=stream)
    with pytest.raises(ApiError) as failure:
        await upload_file(own, sent, "a.png")
    assert (failure.value.status_code, own.uploads) == (507, 0)


async def test_a_file_of_another_run_needs_the_scope_to_read_it(gateway: Gateway) -> None:
    token = await asyncio.to_thread(make_token, gateway.project, "starts-too", "runs:start", "human:answer")
    own = {"Authorization": f"Bearer {token}"}
    attached = {"attachments": [{"name": "a.png", "artifact": "other/artifacts/a.png"}]}
    for path, body in (
        ("/v1/runs", {"payload": {"goal": "say: it", **attached}}),
        ("/v1/conversations/files/requests", {"request_id": "r1", "goal": "say: it", **attached}),
        ("/v1/runs/any/answer", {"text": "it", **attached}),
    ):
        answer = await gateway.post(path, body, **own)
        assert (answer.status_code, "runs:read" in answer.json()["detail"]) == (403, True), path


def test_a_command_names_the_file_that_it_cannot_attach_and_starts_nothing(gateway: Gateway) -> None:
    (gateway.project.folder / "note.png").write_text("text")
    for command in (("run", "-d", "say: it"), ("answer", "any", "it")):
        for name, reason in (("gone.png", "No such file or directory"), ("note.png", "not an image or a PDF")):
            ended = gateway.project.perdure(*command, "--attach", name, TEMPORAL_ADDRESS=gateway.address)
            assert (ended.code, ended.out, reason in ended.err) == (1, "", True), ended.err
            assert ended.err.startswith(f"perdure: {name}: ")
            assert ended.err.count("\n") == 1


async def test_attached_files_reach_the_model_and_stay_with_the_run(gateway: Gateway) -> None:
    stored = (await upload(gateway, png(8, "green"), "green.png")).json()
    attached = [{"name": "green.png", "sha256": stored["sha256"]}]
    started = await gateway.post("/v1/runs", {"payload": {"goal": "say: what it is", "attachments": attached}})
    run_id = started.json()["run_id"]
    (gateway.project.folder / "blue.png").write_bytes(png(8, "blue"))
    command = ("run", "--json", "say: what this is", "--attach", "blue.png")
    ended = await asyncio.to_thread(gateway.project.perdure, *command, TEMPORAL_ADDRESS=gateway.address)
    request = {"request_id": "r1", "goal": "say: what is here", "attachments": attached}
    turn = (await gateway.post(f"/v1/conversations/{uuid4().hex}/requests", request)).json()["run_id"]
    outcomes = [json.loads(ended.out.splitlines()[-1])["event"]["payload"]["outcome"]]
    ends: list[Any] = [await wait_for_end(gateway, run) for run in (run_id, turn)]
    assert [*outcomes, *(end["event"]["payload"]["outcome"] for end in ends)] == ["done, 1 seen"] * 3
    listed = (await gateway.get(f"/v1/runs/{run_id}/artifacts")).json()["artifacts"]
    assert [(row["path"], row["sha256"]) for row in listed] == [("artifacts/inputs/green.png", stored["sha256"])]
    assert (await gateway.get(f"/v1/runs/{run_id}/media/{stored['sha256']}")).content == png(8, "green")
    assert (await gateway.events(run_id))[0][1]["attachments"] == [{**attached[0]}]


async def test_an_answer_with_a_file_reaches_the_model(gateway: Gateway) -> None:
    run_id = await gateway.waiting("ask: which colour")
    (gateway.project.folder / "red.png").write_bytes(png(8))
    command = ("answer", run_id, "this one", "--attach", "red.png")
    ended = await asyncio.to_thread(gateway.project.perdure, *command, TEMPORAL_ADDRESS=gateway.address)
    assert (ended.code, ended.err) == (0, "")
    assert "1 seen" in str((await wait_for_end(gateway, run_id))["event"])


async def test_media_of_a_run_are_read_by_their_hash(gateway: Gateway) -> None:
    run_id, folder = await finished_run(gateway)
    stored = keep_media(LocalStores(folder.parents[1]).of(run_id), png(), "a.png")
    path = f"/v1/runs/{run_id}/media/{stored.sha256}"
    answer = await gateway.get(path)
    assert (answer.status_code, answer.content, answer.headers["Content-Type"]) == (200, png(), "image/png")
    assert answer.headers["Content-Security-Policy"].startswith("sandbox;")
    assert (await gateway.get(f"/v1/runs/{run_id}/media/{'0' * 64}")).status_code == 404
    assert (await gateway.get(f"/v1/runs/{run_id}/media/..%2Fseen.json")).status_code == 422
    token = await asyncio.to_thread(make_token, gateway.project, "starts-media", "runs:start")
    assert (await gateway.get(path, Authorization=f"Bearer {token}")).status_code == 403

"""Runs over HTTP: started once, read, answered, cancelled, and given results from outside."""

import asyncio
import json
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
import pytest

from tests.gateway.conftest import Gateway, Gateways, make_token
from tests.waiting import PATIENCE, until

PROBLEM = "application/problem+json"


async def wait_for_end(gateway: Gateway, run_id: str) -> dict[str, object]:
    for _ in range(4):
        answer = await gateway.get(f"/v1/runs/{run_id}/result?wait=15")
        if answer.status_code == 200:
            run: dict[str, object] = answer.json()
            return run
    raise AssertionError(f"{run_id} did not end: {answer.text}")


async def test_a_run_starts_ends_and_tells_its_result(gateway: Gateway) -> None:
    answer = await gateway.post("/v1/runs", {"payload": {"goal": "say: hello"}})
    assert answer.status_code == 202
    run_id = answer.json()["run_id"]
    assert answer.headers["Location"] == f"/v1/runs/{run_id}"
    shown = await wait_for_end(gateway, run_id)
    assert (shown["status"], shown["event"]["payload"]["outcome"]) == ("completed", "done")  # type: ignore[index]
    await until(lambda: listed_run(gateway, run_id))


async def listed_run(gateway: Gateway, run_id: str) -> dict[str, Any]:
    """Its row in the list of runs, or nothing: the server lists a run some time after its start."""
    runs = (await gateway.get("/v1/runs")).json()["runs"]
    return next((run for run in runs if run["run_id"] == run_id), {})


async def test_a_start_with_a_schema_ends_with_a_typed_result(gateway: Gateway) -> None:
    schema = {"type": "object", "required": ["total"]}
    answer = await gateway.post("/v1/runs", {"payload": {"goal": "count: all", "output_schema": schema}})
    run: Any = await wait_for_end(gateway, answer.json()["run_id"])
    assert run["event"]["payload"]["result"] == {"total": 3}
    wrong = {"payload": {"goal": "count: all", "output_schema": {"type": "sentence"}}}
    refused = await gateway.post("/v1/runs", wrong)
    assert (refused.status_code, refused.json()["field"]) == (422, "payload.output_schema")
    assert "payload.output_schema: not a JSON Schema" in refused.json()["detail"]


async def test_a_null_result_differs_from_no_result(gateway: Gateway) -> None:
    folder = gateway.project.folder
    (folder / "maybe.json").write_text('{"type": ["object", "null"]}')
    command = ("run", "--json", "--output-schema", "maybe.json", "--output", "order.json", "count: none")
    ended = await asyncio.to_thread(gateway.project.perdure, *command, TEMPORAL_ADDRESS=gateway.address)
    last = json.loads(ended.out.splitlines()[-1])
    run: Any = (await gateway.get(f"/v1/runs/{last['run_id']}/result")).json()
    details = (await gateway.get(f"/v1/runs/{last['run_id']}")).json()
    assert (ended.code, (folder / "order.json").read_text()) == (0, "null\n")
    for fields in (last["event"]["payload"], run["event"]["payload"], details["state"]):
        assert fields["result"] is None
    untyped: Any = await wait_for_end(gateway, await gateway.start("count: none"))
    assert "result" not in untyped["event"]["payload"]


async def test_a_start_with_a_plan_needs_the_scope_of_an_approval(gateway: Gateway) -> None:
    tried = await gateway.post("/v1/runs", {"payload": {"goal": "say: tried", "dry_run": True}})
    dry = tried.json()["run_id"]
    trial: Any = await wait_for_end(gateway, dry)
    assert trial["event"]["payload"]["dry_run"]
    body: Any = {"payload": {"goal": "say: planned", "plan": {"run_id": dry, "calls": []}}}
    starter = await asyncio.to_thread(make_token, gateway.project, f"starter-{uuid4().hex[:8]}", "runs:start")
    refused = await gateway.post("/v1/runs", body, Authorization=f"Bearer {starter}")
    assert (refused.status_code, "human:answer" in refused.json()["detail"]) == (403, True)
    both = await gateway.post("/v1/runs", {"payload": {**body["payload"], "dry_run": True}})
    assert both.status_code == 422
    answer = await gateway.post("/v1/runs", body)
    run: Any = await wait_for_end(gateway, answer.json()["run_id"])
    plan = run["event"]["payload"]["plan"]
    assert (plan["run_id"], plan["by"] != "", plan["missing"], plan["unplanned"]) == (dry, True, [], [])
    body["payload"]["plan"]["run_id"] = "no-such-run"
    refused = await gateway.post("/v1/runs", body)
    assert (refused.status_code, "there is no dry run no-such-run" in refused.json()["detail"]) == (422, True)


async def dry_run(gateway: Gateway) -> str:
    """A dry run that would have charged 42."""
    answer = await gateway.post("/v1/runs", {"payload": {"goal": "charge: the card", "dry_run": True}})
    run_id: str = answer.json()["run_id"]
    await wait_for_end(gateway, run_id)
    return run_id


async def test_a_dry_run_is_called_so_and_its_plan_is_made_real(gateway: Gateway) -> None:
    run_id = await dry_run(gateway)
    details, shown = (await gateway.get(f"/v1/runs/{run_id}")).json(), await wait_for_end(gateway, run_id)
    assert (details["known"]["dry_run"], details["state"]["dry_run"]) == (True, True)

    async def is_listed_so() -> bool:
        return {"run_id": run_id, "dry_run": True}.items() <= (await listed_run(gateway, run_id)).items()

    await until(is_listed_so)
    assert shown["event"]["payload"]["dry_run"]  # type: ignore[index]
    events = [event for _, event in await gateway.events(run_id)]
    assert events[0]["dry_run"]
    assert [call["arguments"] for call in events[-1]["event"]["payload"]["dry_calls"]] == [{"amount": 42}]
    unknown = await gateway.post(f"/v1/runs/{run_id}/plan", {"without": [9]})
    assert (unknown.status_code, "has no step 9; it has: 1" in unknown.json()["detail"]) == (409, True)
    for scope in ("runs:start", "human:answer"):
        token = await asyncio.to_thread(make_token, gateway.project, f"one-{uuid4().hex[:8]}", scope)
        refused = await gateway.post(f"/v1/runs/{run_id}/plan", {}, Authorization=f"Bearer {token}")
        assert refused.status_code == 403
    started = await gateway.post(f"/v1/runs/{run_id}/plan", {})
    assert started.status_code == 202
    state = (await gateway.get(started.headers["Location"])).json()["state"]
    assert not state.get("dry_run")
    await gateway.post(f"{started.headers['Location']}/cancel", {})


async def test_fifty_callers_with_one_key_start_one_run(gateway: Gateway) -> None:
    key, body = uuid4().hex, {"payload": {"goal": "say: once"}}
    async with gateway.http as http:
        sent = [http.post("/v1/runs", json=body, headers={"Idempotency-Key": key}) for _ in range(50)]
        answers = await asyncio.gather(*sent)
    assert len({answer.json()["run_id"] for answer in answers}) == 1
    assert sorted(answer.status_code for answer in answers) == [200] * 49 + [202]


async def test_the_event_and_the_command_line_mean_the_same_key(gateway: Gateway) -> None:
    key = uuid4().hex
    body = {"payload": {"goal": "say: once"}, "dedupe_key": f"agentic:start:{key}"}
    started = (await gateway.post("/v1/runs", body)).json()["run_id"]
    again = await gateway.post("/v1/runs", body)
    assert (again.status_code, again.json()["run_id"]) == (200, started)
    said = gateway.project.perdure("run", "-d", "say: once", "--dedupe-key", key, TEMPORAL_ADDRESS=gateway.address)
    assert said.out.strip() == started
    both = await gateway.post("/v1/runs", body, **{"Idempotency-Key": key})
    assert (both.status_code, both.json()["field"]) == (422, "dedupe_key")


async def test_a_key_in_the_header_is_each_tokens_own(gateway: Gateway) -> None:
    key, body = uuid4().hex, {"payload": {"goal": "say: once"}}
    other = await asyncio.to_thread(make_token, gateway.project, f"bob-{key[:8]}", "runs:start")
    own = await gateway.post("/v1/runs", body, **{"Idempotency-Key": key})
    theirs = await gateway.post("/v1/runs", body, **{"Idempotency-Key": key, "Authorization": f"Bearer {other}"})
    shared = await gateway.post("/v1/runs", {**body, "dedupe_key": f"agentic:start:{key}"})
    assert [answer.status_code for answer in (own, theirs, shared)] == [202, 202, 202]
    assert len({answer.json()["run_id"] for answer in (own, theirs, shared)}) == 3


@pytest.mark.parametrize("by", ["Idempotency-Key", "dedupe_key"])
async def test_a_key_that_was_used_with_another_body_is_refused_with_both_digests(gateway: Gateway, by: str) -> None:
    key = uuid4().hex

    async def start(payload: Any) -> httpx.Response:
        if by == "dedupe_key":
            return await gateway.post("/v1/runs", {"payload": payload, "dedupe_key": key})
        return await gateway.post("/v1/runs", {"payload": payload}, **{by: key})

    first = {"goal": "say: once", "context": {"order": 4711, "for": "ann"}}
    same = {"context": {"for": "ann", "order": 4711}, "goal": "say: once", "limits": {}}
    assert [(await start(payload)).status_code for payload in (first, first, same)] == [202, 200, 200]
    others: tuple[dict[str, Any], ...] = (
        {"goal": "say: twice"},
        {"context": {}},
        {"limits": {"max_steps": 3}},
        {"agent": "default"},
    )
    for changes in others:
        refused = await start({**first, **changes})
        assert (refused.status_code, refused.json()["type"]) == (409, "urn:perdure:idempotency-key-reused")
        assert refused.json()["detail"].count("sha256:") == 2
        assert "Location" not in refused.headers


async def test_an_unknown_pace_is_refused(gateway: Gateway) -> None:
    unknown = await gateway.post("/v1/runs", {"payload": {"goal": "say: once", "pace": "fast"}})
    assert (unknown.status_code, unknown.json()["field"]) == (422, "payload.pace")


async def test_a_key_in_the_header_is_read_as_utf_8(gateway: Gateway) -> None:
    key = f"schlüssel-{uuid4().hex}"
    body = {"payload": {"goal": "say: once"}}
    async with gateway.http as http:
        answers = [await http.post("/v1/runs", json=body, headers={b"Idempotency-Key": key.encode()}) for _ in range(2)]
        bad = await http.post("/v1/runs", json=body, headers={b"Idempotency-Key": b"\xff"})
    assert [answer.status_code for answer in answers] == [202, 200]
    assert (bad.status_code, bad.json()["field"]) == (422, "Idempotency-Key")


async def test_a_question_is_answered_by_the_name_of_the_token(gateway: Gateway) -> None:
    run_id = await gateway.waiting()
    asked = [each for each in (await gateway.get("/v1/questions")).json()["questions"] if each["run_id"] == run_id]
    assert asked[0]["question"]["options"] == ["red", "blue"]
    answer = await gateway.post(f"/v1/runs/{run_id}/answer", {"text": "blue", "question_id": "q1"})
    assert answer.status_code == 200
    assert "done" in str((await wait_for_end(gateway, run_id))["event"])
    history = await gateway.client.get_workflow_handle(f"run:{run_id}").fetch_history()
    assert '"by":"tester"' in history.to_json().replace(" ", "") or "tester" in str(history.events)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"text": "blue", "question_id": "q9"}, 409, "q9"),
        ({"decision": "approve"}, 409, "takes a text"),
        ({"decision": "maybe"}, 422, "decision"),
        ({"text": "blue", "by": "somebody else"}, 422, "by: unknown field"),
    ],
)
async def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays(
    gateway: Gateway, body: dict[str, str], status: int, says: str
) -> None:
    run_id = await gateway.waiting()
    answer = await gateway.post(f"/v1/runs/{run_id}/answer", body)
    assert answer.status_code == status
    assert says in answer.json()["detail"]
    assert (await gateway.get(f"/v1/runs/{run_id}")).json()["state"]["question"]["id"] == "q1"
    await gateway.post(f"/v1/runs/{run_id}/cancel", {})


async def test_several_calls_are_decided_by_one_request_each_by_its_digest(gateway: Gateway) -> None:
    run_id = await gateway.waiting("pair: two cards")
    listed = (await gateway.get("/v1/questions")).json()["questions"]
    first, second = (each["question"] for each in listed if each["run_id"] == run_id)
    deny = {"question_id": first["id"], "call": first["call"], "decision": "deny"}
    wrong = {"question_id": second["id"], "call": first["call"], "decision": "approve"}
    answered = await gateway.post(f"/v1/runs/{run_id}/answers", {"answers": [wrong, deny]})
    assert [(each["question_id"], each["accepted"]) for each in answered.json()["results"]] == [
        ("q2", False),
        ("q1", True),
    ]
    assert "is not about the call" in answered.json()["results"][0]["reason"]
    body = {"question_id": "q2", "call": second["call"], "decision": "approve", "arguments": {"amount": "much"}}
    assert (await gateway.post(f"/v1/runs/{run_id}/answer", body)).status_code == 409
    assert (await gateway.post(f"/v1/runs/{run_id}/answers", {"answers": []})).status_code == 422
    await gateway.post(
        f"/v1/runs/{run_id}/answers", {"answers": [{**wrong, "call": second["call"], "decision": "deny"}]}
    )
    assert (await wait_for_end(gateway, run_id))["status"] == "completed"


async def test_an_approval_shows_the_exact_call_and_is_bound_to_it(gateway: Gateway) -> None:
    run_id = await gateway.waiting("charge: the card")
    [asked] = [each for each in (await gateway.get("/v1/questions")).json()["questions"] if each["run_id"] == run_id]
    assert '"amount": 42' in asked["question"]["text"]
    path = f"/v1/runs/{run_id}/answer"
    assert (await gateway.post(path, {"decision": "approve", "call": "0" * 24})).status_code == 409
    assert (await gateway.post(path, {"decision": "approve", "call": asked["question"]["call"]})).status_code == 200
    late = await gateway.post(path, {"decision": "approve"})
    assert (late.status_code, late.json()["title"]) == (409, "Conflict")
    await gateway.post(f"/v1/runs/{run_id}/cancel", {"reason": "it was a test"})
    assert (await wait_for_end(gateway, run_id))["status"] == "cancelled"
    async with gateway.http as http:  # the body may be left out
        assert (await http.post(f"/v1/runs/{run_id}/cancel")).status_code == 409
        assert (await http.post("/v1/runs")).status_code == 422
    assert (await gateway.post(path, {"text": "too late"})).status_code == 409


async def test_a_result_from_outside_reaches_its_run_and_no_other(gateway: Gateway) -> None:
    run_id = await gateway.waiting("lookup: the parcel", "waiting_on_tool")
    payload = {"run_id": run_id, "step": 1, "tool": "lookup", "status": "ok", "result": "in Bern"}
    path = f"/v1/runs/{run_id}/tool-results"
    nonce = await gateway.nonce(run_id)
    wrong = await gateway.post(path, {"payload": {**payload, "run_id": "another"}, "nonce": nonce})
    assert (wrong.status_code, wrong.json()["field"]) == (422, "payload.run_id")
    other = {"payload": {**payload, "run_id": "nobody"}, "nonce": nonce}
    assert (await gateway.post("/v1/runs/nobody/tool-results", other)).status_code == 404
    assert (await gateway.post(path, {"payload": payload, "nonce": nonce})).status_code == 202
    assert "in Bern" in str((await wait_for_end(gateway, run_id))["event"])
    assert (await gateway.post(path, {"payload": payload, "nonce": nonce})).status_code == 409


@pytest.mark.parametrize(
    ("goal", "status", "tool"),
    [("lookup: the parcel", "waiting_on_tool", "lookup"), ("charge: the card", "waiting_on_human", "charge")],
)
async def test_no_result_by_a_token_ends_a_run(gateway: Gateway, goal: str, status: str, tool: str) -> None:
    """Where the signal escalates, the gateway refuses, and sends nothing."""
    run_id = await gateway.waiting(goal, status)
    path = f"/v1/runs/{run_id}/tool-results"
    whole = {"run_id": run_id, "step": 1, "tool": tool, "status": "ok", "result": "forged"}
    wrong: tuple[dict[str, Any], ...] = (
        {"step": 999},
        {"step": 0},
        {"step": -1},
        {"step": 10**30},
        {"tool": "other"},
        {},
    )
    for changes in wrong:
        answer = await gateway.post(path, {"payload": {**whole, **changes}, "nonce": "0" * 32})
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:perdure:refused"), changes
    missing = await gateway.post(path, {"payload": whole})
    assert (missing.status_code, missing.json()["field"]) == (422, "nonce")
    state = (await gateway.get(f"/v1/runs/{run_id}")).json()["state"]
    assert (state["status"], state["ignored"]) == (status, [])
    await gateway.post(f"/v1/runs/{run_id}/cancel", {})


async def test_of_two_results_the_first_counts_and_the_second_is_a_conflict(gateway: Gateway) -> None:
    run_id = await gateway.waiting("lookup to confirm: the parcel", "waiting_on_tool")
    path, nonce = f"/v1/runs/{run_id}/tool-results", await gateway.nonce(run_id)
    payload = {"run_id": run_id, "step": 1, "tool": "lookup", "status": "ok", "result": {"in": "Bern", "for": 2}}
    assert (await gateway.post(path, {"payload": payload, "nonce": nonce})).status_code == 202
    again = {**payload, "result": {"for": 2, "in": "Bern"}, "completed_at": "2026-01-01T00:00:00Z"}
    assert (await gateway.post(path, {"payload": again, "nonce": nonce})).status_code == 200
    other = {**payload, "result": {"in": "Basel"}}
    conflict = await gateway.post(path, {"payload": other, "nonce": nonce})
    assert (conflict.status_code, conflict.json()["type"]) == (409, "urn:perdure:result-conflict")
    assert conflict.json()["detail"].count("sha256:") == 2
    unasked = await gateway.post(path, {"payload": other, "nonce": "0" * 32})
    assert (unasked.status_code, "sha256" in unasked.json()["detail"]) == (409, False)
    handle = gateway.client.get_workflow_handle(f"run:{run_id}")
    await handle.signal("tool_result", {"payload": other})
    [run] = (await gateway.get(f"/v1/runs/{run_id}")).json()["state"]["ignored"]
    assert run.startswith("tool_result: conflict (step 1, tool lookup): sha256:")
    await gateway.post(f"/v1/runs/{run_id}/cancel", {})


async def test_a_run_is_told_something_forked_resumed_and_recorded(gateway: Gateway) -> None:
    run_id = await gateway.waiting("ask: which colour")
    assert (await gateway.post(f"/v1/runs/{run_id}/steer", {"text": "be quick"})).status_code == 202
    await gateway.post(f"/v1/runs/{run_id}/answer", {"text": "red"})
    await wait_for_end(gateway, run_id)
    late = await gateway.post(f"/v1/runs/{run_id}/steer", {"text": "too late"})
    resumed = await gateway.post(f"/v1/runs/{run_id}/resume", {})
    assert (late.status_code, resumed.status_code) == (409, 409)
    assert "completed" in resumed.json()["detail"]
    forked = await gateway.post(f"/v1/runs/{run_id}/fork", {"step": 0, "say": "again"})
    assert forked.status_code == 202
    fork = forked.json()["run_id"]
    assert fork != run_id
    assert forked.headers["Location"] == f"/v1/runs/{fork}"
    answer = await gateway.get(f"/v1/runs/{run_id}/record")
    assert answer.headers["Content-Disposition"].startswith("attachment")
    record = answer.json()
    assert (record["run_id"], record["missing"]) == (run_id, [])
    assert "be quick" in answer.text
    await gateway.post(f"/v1/runs/{fork}/cancel", {})


async def test_pages_of_the_list_join(gateway: Gateway) -> None:
    """Each of these three is on a page; other tests' runs come in between, and one that ends may be on two."""
    own = {await gateway.start() for _ in range(3)}
    for run_id in own:
        await wait_for_end(gateway, run_id)

    async def are_listed() -> bool:
        whole = {run["run_id"] for run in (await gateway.get("/v1/runs?limit=200")).json()["runs"]}
        return own <= whole

    await until(are_listed)
    paged: set[str] = set()
    cursor = ""
    while not own <= paged:
        part = (await gateway.get(f"/v1/runs?limit=1{cursor and '&cursor=' + cursor}")).json()
        assert len(part["runs"]) <= 1
        paged |= {run["run_id"] for run in part["runs"]}
        cursor = part["cursor"]
        assert cursor or own <= paged
    forged = await gateway.get("/v1/runs?cursor=Zm9yZ2Vk")
    assert (forged.status_code, forged.json()["field"]) == (422, "cursor")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"payload": {"goal": "x"}, "colour": "red"}, "colour"),
        ({"payload": {"goal": "x", "colour": "red"}}, "payload.colour"),
        ({"payload": {"goal": "  "}}, "payload.goal"),
        ({"payload": {"goal": "x", "agent": "nobody"}}, "payload.agent"),
        ({"payload": {"goal": "x", "limits": {"max_steps": 0}}}, "payload.limits.max_steps"),
        ({"type": "agentic.end", "payload": {"goal": "x"}}, "type"),
    ],
)
async def test_a_bad_start_is_refused_with_its_field(gateway: Gateway, body: dict[str, object], field: str) -> None:
    answer = await gateway.post("/v1/runs", body)
    assert (answer.status_code, answer.json()["field"]) == (422, field)
    assert answer.headers["Content-Type"] == PROBLEM


async def test_a_start_that_no_run_could_begin_with_is_refused(gateway: Gateway) -> None:
    body = {"payload": {"goal": "x", "context": {"notes": "x" * 500_000}}}
    answer = await gateway.post("/v1/runs", body, **{"Idempotency-Key": uuid4().hex})
    assert (answer.status_code, answer.headers["Content-Type"]) == (413, PROBLEM)
    assert "the limit is 480,000" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("method", "more", "body"),
    [
        ("GET", "", None),
        ("GET", "/events", None),
        ("GET", "/result", None),
        ("POST", "/cancel", {}),
        ("POST", "/answer", {"text": "x"}),
        (
            "POST",
            "/tool-results",
            {"payload": {"run_id": "{id}", "step": 1, "tool": "t", "status": "ok"}, "nonce": "n"},
        ),
    ],
)
async def test_an_unknown_run_is_reported_at_every_route(
    gateway: Gateway, method: str, more: str, body: dict[str, Any] | None
) -> None:
    long = "x" * 1001
    async with gateway.http as http:
        for named, status in (("nobody", 404), (long, 422)):
            content = json.dumps(body).replace("{id}", named) if body is not None else None
            headers = {"Content-Type": "application/json"} if content else {}
            answer = await http.request(method, f"/v1/runs/{named}{more}", content=content, headers=headers)
            assert (answer.status_code, answer.headers["Content-Type"]) == (status, PROBLEM)
            assert long not in answer.text


async def test_a_run_without_a_worker_is_shown_as_the_server_knows_it(gateways: Gateways) -> None:
    with gateways.open(PERDURE_TASK_QUEUE="nobody-works-here") as lonely:
        run_id = await lonely.start()
        shown = (await lonely.get(f"/v1/runs/{run_id}")).json()
        assert (shown["answered"], shown["state"], shown["known"]["status"]) == (False, None, "queued")
        assert shown["age_seconds"] > 0
        waits = await lonely.get(f"/v1/runs/{run_id}/result")
        assert (waits.status_code, waits.json()["status"]) == (202, "queued")
        ready = await lonely.get("/readyz")
        assert (ready.status_code, ready.json()) == (503, {"ready": False, "temporal": True, "worker": False})
        await lonely.client.get_workflow_handle(f"run:{run_id}").terminate("its test is over")


async def test_a_run_has_the_same_fields_from_the_gateway_and_the_command(gateway: Gateway) -> None:
    run_id = await gateway.start()
    await gateway.get(f"/v1/runs/{run_id}/result?wait=30")
    plain, whole = [(await gateway.get(f"/v1/runs/{run_id}{query}")).json() for query in ("", "?subtasks=true")]
    shown = gateway.project.perdure("show", run_id, "--json", TEMPORAL_ADDRESS=gateway.address)
    row = json.loads(shown.out)
    assert (plain["subtasks"], whole["subtasks"], plain["end"]["status"]) == (None, [], "completed")
    assert {**plain["known"], **plain["state"]}.items() <= row.items()
    assert row.keys() - plain["known"].keys() - plain["state"].keys() == whole.keys() - {"known", "state"}
    assert row["end"] == whole["end"]


async def test_an_id_with_a_slash_is_percent_encoded_in_every_address(gateway: Gateway) -> None:
    run_id = f"team/cancel/{uuid4().hex[:8]}"
    said = gateway.project.perdure("run", "-d", "ask: which colour", "--id", run_id, TEMPORAL_ADDRESS=gateway.address)
    assert (said.code, said.out.strip()) == (0, run_id)
    path = f"/v1/runs/{quote(run_id, safe='')}"
    assert (await gateway.get(path)).json()["known"]["run_id"] == run_id
    assert (await gateway.get(f"{path}/result")).json()["run_id"] == run_id
    run = await gateway.events(quote(run_id, safe=""), most=3)
    assert {"run_started", "model_call_started"} <= {event["type"] for _, event in run}
    stopped = await gateway.post(f"{path}/cancel", {"reason": "seen"})
    assert (stopped.status_code, stopped.json()) == (202, {"run_id": run_id})
    assert (await gateway.get(f"{path}/result?wait=20")).json()["status"] == "cancelled"
    assert (await gateway.get(f"/v1/runs/{run_id}")).status_code == 404
    assert (await gateway.post(f"{path}%2Fcancel", {})).status_code == 405  # the address of a run, whose id ends so
    assert (await gateway.get("/v1%2Fruns")).status_code == 404


async def test_a_conversation_with_a_slash_takes_requests(gateway: Gateway) -> None:
    path = f"/v1/conversations/team%2F{uuid4().hex[:8]}"
    handed_in = await gateway.post(f"{path}/requests", {"request_id": "r1", "goal": "say: hello"})
    assert handed_in.status_code == 202
    assert (await gateway.get(path)).json()["accepted"] == 1


async def test_a_conversation_takes_requests_once(gateway: Gateway) -> None:
    lane = f"lane-{uuid4().hex[:8]}"
    body = {"request_id": "r1", "goal": "say: hello"}
    first = await gateway.post(f"/v1/conversations/{lane}/requests", body)
    assert (first.status_code, first.json()["duplicate"]) == (202, False)
    again = await gateway.post(f"/v1/conversations/{lane}/requests", body)
    assert (again.status_code, again.json()) == (200, {**first.json(), "duplicate": True, "position": 0})
    reused = await gateway.post(f"/v1/conversations/{lane}/requests", {**body, "goal": "say: something else"})
    assert (reused.status_code, reused.json()["type"]) == (409, "urn:perdure:request-id-reused")
    assert (await gateway.get(f"/v1/conversations/{lane}")).json()["accepted"] == 1
    assert (await gateway.get(f"/v1/conversations/{uuid4().hex}")).status_code == 404


async def test_a_turn_is_taken_out_of_its_conversation_once(gateway: Gateway) -> None:
    path = f"/v1/conversations/lane-{uuid4().hex[:8]}"
    run_id = (await gateway.post(f"{path}/requests", {"request_id": "r1", "goal": "say: hello"})).json()["run_id"]
    await gateway.get(f"/v1/runs/{run_id}/result?wait=20")
    async with asyncio.timeout(PATIENCE):
        while not (await gateway.get(path)).json()["recent"]:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.05)
    gone = await gateway.delete(f"{path}/turns/{run_id}")
    assert (gone.status_code, gone.json()) == (200, {"run_id": run_id})
    assert (await gateway.get(path)).json()["recent"][0]["forgotten"]
    assert (await gateway.delete(f"{path}/turns/{run_id}")).status_code == 404
    assert (await gateway.delete(f"/v1/conversations/{uuid4().hex}/turns/{run_id}")).status_code == 404


async def test_a_conversation_that_no_lane_could_look_for_is_refused(gateway: Gateway) -> None:
    refused = await gateway.post("/v1/conversations/a%00b/requests", {"request_id": "r1", "goal": "say: hello"})
    assert (refused.status_code, refused.json()["field"]) == (422, "conversation_id")


async def test_a_choice_without_a_visible_option_is_refused(gateway: Gateway) -> None:
    body = {"request_id": "r1", "goal": "say: hello", "choices": [{"name": "file", "options": ["a.md", " "]}]}
    refused = await gateway.post(f"/v1/conversations/{uuid4().hex}/requests", body)
    assert (refused.status_code, refused.json()["field"]) == (422, "choices.0.options.1")
    assert "an option must not be blank" in refused.json()["detail"]


async def test_a_full_lane_says_when_to_come_again(gateway: Gateway) -> None:
    """Bytes fill it sooner than requests: 1 MiB of them."""
    lane = f"full-{uuid4().hex[:8]}"
    path = f"/v1/conversations/{lane}/requests"
    await gateway.post(path, {"request_id": "first", "goal": "ask: to stay busy"})
    answer = httpx.Response(202)
    for number in range(12):
        answer = await gateway.post(path, {"request_id": f"r{number}", "goal": "x" * 150_000})
        if answer.status_code != 202:
            break
    assert (answer.status_code, answer.json()["type"]) == (429, "urn:perdure:lane-full")
    assert int(answer.headers["Retry-After"]) > 0
    await gateway.client.get_workflow_handle(f"conversation:{lane}").terminate("its test is over")


async def test_two_gateways_tell_the_same_of_one_run(gateways: Gateways, gateway: Gateway) -> None:
    with gateways.open() as other:
        run_id = await gateway.waiting()
        answers = await asyncio.gather(
            *(each.post(f"/v1/runs/{run_id}/answer", {"text": "red"}) for each in (gateway, other, gateway, other))
        )
        assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
        assert await wait_for_end(gateway, run_id) == await wait_for_end(other, run_id)


async def test_questions_are_listed_by_tool_kind_age_group_and_person(gateway: Gateway) -> None:
    asks, pays = await gateway.waiting(), await gateway.waiting("charge: the card")

    async def listed(query: str) -> set[str]:
        answer = (await gateway.get(f"/v1/questions?limit=200&{query}")).json()
        return {each["run_id"] for each in answer["questions"]} & {asks, pays}

    assert await listed("tool=charge") == {pays}
    assert await listed("kind=question&agent=default") == {asks}
    assert await listed("for_me=true") == {asks, pays}  # no group is asked
    for none in ("group=finance", "older_than=1d", "agent=nobody", "tool=charge&kind=question"):
        assert await listed(none) == set(), none
    for wrong, field in (("kind=any", "kind"), ("older_than=soon", "older_than"), ("for_me=perhaps", "for_me")):
        refused = await gateway.get(f"/v1/questions?{wrong}")
        assert (refused.status_code, refused.json()["field"]) == (422, field)
    for run_id in (asks, pays):
        await gateway.post(f"/v1/runs/{run_id}/cancel", {})


@pytest.mark.parametrize(
    ("path", "known"),
    [
        ("/v1/runs?agents=x", "agent, conversation, cursor, limit, since, status, waiting"),
        ("/v1/questions?agents=x", "agent, for_me, group, kind, limit, older_than, tool"),
        ("/v1/runs/none?verbose=1", "the parameters are: subtasks"),
        ("/v1/conversations/none?verbose=1", "it takes no parameters"),
    ],
)
async def test_an_unknown_parameter_is_refused_with_the_known_ones(gateway: Gateway, path: str, known: str) -> None:
    answer = await gateway.get(path)
    assert answer.status_code == 400
    assert known in answer.json()["detail"]


@pytest.mark.parametrize("agent", ["'", "'x", "def'", 'def"ault', "def\\ault", "default' OR AgentName != 'x"])
async def test_a_filter_with_a_quote_matches_exactly(gateway: Gateway, agent: str) -> None:
    run_id = await gateway.waiting()
    none = (await gateway.get(f"/v1/questions?agent={quote(agent)}")).json()["questions"]
    own = (await gateway.get("/v1/questions?agent=default")).json()["questions"]
    assert none == []
    assert run_id in [question["run_id"] for question in own]
    await gateway.post(f"/v1/runs/{run_id}/cancel", {})

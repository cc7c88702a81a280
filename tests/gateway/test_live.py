"""A run as server-sent events: sent once and in order, and again from where a client left, at any gateway."""

import asyncio
import signal
import socket
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.gateway.conftest import Gateway, Gateways, parse_events
from tests.preloaded import A_NEW_PYTHON
from tests.waiting import until


async def test_a_stream_tells_each_thing_and_ends_with_the_end(gateway: Gateway) -> None:
    run_id = await gateway.start()
    events = await gateway.events(run_id)
    kinds = [event.get("type") for _, event in events]
    assert kinds[0] == "run_started"
    assert [kind for kind in kinds if kind != "partial_text"][-2:] == ["run_ended", None]
    assert events[-1][1]["status"] == "completed"
    places = [at for at, event in events[:-1] if event["type"] not in ("partial_text", "activity_retrying")]
    assert len(set(places)) == len(places)
    assert "" not in places


async def test_a_reconnecting_client_gets_new_events_and_none_twice(gateway: Gateway) -> None:
    run_id = await gateway.start()
    whole = await gateway.events(run_id)
    kept = [(at, event) for at, event in whole if at]
    for number, (at, _) in enumerate(kept[:-1]):
        rest = await gateway.events(run_id, after=at)
        assert [event for _, event in rest] == [event for _, event in kept[number + 1 :]]


async def test_a_stream_outlives_the_gateway_that_was_killed(gateways: Gateways, gateway: Gateway) -> None:
    with gateways.open() as first:
        run_id = await first.waiting()
        seen = await first.events(run_id, most=4)
        assert seen[-1][1]["type"] == "wait_started"
        first.process.send_signal(signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            await first.get("/healthz")
    following = asyncio.create_task(gateway.events(run_id, after=seen[-1][0]))
    assert (await gateway.post(f"/v1/runs/{run_id}/answer", {"text": "red"})).status_code == 200
    rest = await following
    assert [event.get("type") for _, event in rest[:2]] == ["wait_ended", "answer_received"]
    assert rest[-1][1]["status"] == "completed"
    everything = await gateway.events(run_id)
    heard = [at for at, _ in (*seen, *rest) if at]
    assert heard == [at for at, _ in everything if at]


@pytest.mark.parametrize("after", ["nonsense", "1.2.3", "01a20447-8e85-70c6-8e1a-b9a93636b7e7.x.0"])
async def test_a_place_that_was_never_given_out_is_refused(gateway: Gateway, after: str) -> None:
    run_id = await gateway.start()
    answer = await gateway.get(f"/v1/runs/{run_id}/events", **{"Last-Event-ID": after})
    assert (answer.status_code, answer.json()["field"]) == (422, "Last-Event-ID")


async def test_a_place_of_another_run_tells_all_of_this_one(gateway: Gateway) -> None:
    one, other = await gateway.start(), await gateway.start()
    at, _ = (await gateway.events(one))[-1]
    assert await gateway.events(other, after=at) == await gateway.events(other)


async def test_an_unknown_run_has_no_stream(gateway: Gateway) -> None:
    assert (await gateway.get("/v1/runs/nobody/events")).status_code == 404


async def test_sigterm_ends_streams_and_the_gateway_exits_well(gateways: Gateways) -> None:
    with gateways.open() as gateway:
        run_id = await gateway.waiting()
        async with gateway.http as http, http.stream("GET", f"/v1/runs/{run_id}/events") as stream:
            heard = parse_events(stream)
            assert (await anext(heard))[1]["type"] == "run_started"
            ending = asyncio.create_task(asyncio.to_thread(gateway.process.send_signal, signal.SIGTERM))
            async for _ in heard:
                pass
            done = await ending
        assert (done.code, "Traceback" in done.err) == (0, False), done.err
        await gateway.client.get_workflow_handle(f"run:{run_id}").terminate("its test is over")


async def test_clients_that_leave_leave_nothing_behind(gateways: Gateways) -> None:
    with gateways.open(**A_NEW_PYTHON) as gateway:  # so that it has its own pid
        run_id = await gateway.waiting()

        async def open_stream() -> socket.socket:
            address = urlsplit(gateway.url)
            made = socket.create_connection((str(address.hostname), address.port or 0))
            head = f"GET /v1/runs/{run_id}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {gateway.token}\r\n\r\n"
            made.sendall(head.encode())
            return made

        before = descriptors(gateway)
        streams = [await open_stream() for _ in range(50)]
        await until(lambda: descriptors(gateway) >= before + 40)  # some were of requests that were just over
        for each in streams:
            each.close()
        await until(lambda: descriptors(gateway) <= before + 2)
        done = await asyncio.to_thread(gateway.process.send_signal, signal.SIGTERM)
        assert (done.code, "destroyed" in done.err, "Traceback" in done.err) == (0, False, False), done.err[:2000]
        await gateway.client.get_workflow_handle(f"run:{run_id}").terminate("its test is over")


def descriptors(gateway: Gateway) -> int:
    with suppress(OSError):
        return len(list(Path(f"/proc/{gateway.process.popen.pid}/fd").iterdir()))
    return -1

"""What is no plain JSON is refused: nothing that two readers may understand differently gets in."""

import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from urllib.parse import urlsplit

import httpx
import pytest

from perdure.gateway.problems import ApiError
from perdure.gateway.requests import read_body_json
from tests.gateway.conftest import Gateway
from tests.waiting import PATIENCE

BAD = {
    "twice": b'{"goal": "a", "goal": "b"}',
    "nested": b"[" * 10_000 + b"]" * 10_000,
    "nested objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "deep": b"[" * 70 + b"]" * 70,
    "not a number": b'{"a": NaN}',
    "infinite": b'{"a": 1e999}',
    "endless digits": b'{"a": ' + b"9" * 5000 + b"}",
    "half a pair": rb'{"a": "\ud800"}',
    "not UTF-8": b'{"a": "\xff"}',
    "marked": b'\xef\xbb\xbf{"a": 1}',
    "cut": b'{"a": ',
    "nothing": b" ",
}


@pytest.mark.parametrize("name", BAD)
def test_json_that_says_no_one_thing_is_refused(name: str) -> None:
    with pytest.raises(ApiError) as failure:
        read_body_json(BAD[name])
    assert failure.value.status_code == 400
    assert "limit" not in failure.value.detail


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e400", "9" * 5000])
def test_a_number_that_readers_disagree_on_is_refused_with_its_place(number: str) -> None:
    with pytest.raises(ApiError) as failure:
        read_body_json(f'{{"payload": {{"context": {{"sums": [{{"of": {number}}}]}}}}}}'.encode())
    assert failure.value.field == "payload.context.sums.0.of"
    assert failure.value.detail.startswith("the body: payload.context.sums.0.of: ")


def test_what_is_plain_is_taken() -> None:
    assert read_body_json(rb'{"a": ["\ud83d\ude00", 1.5, null, -3]}') == {"a": ["😀", 1.5, None, -3]}


@pytest.mark.parametrize("name", [name for name in BAD if name != "nothing"])
async def test_the_gateway_refuses_it_as_a_problem(gateway: Gateway, name: str) -> None:
    async with gateway.http as http:
        answer = await http.post("/v1/runs", content=BAD[name], headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert answer.headers["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("size", [1024 * 1024 + 1, 10_000_000])
async def test_who_sends_too_much_hears_of_it(gateway: Gateway, size: int) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(0, size, 50_000):
            yield b" " * 50_000

    async with gateway.http as http:
        for content in (b" " * size, chunks()):
            answer = await http.post("/v1/runs", content=content, headers={"Content-Type": "application/json"})
            assert (answer.status_code, answer.json()["status"]) == (413, 413)


async def test_another_content_type_is_refused(gateway: Gateway) -> None:
    async with gateway.http as http:
        answer = await http.post("/v1/runs", content=b'{"payload": {"goal": "x"}}')
        assert answer.status_code == 415
        answer = await http.post("/v1/runs", data={"goal": "x"})
        assert answer.status_code == 415


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nothing", 404), ("DELETE", "/v1/runs", 405)])
async def test_unknown_addresses_and_methods_are_problems(
    gateway: Gateway, method: str, path: str, status: int
) -> None:
    async with gateway.http as http:
        answer = await http.request(method, path)
    assert (answer.status_code, answer.json()["status"]) == (status, status)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert status != 405 or answer.headers["Allow"]


@pytest.mark.parametrize("name", ["Authorization", "Content-Type", "Webhook-Signature", "Idempotency-Key"])
async def test_a_header_that_two_readers_may_read_differently_is_refused(gateway: Gateway, name: str) -> None:
    async with httpx.AsyncClient(base_url=gateway.url, trust_env=False) as http:
        right = f"Bearer {gateway.token}"
        for values in ((right, "Bearer other"), ("Bearer other", right), (right, right)):
            answer = await http.get("/v1/runs", headers=[(name, value) for value in values])
            assert (answer.status_code, answer.json()["detail"]) == (400, f"the header {name.lower()} is there twice")


@pytest.mark.parametrize(
    "head",
    [
        "GET /healthz HTTP/1.1\nHost: a\n\n",
        "GET /healthz HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
        "\nGET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n\n\nGET /healthz HTTP/1.1\nHost: a\r\n\r\n",
    ],
)
@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_head_whose_lines_end_in_a_line_feed_alone_is_refused(gateway: Gateway, head: str, size: int) -> None:
    address = urlsplit(gateway.url)
    with socket.create_connection((address.hostname, address.port), timeout=PATIENCE) as peer:
        with suppress(ConnectionError):
            for start in range(0, len(head), size):
                peer.sendall(head[start : start + size].encode())
        received = b""
        with suppress(ConnectionError):
            while piece := peer.recv(65536):
                received += piece
    answers = received.split(b"HTTP/1.1 ")[1:]
    assert answers[-1].startswith(b"400 ")
    assert not any(answer.startswith(b"200 ") for answer in answers)

"""The tool `fetch`: one page by GET, with caps on time, size and redirects."""

import asyncio
import re
import ssl
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import httpcore
import httpx

from activities.http.body import BodyEncodingError, read_prefix
from activities.http.retry_after import retry_after
from activities.http.ssrf import BlockedAddress, GuardedTransport, Resolver, resolve, spellings
from activities.http.url import usable_url
from activities.tools.interface import CallContext, TransientFailure
from contracts.agent import ToolSchema
from contracts.failures import ToolFault
from contracts.tool import Effect, ToolKind, ToolOutcome, ToolRoute, failed

if TYPE_CHECKING:
    from activities.tools.html import Webpage

MOST_REDIRECTS = 5
PORTS = {"http": 80, "https": 443}
_MAY_PASS = {408, 425, 429}
_GONE = {404, 410}
_HOST = re.compile(rb"[A-Za-z0-9._:-]+")
_MOST_HEADER = 200  # characters of a header or an error of the server that are shown
_MOST_URL = 300
_HEADERS = {
    "user-agent": "Perdure (fetch tool)",
    "accept": "text/html, text/markdown, text/plain, application/json, */*;q=0.5",
    "accept-encoding": "gzip",  # one layer is unpacked, under a limit
}
_DESCRIPTION = (
    "Fetch a public web page or text document by HTTP GET. HTML comes back as Markdown with absolute links, "
    "other text as it is, after a few lines with the final url, status, content type and title. Binary files "
    "are only described. Addresses inside private networks are blocked."
)


class _Refused(Exception):
    """The fetch ends with an error for the model."""

    def __init__(self, kind: ToolFault, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


@dataclass(frozen=True)
class _Answer:
    url: httpx.URL
    status: int
    content_type: str
    body: bytes


class FetchTool:
    """The tool `fetch`.

    `allow_hosts` holds "host" and "host:port", whose private addresses may be fetched, except metadata services.
    `only_hosts` holds "host", "*.host" and "host:port"; if it is not None, only these and `allow_hosts` are fetched.
    A port other than 80 and 443 must be in one of the two; "host" in `allow_hosts` allows all its ports.

    `timeout` covers the whole call with its redirects, `max_bytes` the unpacked body.
    """

    def __init__(
        self,
        allow_hosts: frozenset[str],
        timeout: timedelta = timedelta(seconds=30),
        max_bytes: int = 5 * 1024 * 1024,
        resolver: Resolver = resolve,
        only_hosts: frozenset[str] | None = None,
    ) -> None:
        self._only_hosts = only_hosts
        self._allow_hosts = frozenset(host.lower() for host in allow_hosts)
        self._timeout = timeout
        self._max_bytes = max_bytes
        self._resolver = resolver
        self._tls = httpx.create_ssl_context(trust_env=False)
        self.route = ToolRoute(name="fetch", kind=ToolKind.native, effect=Effect.read, timeout=timeout)
        self.schema = ToolSchema(
            name="fetch",
            description=_DESCRIPTION,
            input_schema={
                "type": "object",
                "properties": {
                    "url": {"type": "string", "description": "The whole address, such as https://example.com/page"}
                },
                "required": ["url"],
                "additionalProperties": False,
            },
        )

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:  # noqa: ARG002 - needs none
        address = arguments["url"].strip()
        seconds = self._timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                answer = await self._get(address)
                return await self._told(answer)
        except _Refused as refused:
            return failed(refused.kind, refused.message)
        except BlockedAddress as blocked:
            return failed(ToolFault.blocked, f"{_brief(address)}: {blocked}")
        except (TimeoutError, httpcore.TimeoutException):
            message = f"no whole answer within {seconds:g} s: {_brief(address)}"
            raise TransientFailure(ToolFault.timeout, message) from None
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                reason = error.__cause__.verify_message
                return failed(ToolFault.unreachable, f"the certificate is not trusted ({reason}): {_brief(address)}")
            message = f"cannot reach {_brief(address)}: {_one_line(error)}"
            raise TransientFailure(ToolFault.unreachable, message) from None

    async def _get(self, address: str) -> _Answer:
        """Return the response after redirects, each of which is checked before it is followed."""
        url = self._permitted(_checked(address))
        timeouts = httpx.Timeout(self._timeout.total_seconds()).as_dict()
        # No `httpx.AsyncClient`: it would log the URL, read the environment and handle redirects itself.
        async with GuardedTransport(self._tls, self._allow_hosts, self._resolver) as transport:
            for _ in range(MOST_REDIRECTS + 1):
                request = httpx.Request("GET", url, headers=_HEADERS, extensions={"timeout": timeouts})
                response = await transport.handle_async_request(request)
                try:
                    if not response.has_redirect_location:
                        return await self._answer(url, response)
                finally:
                    await response.aclose()
                url = self._next_hop(url, response.headers["location"])
        raise _Refused(ToolFault.http_error, f"more than {MOST_REDIRECTS} redirects: {_brief(address)}")

    def _next_hop(self, url: httpx.URL, location: str) -> httpx.URL:
        try:
            return self._permitted(_checked(urljoin(str(url), location)))
        except ValueError:
            raise _Refused(ToolFault.http_error, f"a redirect that leads nowhere, from {_brief(str(url))}") from None
        except _Refused as refused:
            message = f"redirect from {_brief(str(url))} refused: {refused.message}"
            raise _Refused(refused.kind, message) from None

    def _permitted(self, url: httpx.URL) -> httpx.URL:
        """Return the URL. Raises _Refused if the project's lists do not allow its host or port."""
        name, port = url.raw_host.decode().lower().rstrip("."), url.port or PORTS[url.scheme]
        if not self._allow_hosts.isdisjoint(spellings(name, port)):
            return url
        with_port, bare = _listed_spellings(name, port)
        only = self._only_hosts
        if only is not None and only.isdisjoint(with_port | bare):
            raise _Refused(
                ToolFault.blocked, f"only the hosts of [fetch] only_hosts are fetched, not {_brief(str(url))}"
            )
        if port not in PORTS.values() and (only is None or only.isdisjoint(with_port)):
            message = f"only ports 80 and 443 are fetched unless perdure.toml names host:port, not {_brief(str(url))}"
            raise _Refused(ToolFault.blocked, message)
        return url

    async def _answer(self, url: httpx.URL, response: httpx.Response) -> _Answer:
        status = response.status_code
        if status >= 500 or status in _MAY_PASS:
            message = f"{_named(status)}: {_brief(str(url))}"
            raise TransientFailure(ToolFault.http_error, message, retry_after(response.headers))
        if not 200 <= status < 300:
            kind = ToolFault.not_found if status in _GONE else ToolFault.http_error
            raise _Refused(kind, f"{_named(status)}: {_brief(str(url))}")
        length = response.headers.get("content-length", "")
        is_declared_larger = length.isdecimal() and int(length[:20]) > self._max_bytes
        try:
            body, is_whole = (b"", False) if is_declared_larger else await read_prefix(response, self._max_bytes)
        except BodyEncodingError as error:
            raise _Refused(ToolFault.http_error, f"{error}: {_brief(str(url))}") from None
        if not is_whole:
            message = f"the page is larger than the cap of {self._max_bytes:,} bytes: {_brief(str(url))}"
            raise _Refused(ToolFault.too_large, message)
        return _Answer(url, status, response.headers.get("content-type", "")[:_MOST_HEADER], body)

    async def _told(self, answer: _Answer) -> ToolOutcome:
        # Importing the parsers takes a seventh of a second, which commands that fetch nothing should not pay.
        from activities.tools.html import Tangled, read_webpage

        # A third of the time: if reading takes longer, the page is the cause, and a retry would not help.
        patience = self._timeout / 3
        try:
            page = await asyncio.to_thread(read_webpage, answer.body, answer.content_type, str(answer.url), patience)
        except Tangled:
            message = f"the markup of this page is too tangled to read: {_brief(str(answer.url))}"
            return failed(ToolFault.too_large, message)
        return ToolOutcome(result=_text(answer, page))


def _listed_spellings(name: str, port: int) -> tuple[set[str], set[str]]:
    """Return the entries of `only_hosts` that match a host: with its port, and without."""
    bare = f"[{name}]" if ":" in name else name
    labels = name.split(".")
    hosts = {bare, *(f"*.{'.'.join(labels[at:])}" for at in range(1, len(labels)))}
    return {f"{host}:{port}" for host in hosts}, hosts


def _checked(text: str) -> httpx.URL:
    """Parse an http or https URL. Its address is checked on connect. Raises _Refused."""
    try:
        url = usable_url(text)
    except ValueError as error:
        raise _Refused(ToolFault.blocked, f"not a usable URL ({error}): {_brief(text)}") from None
    if url.userinfo:
        # Not quoted: it would put the password into history.
        raise _Refused(ToolFault.blocked, "URLs with a user name or password in them are refused")
    if url.port is not None and not 0 < url.port < 65536:
        raise _Refused(ToolFault.blocked, f"not a usable port: {_brief(text)}")
    if url.scheme not in {"http", "https"} or not _HOST.fullmatch(url.raw_host) or "\\" in text:
        message = "only http and https URLs such as https://example.com/page are fetched, not "
        raise _Refused(ToolFault.blocked, message + _brief(text))
    return url.copy_with(fragment=None)


def _text(answer: _Answer, page: "Webpage") -> str:
    lines = [f"url: {answer.url}", f"status: {_named(answer.status)}"]
    lines.append(f"content-type: {answer.content_type or 'not given'}")
    if page.title is not None:
        lines.append(f"title: {page.title}")
    text = page.text
    if text is None:
        text = f"[not text: {len(answer.body):,} bytes, not shown]"
    return "\n".join((*lines, "", text or "[the page has no text]"))


def _named(status: int) -> str:
    return f"{status} {httpx.codes.get_reason_phrase(status)}".rstrip()


def _brief(text: str) -> str:
    """Return the URL for a one-line message, without user name and password."""
    bare = re.sub(r"//[^/?#]*@", "//", text[: 4 * _MOST_URL])
    line = "".join(character if character.isprintable() else "?" for character in bare)
    return line if len(line) <= _MOST_URL else line[:_MOST_URL] + "…"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:_MOST_HEADER] or type(error).__name__

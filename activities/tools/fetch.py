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
from activities.http.ssrf import BlockedAddressError, GuardedTransport, Resolver, host_spellings, resolve_host
from activities.http.url import usable_url
from activities.media.check import media_type_of
from activities.media.result import ResultFiles
from activities.tools.http import TRANSIENT_STATUSES
from activities.tools.interface import CallContext, TransientToolError
from contracts.agent import ToolSchema
from contracts.failures import ToolFault
from contracts.tool import Effect, ToolKind, ToolOutcome, ToolRoute, error_outcome

if TYPE_CHECKING:
    from activities.tools.html import Webpage

MAX_REDIRECTS = 5
PORTS = {"http": 80, "https": 443}
_GONE_STATUSES = {404, 410}
_HOST = re.compile(rb"[A-Za-z0-9._:-]+")
_MAX_HEADER = 200  # characters of a header or an error of the server that are shown
_MAX_URL = 300
_HEADERS = {
    "user-agent": "Perdure (fetch tool)",
    "accept": "text/html, text/markdown, text/plain, application/json, */*;q=0.5",
    "accept-encoding": "gzip",  # one layer is unpacked, under a limit
}
_DESCRIPTION = (
    "Fetch a public web page or text document by HTTP GET. HTML comes back as Markdown with absolute links, "
    "other text as it is, after a few lines with the final url, status, content type and title. You see images and "
    "PDF; other binary files are only described. Addresses inside private networks are blocked."
)


class _RefusedError(Exception):
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
        resolver: Resolver = resolve_host,
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

    async def run(self, arguments: dict[str, Any], context: CallContext) -> ToolOutcome:
        address = arguments["url"].strip()
        seconds = self._timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                answer = await self._get_page(address)
                if kind := media_type_of(answer.body):
                    kept = ResultFiles(f"fetch-{context.step:02}", context.workspace, context.store)
                    outcome = await asyncio.to_thread(kept.to_outcome, kind, answer.body)
                    return outcome.model_copy(update={"result": {"url": str(answer.url), **outcome.result}})
                return await self._to_outcome(answer)
        except _RefusedError as refused:
            return error_outcome(refused.kind, refused.message)
        except BlockedAddressError as blocked:
            return error_outcome(ToolFault.blocked, f"{_format_url(address)}: {blocked}")
        except (TimeoutError, httpcore.TimeoutException):
            message = f"no whole answer within {seconds:g} s: {_format_url(address)}"
            raise TransientToolError(ToolFault.timeout, message) from None
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                reason = error.__cause__.verify_message
                return error_outcome(
                    ToolFault.unreachable, f"the certificate is not trusted ({reason}): {_format_url(address)}"
                )
            reason = " ".join(str(error).split())[:_MAX_HEADER] or type(error).__name__
            message = f"cannot reach {_format_url(address)}: {reason}"
            raise TransientToolError(ToolFault.unreachable, message) from None

    async def _get_page(self, address: str) -> _Answer:
        """Return the response after redirects, each of which is checked before it is followed."""
        url = self._require_listed(_parse_url(address))
        timeouts = httpx.Timeout(self._timeout.total_seconds()).as_dict()
        # No `httpx.AsyncClient`: it would log the URL, read the environment and handle redirects itself.
        async with GuardedTransport(self._tls, self._allow_hosts, self._resolver) as transport:
            for _ in range(MAX_REDIRECTS + 1):
                request = httpx.Request("GET", url, headers=_HEADERS, extensions={"timeout": timeouts})
                response = await transport.handle_async_request(request)
                try:
                    if not response.has_redirect_location:
                        return await self._read_answer(url, response)
                finally:
                    await response.aclose()
                url = self._next_hop(url, response.headers["location"])
        raise _RefusedError(ToolFault.http_error, f"more than {MAX_REDIRECTS} redirects: {_format_url(address)}")

    def _next_hop(self, url: httpx.URL, location: str) -> httpx.URL:
        try:
            return self._require_listed(_parse_url(urljoin(str(url), location)))
        except ValueError:
            raise _RefusedError(
                ToolFault.http_error, f"a redirect that leads nowhere, from {_format_url(str(url))}"
            ) from None
        except _RefusedError as refused:
            message = f"redirect from {_format_url(str(url))} refused: {refused.message}"
            raise _RefusedError(refused.kind, message) from None

    def _require_listed(self, url: httpx.URL) -> httpx.URL:
        """Return the URL. Raises _Refused if the project's lists do not allow its host or port."""
        name, port = url.raw_host.decode().lower().rstrip("."), url.port or PORTS[url.scheme]
        if not self._allow_hosts.isdisjoint(host_spellings(name, port)):
            return url
        with_port, bare = _listed_spellings(name, port)
        only = self._only_hosts
        if only is not None and only.isdisjoint(with_port | bare):
            raise _RefusedError(
                ToolFault.blocked, f"only the hosts of [fetch] only_hosts are fetched, not {_format_url(str(url))}"
            )
        if port not in PORTS.values() and (only is None or only.isdisjoint(with_port)):
            message = (
                f"only ports 80 and 443 are fetched unless perdure.toml names host:port, not {_format_url(str(url))}"
            )
            raise _RefusedError(ToolFault.blocked, message)
        return url

    async def _read_answer(self, url: httpx.URL, response: httpx.Response) -> _Answer:
        status = response.status_code
        if status >= 500 or status in TRANSIENT_STATUSES:
            message = f"{_format_status(status)}: {_format_url(str(url))}"
            raise TransientToolError(ToolFault.http_error, message, retry_after(response.headers))
        if not 200 <= status < 300:
            kind = ToolFault.not_found if status in _GONE_STATUSES else ToolFault.http_error
            raise _RefusedError(kind, f"{_format_status(status)}: {_format_url(str(url))}")
        length = response.headers.get("content-length", "")
        is_declared_larger = length.isdecimal() and int(length[:20]) > self._max_bytes
        try:
            body, is_whole = (b"", False) if is_declared_larger else await read_prefix(response, self._max_bytes)
        except BodyEncodingError as error:
            raise _RefusedError(ToolFault.http_error, f"{error}: {_format_url(str(url))}") from None
        if not is_whole:
            message = f"the page is larger than the cap of {self._max_bytes:,} bytes: {_format_url(str(url))}"
            raise _RefusedError(ToolFault.too_large, message)
        return _Answer(url, status, response.headers.get("content-type", "")[:_MAX_HEADER], body)

    async def _to_outcome(self, answer: _Answer) -> ToolOutcome:
        # Importing the parsers takes a seventh of a second, which commands that fetch nothing should not pay.
        from activities.tools.html import TangledPageError, read_webpage

        # A third of the time: if reading takes longer, the page is the cause, and a retry would not help.
        patience = self._timeout / 3
        try:
            page = await asyncio.to_thread(read_webpage, answer.body, answer.content_type, str(answer.url), patience)
        except TangledPageError:
            message = f"the markup of this page is too tangled to read: {_format_url(str(answer.url))}"
            return error_outcome(ToolFault.too_large, message)
        return ToolOutcome(result=_format_page(answer, page))


def _listed_spellings(name: str, port: int) -> tuple[set[str], set[str]]:
    """Return the entries of `only_hosts` that match a host: with its port, and without."""
    bare = f"[{name}]" if ":" in name else name
    labels = name.split(".")
    hosts = {bare, *(f"*.{'.'.join(labels[at:])}" for at in range(1, len(labels)))}
    return {f"{host}:{port}" for host in hosts}, hosts


def _parse_url(text: str) -> httpx.URL:
    """Parse an http or https URL. Its address is checked on connect. Raises _Refused."""
    try:
        url = usable_url(text)
    except ValueError as error:
        raise _RefusedError(ToolFault.blocked, f"not a usable URL ({error}): {_format_url(text)}") from None
    if url.userinfo:
        # Not quoted: it would put the password into history.
        raise _RefusedError(ToolFault.blocked, "URLs with a user name or password in them are refused")
    if url.port is not None and not 0 < url.port < 65536:
        raise _RefusedError(ToolFault.blocked, f"not a usable port: {_format_url(text)}")
    if url.scheme not in {"http", "https"} or not _HOST.fullmatch(url.raw_host) or "\\" in text:
        message = "only http and https URLs such as https://example.com/page are fetched, not "
        raise _RefusedError(ToolFault.blocked, message + _format_url(text))
    return url.copy_with(fragment=None)


def _format_page(answer: _Answer, page: "Webpage") -> str:
    head = [f"url: {answer.url}", f"status: {_format_status(answer.status)}"]
    head.append(f"content-type: {answer.content_type or 'not given'}")
    if page.title is not None:
        head.append(f"title: {page.title}")
    text = f"[not text: {len(answer.body):,} bytes, not shown]" if page.text is None else page.text
    return "\n".join((*head, "", text or "[the page has no text]"))


def _format_status(status: int) -> str:
    return f"{status} {httpx.codes.get_reason_phrase(status)}".rstrip()


def _format_url(text: str) -> str:
    """Return the URL for a one-line message, without user name and password."""
    bare = re.sub(r"//[^/?#]*@", "//", text[: 4 * _MAX_URL])
    line = "".join(character if character.isprintable() else "?" for character in bare)
    return line if len(line) <= _MAX_URL else line[:_MAX_URL] + "…"

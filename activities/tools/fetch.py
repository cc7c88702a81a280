"""The tool `fetch`: one page by GET, with caps on time, size and redirects."""

import asyncio
import codecs
import re
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from io import StringIO
from typing import Any
from urllib.parse import urljoin

import httpcore
import httpx
from bs4 import BeautifulSoup, Tag
from bs4.element import NavigableString
from markdownify import ATX, MarkdownConverter

from perdure.activities.http import (
    BlockedAddressError,
    BodyEncodingError,
    GuardedTransport,
    Resolver,
    host_spellings,
    read_prefix,
    resolve_host,
    retry_after,
    usable_url,
)
from perdure.activities.media.check import media_type_of
from perdure.activities.media.store import ResultFiles
from perdure.activities.tools.interface import CallContext, TransientToolError
from perdure.activities.tools.outside import TRANSIENT_STATUSES
from perdure.contracts.agent import ToolSchema
from perdure.contracts.failures import ToolFault
from perdure.contracts.tool import Effect, ToolKind, ToolOutcome, ToolRoute, error_outcome
from perdure.decisions.text.visible_text import cut_text

_TEXT_TYPES = re.compile(
    r"text/.*|.*[/+](?:json|xml|yaml|x-yaml|toml|javascript|x-javascript|x-ndjson|ndjson|jsonl|json5)"
    r"|application/(?:x-www-form-urlencoded|sql|graphql|x-sh|rtf|x-subrip)"
)
_HTML_TYPES = {"text/html", "application/xhtml+xml"}
_UNSPECIFIED_TYPES = {"", "application/octet-stream", "application/unknown", "binary/octet-stream"}
_HTML_START = re.compile(rb"\s*<(?:!doctype\s+html|html)\b", re.IGNORECASE)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
_META_CHARSET = re.compile(rb"<meta\b[^<>]*?charset\s*=\s*[\"']?\s*([\w.:-]+)", re.IGNORECASE)
# Web encodings only: some of Python's others (punycode) take very long on crafted input.
_WEB_ENCODING = re.compile(r"(utf-(8|16|32)|cp\d|iso8859|iso2022|koi8|gb|big5|euc_|shift_|mac|hz|johab|tis)")
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_DROPPED_TAGS = ["script", "style", "noscript", "svg", "template", "title"]
# markdownify's patterns take the square of a run's length.
_LONG_BLANK = re.compile(r"[ \t\r\n\f\v]{64,}")
_MAX_TITLE = 300
_MAX_MUTE_IMAGES = 50  # images without a text alternative; the model need not see every pixel


class TangledPageError(Exception):
    """The markup takes too much CPU time or output."""


@dataclass(frozen=True)
class Webpage:
    """A page as text. Not every page has a title, and not every body is text."""

    title: str | None
    text: str | None


def read_webpage(body: bytes, content_type: str, url: str, patience: timedelta) -> Webpage:
    """Convert HTML to Markdown with absolute links; return other text unchanged.

    Blocks for up to `patience` of CPU time, then raises `TangledPageError`.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    declared = _CHARSET.search(content_type)
    text = _decode_body(body, media_type, declared[1] if declared else None)
    if text is None:
        return Webpage(None, None)
    if media_type in _HTML_TYPES or (media_type in _UNSPECIFIED_TYPES and _HTML_START.match(body)):
        return _Reader(patience).read(text, url)
    return Webpage(None, text)


def _decode_body(body: bytes, media_type: str, declared: str | None) -> str | None:
    """Decode a text body by byte order mark, header or meta tag, else as UTF-8."""
    if media_type not in _UNSPECIFIED_TYPES and not _TEXT_TYPES.fullmatch(media_type):
        return None
    mark = next((encoding for mark, encoding in _BYTE_ORDER_MARKS if body.startswith(mark)), None)
    meta = _META_CHARSET.search(body[:4096])
    encoding = mark or _web_encoding(declared) or _web_encoding(meta[1].decode() if meta else None)
    if b"\0" in body[:4096] and not (encoding or "").startswith(("utf-16", "utf-32")):
        return None
    if encoding is not None:
        return body.decode(encoding, errors="replace")
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None if media_type in _UNSPECIFIED_TYPES else body.decode("cp1252", errors="replace")


def _web_encoding(name: str | None) -> str | None:
    try:
        canonical = codecs.lookup(name or "").name
    except LookupError:
        return None
    if canonical == "iso8859-1":
        return "cp1252"  # as every browser reads it
    return canonical if _WEB_ENCODING.match(canonical) else None


class _CpuLimit:
    """A limit on CPU time of this thread, so that a busy machine does not fail a good page."""

    def __init__(self, patience: timedelta) -> None:
        self._end = time.thread_time() + patience.total_seconds()

    def check(self) -> None:
        if time.thread_time() > self._end:
            raise TangledPageError


class _Reader:
    def __init__(self, patience: timedelta) -> None:
        self._effort = _CpuLimit(patience)

    def read(self, html: str, url: str) -> Webpage:
        # Processing instructions are removed since bs4 warns about them as XML. A file, not a string: bs4 also
        # warns about strings that look like an address.
        soup = _Soup(StringIO(re.sub(r"<\?(?:[^<>]*>)?", " ", html)), self._effort)
        title = " ".join(soup.title.get_text().split())[:_MAX_TITLE] if soup.title else ""
        self._tidy_markup(soup, url)
        try:
            markdown = _Converter(self._effort, len(html)).convert_soup(soup)
        except TangledPageError:
            raise
        except Exception:  # noqa: BLE001 - a page that breaks the converter still has its text
            markdown = soup.get_text("\n", strip=True)
        lines = (line.rstrip() for line in markdown.splitlines())
        return Webpage(title or None, re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip())

    def _tidy_markup(self, soup: BeautifulSoup, url: str) -> None:
        """Remove unread elements and make links absolute."""
        for tag in self._find_tags(soup, _DROPPED_TAGS):
            tag.decompose()
        for tag in self._find_tags(soup, ["td", "th"]):
            tag.attrs.pop("colspan", None)  # each asks for up to a thousand columns
        base = soup.find("base", href=True)
        start = _absolute_url(url, str(base["href"])) if isinstance(base, Tag) else url
        for tag in self._find_tags(soup, ["a"]):
            _make_absolute(tag, "href", start or url)
        self._tidy_images(soup, start or url)
        for text in soup.find_all(string=_LONG_BLANK):
            self._effort.check()
            if type(text) is NavigableString:  # and no comment, which would turn into text
                text.replace_with(_LONG_BLANK.sub(_shorten_blank, text))

    def _tidy_images(self, soup: BeautifulSoup, start: str) -> None:
        """Keep images with a text alternative and the first ones without; an empty alternative marks decoration."""
        mute = 0
        for tag in self._find_tags(soup, ["img"]):
            _make_absolute(tag, "src", start)
            alt, src = tag.get("alt"), str(tag.get("src") or "")
            if alt and not src:
                tag.replace_with(str(alt))
            elif alt or (alt is None and src and mute < _MAX_MUTE_IMAGES):
                tag["src"] = src.replace(" ", "%20")  # a blank would end the address in Markdown
                mute += alt is None
            else:
                tag.decompose()

    def _find_tags(self, soup: BeautifulSoup, names: list[str]) -> Iterator[Tag]:
        for tag in soup.find_all(names):
            self._effort.check()
            if not tag.decomposed:  # together with its parent
                yield tag


class _Soup(BeautifulSoup):
    """A soup that checks the limit between parser steps, since the parser can take quadratic time."""

    def __init__(self, html: StringIO, effort: _CpuLimit) -> None:
        self._effort = effort
        super().__init__(html, "html.parser")

    def handle_starttag(self, *args: Any, **kwargs: Any) -> Tag | None:
        self._effort.check()
        return super().handle_starttag(*args, **kwargs)

    def handle_endtag(self, *args: Any, **kwargs: Any) -> None:
        self._effort.check()
        super().handle_endtag(*args, **kwargs)

    def handle_data(self, data: str) -> None:
        self._effort.check()
        super().handle_data(data)


class _Converter(MarkdownConverter):
    """A converter with bounded output, which deep nesting can blow up. `size`: characters of the HTML."""

    def __init__(self, effort: _CpuLimit, size: int) -> None:
        # Unescaped, names_like_this stay readable; without stripping, `pre` needs none of its slow patterns.
        super().__init__(
            heading_style=ATX,
            bullets="-",
            escape_asterisks=False,
            escape_underscores=False,
            strip_pre=None,
            table_infer_header=True,
        )
        self._effort = effort
        self._limit = 4 * size + 100_000

    def process_tag(self, node: Tag, parent_tags: set[str] | None = None) -> str:
        self._effort.check()
        text = str(super().process_tag(node, parent_tags=parent_tags))  # type: ignore[misc] # missing in the stub
        if len(text) > self._limit:
            raise TangledPageError
        return text

    def convert_pre(self, el: Tag, text: str, parent_tags: set[str]) -> str:
        return str(super().convert_pre(el, text.strip("\n"), parent_tags))  # type: ignore[misc] # missing in the stub


def _shorten_blank(blank: re.Match[str]) -> str:
    return "\n\n" if "\n" in blank[0] else " "


def _absolute_url(base: str, reference: str) -> str | None:
    """Return the absolute address of a reference, if it can be followed."""
    with suppress(ValueError):
        address = urljoin(base, reference.strip())
        if not address.lower().startswith(("javascript:", "data:", "vbscript:")):
            return address
    return None


def _make_absolute(tag: Tag, attribute: str, base: str) -> None:
    if (reference := tag.get(attribute)) is None:
        return
    if (address := _absolute_url(base, str(reference))) is None:
        del tag[attribute]
    else:
        tag[attribute] = address


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
                    return outcome.evolve(result={"url": str(answer.url), **outcome.result})
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
    return cut_text(line, _MAX_URL)

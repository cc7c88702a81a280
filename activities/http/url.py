"""URLs that come from outside, read whole before use: what httpx would only stumble over later is refused here."""

import httpx

A_LABEL = "xn--"


def usable_url(text: str) -> httpx.URL:
    """The URL, with each part of it readable. Raises ValueError: what is wrong with it, in a line.

    httpx decodes a host when it is first asked for it, and raises errors of another library for one that does not
    decode (`xn--`).
    """
    try:
        url = httpx.URL(text)
        _ = url.host, url.netloc, url.port
        for label in url.raw_host.decode().lower().split("."):
            _check_label(label)
    except (httpx.InvalidURL, ValueError) as error:  # IDNAError is a UnicodeError, and so a ValueError
        raise ValueError(" ".join(str(error).split())[:200] or type(error).__name__) from None
    return url


def _check_label(label: str) -> None:
    """Raises ValueError where an A-label stands for nothing. Which letters it may stand for is left to registries."""
    if not label.startswith(A_LABEL):
        return
    try:
        decoded = label.removeprefix(A_LABEL).encode().decode("punycode")
    except UnicodeError:
        decoded = ""
    if not decoded or decoded.isascii():
        raise ValueError(f"the label {label[:64]!r} of the host does not decode")

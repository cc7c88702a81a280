"""Validation of untrusted URLs, including errors that httpx would only raise later."""

import httpx

A_LABEL = "xn--"


def usable_url(text: str) -> httpx.URL:
    """Parse a URL and check each part. Raises ValueError with a one-line reason.

    httpx decodes the host on first use, and raises errors of another library if that fails (`xn--`).
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
    """Raise ValueError if an A-label does not decode. Its letters are not checked."""
    if not label.startswith(A_LABEL):
        return
    try:
        decoded = label.removeprefix(A_LABEL).encode().decode("punycode")
    except UnicodeError:
        decoded = ""
    if not decoded or decoded.isascii():
        raise ValueError(f"the label {label[:64]!r} of the host does not decode")

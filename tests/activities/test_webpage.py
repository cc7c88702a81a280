from datetime import timedelta

import pytest

from perdure.activities.tools.fetch import TangledPageError, Webpage, read_webpage


def read(body: bytes | str, content_type: str = "text/html", patience: float = 20) -> Webpage:
    data = body.encode() if isinstance(body, str) else body
    return read_webpage(data, content_type, "http://example.com/docs/page", timedelta(seconds=patience))


def test_relative_links_start_at_the_base_the_page_names() -> None:
    assert read("<base href='/other/'><a href=x>y</a>").text == "[y](http://example.com/other/x)"


@pytest.mark.parametrize(
    ("image", "markdown"),
    [
        ("<img src=mill.jpg alt='The mill'>", "![The mill](http://example.com/docs/mill.jpg)"),
        ("<img src=mill.jpg>", "![](http://example.com/docs/mill.jpg)"),
        ("<img src='the mill (1).jpg'>", "![](http://example.com/docs/the%20mill%20(1).jpg)"),
        ("<a href=/x><img src=mill.jpg></a>", "[![](http://example.com/docs/mill.jpg)](http://example.com/x)"),
        ("<img src=line.gif alt=''>", ""),
        ("<img src=data:image/png;base64,AAAA>", ""),
        ("<img src=data:image/png;base64,AAAA alt='The mill'>", "The mill"),
        ("<img>", ""),
    ],
)
def test_an_image_is_kept_unless_it_is_decoration_or_has_no_address(image: str, markdown: str) -> None:
    assert read(image).text == markdown


def test_a_page_full_of_pixels_shows_fifty_of_them_and_every_image_with_a_text_alternative() -> None:
    text = read("<img src=p.gif>" * 1000 + "<img src=mill.jpg alt=Mill>" * 60).text or ""
    assert text.count("![](") == 50
    assert text.count("![Mill](") == 60


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ("<meta charset=iso-8859-1><p>café</p>".encode("latin-1"), "text/html"),
        ("<meta http-equiv=content-type content='text/html; charset=windows-1252'>café".encode("latin-1"), "text/html"),
        ("café".encode("latin-1"), "text/plain; charset=iso-8859-1"),
        ("café".encode("latin-1"), "text/plain"),
        ("café".encode("utf-16"), "text/plain"),
        ("café".encode("utf-16-le"), "text/plain; charset=utf-16le"),
        ("café".encode("utf-8-sig"), "text/plain; charset=latin-1"),
        ("café".encode(), 'text/plain; charset="UTF-8"'),
        ("café".encode(), ""),
        ("<!doctype html><p>café".encode(), "application/octet-stream"),
    ],
)
def test_the_charset_is_taken_from_mark_header_meta_tag_or_the_bytes(body: bytes, content_type: str) -> None:
    assert read(body, content_type).text == "café"


@pytest.mark.parametrize("charset", ["punycode", "rot13", "zip", "unicode_escape", "no-such-thing", "\0"])
def test_a_charset_that_is_none_of_the_webs_is_ignored(charset: str) -> None:
    assert read("hello", f"text/plain; charset={charset}").text == "hello"


@pytest.mark.parametrize("content_type", ["image/png", "text/plain", "application/octet-stream", "", "x"])
def test_binary_content_has_no_text(content_type: str) -> None:
    assert read(b"\x89PNG\0\0", content_type) == Webpage(None, None)


@pytest.mark.parametrize(
    "body",
    [
        "<div>" * 5000 + "deep",
        "<h1>x</h1><soup>deep</soup>",
        "<h" + "1" * 5000 + ">deep",
        "<?xml version='1.0'?><a>deep</a>",
        "<?xml <a>deep</a>",
        "http://example.com/deep",
        "<svg><svg><title>x</title></svg></svg>deep",
        "<a href='http://[broken'>deep</a>",
        "<ol start=²><li>deep</ol>",
        "<pre>" + " " * 1_000_000 + "deep</pre>" + "<p>" + "&#32;" * 300_000 + "deep</p>",
    ],
    ids=range(10),
)
def test_odd_markup_is_still_read(body: str) -> None:
    assert "deep" in (read(body).text or "")


@pytest.mark.parametrize(
    "body", ["<a href='" * 200_000, "<!--" * 500_000, "<blockquote>" * 90 + "x<br>" * 50_000], ids=range(3)
)
def test_markup_made_to_take_for_ever_is_given_up(body: str) -> None:
    with pytest.raises(TangledPageError):
        read(body, patience=0.5)


def test_a_wide_table_does_not_multiply() -> None:
    row = "<td colspan=1000>x</td>" * 2000
    assert len(read(f"<table><tr>{row}</tr></table>").text or "") < 20 * len(row)

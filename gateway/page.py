"""The web page: static files; its policy allows no other source."""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse

HERE = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

router = APIRouter(include_in_schema=False)


@router.get("/")
async def page() -> FileResponse:
    return FileResponse(HERE / "page.html", headers=HEADERS)


@router.get("/page.js")
async def script() -> FileResponse:
    return FileResponse(HERE / "page.js", headers=HEADERS)


@router.get("/page.css")
async def style() -> FileResponse:
    return FileResponse(HERE / "page.css", headers=HEADERS)


@router.get("/page.svg")
async def icon() -> FileResponse:
    return FileResponse(HERE / "page.svg", headers=HEADERS)

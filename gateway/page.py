"""The web page: static files; its policy allows no other source."""

from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse

STATIC_FILES = Path(__file__).parent
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

router = APIRouter(include_in_schema=False)


@router.get("/")
@router.get("/page.js")
@router.get("/page.css")
@router.get("/page.svg")
async def get_page_file(request: Request) -> FileResponse:
    return FileResponse(STATIC_FILES / (request.scope["route"].path[1:] or "page.html"), headers=HEADERS)

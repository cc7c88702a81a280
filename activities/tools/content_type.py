"""File suffixes by content type."""

_SUFFIXES = {
    "application/json": ".json",
    "application/pdf": ".pdf",
    "application/xhtml+xml": ".html",
    "application/xml": ".xml",
    "audio/mpeg": ".mp3",
    "audio/wav": ".wav",
    "image/gif": ".gif",
    "image/jpeg": ".jpg",
    "image/png": ".png",
    "image/svg+xml": ".svg",
    "image/webp": ".webp",
    "text/csv": ".csv",
    "text/html": ".html",
    "text/markdown": ".md",
    "text/xml": ".xml",
}


def suffix_of(content_type: str) -> str:
    """Return the suffix, with its dot: the one of the type's family if the type is not known."""
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type in _SUFFIXES:
        return _SUFFIXES[media_type]
    if media_type.endswith("+json"):
        return ".json"
    if media_type.endswith("+xml"):
        return ".xml"
    return ".txt" if media_type.startswith("text/") else ".bin"

"""Writes the reference: `make reference`, or `python -m tests.reference`."""

from tests.reference.pages import PAGES, REFERENCE

for path, made in PAGES.items():
    text = made()
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(REFERENCE.parent.parent))

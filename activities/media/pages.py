"""A program that counts the pages of the PDF at its standard input, with bounds on time and memory of its own.

A hostile PDF can keep the library busy for minutes, which ends with this process only. It imports nothing of Perdure.
"""

import io
import json
import logging
import resource
import sys

from pypdf import PdfReader

MEMORY_BYTES = 1024 * 1024 * 1024  # of address space; a PDF of the largest size takes about 100 MB
CPU_SECONDS = 10
TOO_LARGE = "it takes too much memory"


def count_pages(data: bytes) -> dict[str, int | bool | str]:
    """Return `pages`, or `is_encrypted`, or the `error` in one line."""
    try:
        logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of what it repairs
        reader = PdfReader(io.BytesIO(data))
        return {"is_encrypted": True} if reader.is_encrypted else {"pages": len(reader.pages)}
    except MemoryError:
        return {"error": TOO_LARGE}
    except Exception as error:  # noqa: BLE001 - a hostile file can make the library raise anything
        return {"error": str(error).partition("\n")[0][:200] or type(error).__name__}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    sys.stdout.write(json.dumps(count_pages(sys.stdin.buffer.read())))

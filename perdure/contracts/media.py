"""Images and PDF: what a message attaches, and what a store holds of it.

History never has the bytes. A part's content has `{"type": "image" | "document", "source": {"type": "stored", …}}`,
whose source has the fields of `StoredMedia`; the model's request has the bytes in its place.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from perdure.contracts.models import FrozenModel, SparseModel, StrictModel, omit_default

MediaType = Literal["image/png", "image/jpeg", "image/webp", "image/gif", "application/pdf"]
MEDIA_TYPES: tuple[MediaType, ...] = ("image/png", "image/jpeg", "image/webp", "image/gif", "application/pdf")
PDF: MediaType = "application/pdf"

MAX_ATTACHMENTS = 20  # of one message
MAX_MEDIA_BYTES = 32 * 1024 * 1024  # of one file
MAX_PDF_BYTES = 20 * 1024 * 1024  # a request with it as base64 stays below the 32 MB of the Messages API
MAX_IMAGE_PIXELS = 50_000_000
MAX_IMAGE_SIDE = 20_000  # pixels
MAX_IMAGE_FRAMES = 1_000
MAX_PDF_PAGES = 100  # of one file

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Attachment(StrictModel):
    """An image or a PDF of a message. Give one of `sha256`, `path` and `artifact`."""

    name: str = Field(min_length=1, max_length=200)
    """The file's name, for people and the model."""
    media_type: str | None = Field(default=None, max_length=200, exclude_if=lambda media_type: media_type is None)
    """Optional, for people: the content decides the type."""
    sha256: Sha256 | None = Field(default=None, exclude_if=lambda sha256: sha256 is None)
    """The hash of a file that was uploaded before."""
    path: str | None = Field(default=None, min_length=1, max_length=1000, exclude_if=lambda path: path is None)
    """A file in the run's workspace."""
    artifact: str | None = Field(default=None, min_length=3, max_length=2000, exclude_if=lambda path: path is None)
    """`RUN/PATH`: a file in the workspace of another run."""

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        if [self.sha256, self.path, self.artifact].count(None) != 2:
            raise ValueError('give one of "sha256", "path" and "artifact"')
        if self.artifact is not None and not all(self.artifact.partition("/")):
            raise ValueError('"artifact" has the form RUN/PATH')
        return self


Attachments = Annotated[tuple[Attachment, ...], Field(max_length=MAX_ATTACHMENTS)]


class StoredMedia(SparseModel):
    """An image or a PDF in a store, named by the hash of its bytes.

    An image has `pixels`, its width and height as people see it; `is_turned` if the file holds it on its side or
    mirrored. A PDF has `pages`. `path` is the file in the run's workspace; it stands for an empty `name`.
    """

    sha256: str
    media_type: MediaType
    bytes: int
    name: str = ""
    pixels: tuple[int, int] | None = None
    is_turned: bool = omit_default(False)
    pages: int | None = None
    path: str | None = None


class AttachRequest(FrozenModel):
    """The input of the activity `take_attachments`. `definition` is set at a start, which is refused as a whole."""

    attachments: Attachments
    definition: str | None = omit_default(None)


class Attached(SparseModel):
    """The attachments in the run's store, and for each of the others the reason."""

    media: tuple[StoredMedia, ...] = ()
    refused: tuple[str, ...] = ()

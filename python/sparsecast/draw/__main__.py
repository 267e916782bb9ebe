# SPDX-License-Identifier: Apache-2.0
"""The command ``python -m sparsecast.draw``."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import pathlib
import sys
import warnings
from typing import Any, Protocol

from ..errors import Error, IoError, UsageError
from .fields import Fields, read_document
from .log import LogPicture
from .plan import PlanPicture

_EXIT_USAGE, _EXIT_IO = 2, 4  # As of the command sparsecast.
_FORMATS = ("svg", "png", "pdf")


class Picture(Protocol):
    """A picture of a document, which draws itself into a figure of matplotlib."""

    def draw(self, figure: Any) -> None: ...


def main(arguments: list[str] | None = None) -> int:
    """Runs the command with these arguments (None: the arguments of the process), and returns its exit code."""
    parser = argparse.ArgumentParser(
        "python -m sparsecast.draw",
        description="Draws what `sparsecast plan --json` or `sparsecast log status --json` has printed.",
    )
    parser.add_argument("document", metavar="FILE.json", help="what the command has printed; - for the standard input")
    parser.add_argument("picture", metavar="PICTURE", type=pathlib.Path, help="a name that ends in .svg, .png or .pdf")
    options = parser.parse_args(arguments)
    try:
        form = options.picture.suffix[1:].lower()
        if form not in _FORMATS:
            raise UsageError("a picture's name ends in .svg, .png or .pdf", str(options.picture))
        _write(options.picture, _render(_picture_of(_read(options.document)), form))
    except Error as error:
        print(f"sparsecast.draw: {error} [{error.code}]", file=sys.stderr)
        return _EXIT_IO if isinstance(error, IoError) else _EXIT_USAGE
    return 0


def _read(path: str) -> Fields:
    if path == "-":
        return read_document(sys.stdin.buffer.read(), "the standard input")
    try:
        return read_document(pathlib.Path(path).read_bytes(), path)
    except OSError as error:
        raise IoError(error.strerror or str(error), path) from error


def _picture_of(document: Fields) -> Picture:
    """Returns the picture of a plan or of a log, which are told apart by a field that no other document has. Raises
    UsageError for any other document.
    """
    if "plan_hash" in document:
        return PlanPicture(document)
    if "version_rows" in document:
        return LogPicture(document)
    raise document.refuse("plan_hash", "and version_rows are missing: it is neither a plan nor the status of a log")


def _render(picture: Picture, form: str) -> bytes:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("it needs the package matplotlib: pip install matplotlib") from error
    # Names are shown as they are: a $ begins no formula. Text of an SVG stays text.
    settings: dict[Any, Any] = {"text.parse_math": False, "svg.fonttype": "none", "svg.hashsalt": "sparsecast"}
    drawn = io.BytesIO()
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # A name in letters that the font lacks.
        figure = Figure(layout="constrained")
        picture.draw(figure)
        # Without the time of day: the same document always gives the same bytes.
        dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
        figure.savefig(drawn, format=form, metadata=dates.get(form))
    return drawn.getvalue()


def _write(path: pathlib.Path, data: bytes) -> None:
    """Writes a file that appears under its name whole or not at all. Raises IoError if the operating system refuses."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError):
            raise IoError(error.strerror or str(error), str(path)) from error
        raise


if __name__ == "__main__":
    sys.exit(main())

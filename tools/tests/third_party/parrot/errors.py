"""The errors of this package, and invalid rows."""

from __future__ import annotations

from monarch.actor import MonarchError
from monarch.extension import ErrorRow, error_text


class WordError(MonarchError):
    """A word is unknown."""

    def __init__(self, word: str) -> None:
        super().__init__(error_text("parrot_word", word=word), code="parrot_word")


ROWS = (ErrorRow("parrot_word", WordError, "a word is not known", "parrot does not know {word}", "say it twice"),)

# Core has this code.
TAKEN = (ErrorRow("host_lost", WordError, "it flew away", "parrot is gone"),)

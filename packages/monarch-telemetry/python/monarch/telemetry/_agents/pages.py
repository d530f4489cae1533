"""Answers that are kept for the pages after their first one: an agent gets the rows of one moment, whatever the job does meanwhile."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, NamedTuple

from monarch.telemetry._agents import compact
from monarch.telemetry.errors import QueryError

MOST_ANSWERS = 16
MOST_BYTES = 128 << 20


class Kept(NamedTuple):
    """An answer of which not all has been shown: a table, or lines of text. `head` stands above each page of at most `most` rows."""

    head: str
    table: Any = None
    most: int = 0
    newest_last: bool = False
    lines: list[str] | None = None

    @property
    def size(self) -> int:
        return self.table.nbytes if self.lines is None else sum(map(len, self.lines))

    @property
    def total(self) -> int:
        return self.table.num_rows if self.lines is None else len(self.lines)


class Pages:
    """The last answers with more than a page. Any thread."""

    def __init__(self, *, answers: int = MOST_ANSWERS, size: int = MOST_BYTES) -> None:
        self._lock = threading.Lock()
        self._answers, self._size = answers, size
        self._kept: OrderedDict[int, Kept] = OrderedDict()
        self._number = 0

    def first(self, kept: Kept) -> str:
        """The first page of an answer."""
        with self._lock:
            self._number += 1
            number = self._number
        return self._page(number, kept, 0)

    def next(self, cursor: str) -> str:
        """The page of a cursor; `QueryError` for one that there is not, or that is too old."""
        words = cursor.split(":")
        if len(words) != 2 or not all(word.isascii() and word.isdigit() and len(word) < 12 for word in words):
            raise QueryError(f"{cursor[:40]!r} is no cursor", hint="a cursor is in the first lines of the answer before")
        number, at = int(words[0]), int(words[1])
        with self._lock:
            kept = self._kept.get(number)
            if kept is not None:
                self._kept.move_to_end(number)
        if kept is None:
            raise QueryError(f"the answer of the cursor {cursor!r} is not kept any more", hint="ask again, with a LIMIT or fewer columns")
        return self._page(number, kept, at)

    def _page(self, number: int, kept: Kept, at: int) -> str:
        if kept.lines is None:
            page, noun = compact.rows(kept.table, at, kept.most, newest_last=kept.newest_last), "row"
        else:
            page, noun = compact.lines(kept.lines, at), "line"
        more = page.next < kept.total and page.next > page.first
        if more:
            self._keep(number, kept)
        return compact.joined(kept.head, compact.place(page, kept.total, f"{number}:{page.next}" if more else None, noun=noun), page.lines)

    def _keep(self, number: int, kept: Kept) -> None:
        with self._lock:
            self._kept[number] = kept
            while len(self._kept) > 1 and (len(self._kept) > self._answers or sum(one.size for one in self._kept.values()) > self._size):
                self._kept.popitem(last=False)

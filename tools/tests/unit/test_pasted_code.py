"""The code of pages can be pasted into the plain prompt of every supported Python, which ends a block at an empty line."""

from __future__ import annotations

import code
import types

import pytest

from tools.code_blocks import blocks
from tools.project import ROOT

PAGES = sorted(
    str(path.relative_to(ROOT)) for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "packages").glob("*/README.md"))
)


class _Prompt(code.InteractiveConsole):
    """Compiles what is typed and runs nothing."""

    refused = False

    def runcode(self, code: types.CodeType) -> None: ...

    def showsyntaxerror(self, *_: object, **__: object) -> None:
        self.refused = True


def _refused(block: str) -> list[str]:
    prompt, refused = _Prompt(), list[str]()
    for line in [*block.splitlines(), ""]:
        prompt.push(line)
        if prompt.refused:
            refused.append(line)
            prompt.refused = False
    return refused


@pytest.mark.parametrize("page", [page for page in PAGES if blocks((ROOT / page).read_text(encoding="utf-8"))])
def test_prompt_takes_every_block(page: str) -> None:
    assert [line for block in blocks((ROOT / page).read_text(encoding="utf-8")) for line in _refused(block)] == []


@pytest.mark.parametrize("block", ["for a in b:\n    pass\nprint()", "class A:\n    x = 1\n\n    y = 2"])
def test_prompt_refuses_code_of_files(block: str) -> None:
    assert _refused(block) != []

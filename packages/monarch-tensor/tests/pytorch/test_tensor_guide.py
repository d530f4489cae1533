"""The guide as a notebook: a kernel runs its blocks as cells."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from tools.code_blocks import blocks
from tools.notebook import execute
from tools.project import ROOT

# Seconds: the kernel, torch, and the processes of the guide start on a busy machine.
SECONDS = 300
# One after another, in one kernel. The last one kills a worker.
PAGES = ("tensors.md", "tensors-functions.md", "tensors-speed.md", "tensors-errors.md")

# A cell can await, unlike a script: the first cell that waits instead gets this hint. A failure that no cell has fetched within half
# a second is logged; a busy machine may need longer to fetch it.
EXPECTED = ("get() blocks the active event loop", "A remote function has failed asynchronously")

pytestmark = pytest.mark.timeout(SECONDS + 20)


def test_guide_is_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(tempfile.mkdtemp(prefix="nb-"))
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(folder))
    try:
        cells = [cell for page in PAGES for cell in blocks((ROOT / "docs" / page).read_text(encoding="utf-8"))]
        notebook = execute(cells, folder, SECONDS)
    finally:
        shutil.rmtree(folder)
    assert len(notebook.cells) == len(cells) > 10
    for cell in notebook.cells:
        assert cell.execution_count, cell.source
        for output in cell.outputs:
            assert output.output_type != "error", (cell.source, output)
            assert output.get("name") != "stderr" or any(text in output.text for text in EXPECTED), (cell.source, output)

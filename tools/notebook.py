"""Notebooks as people run them without a browser: a real kernel runs cell after cell.

    python -m tools.notebook FOLDER FILE

runs FILE in place, with the kernel's files in FOLDER, whose path must be short, because that of a socket is limited.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

CELL_S = 100  # of one cell; only a hang gets there


def execute(cells: list[str], folder: Path, timeout: float) -> Any:
    """Runs a notebook in the environment of this process, and gives it with its outputs. `AssertionError` has what a cell raised.

    In a process of its own: nbclient leaves sockets to the collector, which warns of them.
    """
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook

    path = folder / "test.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(code) for code in cells]), path)
    done = subprocess.run(
        [sys.executable, "-m", "tools.notebook", str(folder), str(path)],
        check=False,
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout.decode()
    return nbformat.read(path, as_version=4)


def main() -> None:
    """Runs one notebook."""
    import nbformat
    from jupyter_client import AsyncKernelManager
    from nbclient import NotebookClient

    folder, path = sys.argv[1:]
    notebook = nbformat.read(path, as_version=4)
    manager = AsyncKernelManager(transport="ipc", connection_file=f"{folder}/kernel.json")
    asyncio.run(NotebookClient(notebook, timeout=CELL_S, km=manager).async_execute())
    nbformat.write(notebook, path)


if __name__ == "__main__":
    main()

"""Notebooks without a browser: a real kernel runs cell after cell.

    python -m tools.notebook FOLDER FILE

runs FILE in place, with the kernel's files in FOLDER, whose path must be short, because that of a socket is limited.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

CELL_S = 100  # seconds for one cell; only a hang takes longer


def execute(cells: list[str], folder: Path, timeout: float) -> Any:
    """Runs a notebook in the environment of this process, and returns it with its outputs. `AssertionError` has the exception of a cell.

    It runs in a process of its own: nbclient leaves sockets to the collector, which warns of them.
    """
    # Its annotations are partial.
    nbformat: Any = import_module("nbformat")
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    path = folder / "test.ipynb"
    nbformat.write(made, path)
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
    nbformat: Any = import_module("nbformat")
    manager_of: Any = import_module("jupyter_client").AsyncKernelManager
    client_of: Any = import_module("nbclient").NotebookClient
    folder, path = sys.argv[1:]
    notebook = nbformat.read(path, as_version=4)
    manager = manager_of(transport="ipc", connection_file=f"{folder}/kernel.json")
    asyncio.run(client_of(notebook, timeout=CELL_S, km=manager).async_execute())
    nbformat.write(notebook, path)


if __name__ == "__main__":
    main()

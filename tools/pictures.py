"""Takes the pictures of the dashboard for the pages, from a real run of examples/observed_training.py.

    python -m tools.pictures [FOLDER]      docs/images by default

It needs Debian's chromium (`bash tools/system_packages.sh browser`) and the built dashboard (`python -m tools.build_dashboard`). The
numbers in the pictures are those of the run on this machine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from tools import build_dashboard
from tools.project import ROOT

# The path of each page in the URL of the dashboard.
PAGES = {
    "overview": "/",
    "topology": "/topology",
    "explorer": "/explorer",
    "logs": "/logs",
    "metrics": "/charts?name=train.loss",
    "timeline": "/timeline?last=5",
    "stacks": "/stacks",
}
# Seconds after which the run has a failure, log lines and a minute of metrics.
_SETTLED = 60.0


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0]) if arguments else ROOT / "docs" / "images"
    browser = shutil.which("chromium")
    if browser is None:
        print("pictures: no chromium: bash tools/system_packages.sh browser", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(ROOT / "examples" / "observed_training.py"), "--seconds", "600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout is not None
            url = run.stdout.readline().removeprefix("dashboard: ").strip()
            time.sleep(_SETTLED)
            if run.poll() is not None:
                print(f"pictures: the example ended with exit code {run.returncode}", file=sys.stderr)
                return 1
            take(browser, url, folder)
        finally:
            run.terminate()
    return 0


def take(browser: str, url: str, folder: Path) -> None:
    """Saves what the browser shows of each page; `CalledProcessError` if it fails."""
    with build_dashboard.linked(build_dashboard.node_modules()):
        script = str(build_dashboard.SOURCES / "browser" / "pictures.mjs")
        pages = [f"{name}={path}" for name, path in PAGES.items()]
        subprocess.run([build_dashboard.node(), script, browser, url, str(folder), *pages], check=True, timeout=300)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

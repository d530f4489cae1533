"""The files of the dashboard by the path of a URL.

Only files that the folder has when it is first read can be served, so no path leads anywhere else. Paths of pages, which have no file,
answer the page that all of them share. Where the files were not built, that page has the commands that build them.
"""

from __future__ import annotations

import hashlib
import posixpath
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
PAGES = ("overview", "topology", "explorer", "logs", "charts", "sql", "stacks", "timeline", "audit")
# No inline script or style, no content of another server, no frame around the page.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
# In the checkout that this wheel was installed from; a wheel of `dist/` has the files.
BUILD = ("tools/hatch run python -m tools.build_dashboard", "pip install ./packages/monarch-telemetry")
NOT_BUILT = f"the dashboard is not built; run in the checkout, then restart this program: {' && '.join(BUILD)}"
_NOT_BUILT_PAGE = f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>Monarch: the dashboard is not built</title></head>
<body>
<h1>The dashboard is not built</h1>
<p>This monarch-telemetry was installed from a checkout without the files of its dashboard. Run these commands in the checkout, then restart
the program that serves this page:</p>
<pre>{BUILD[0]}
{BUILD[1]}</pre>
<p>The second command is not needed for an editable install. The API of this server works without the dashboard.</p>
</body>
</html>
"""
# The names of these files contain a hash of their contents.
_HASHED = "assets/"


class File(NamedTuple):
    """`immutable` files have another name when their bytes change, so a browser may keep them. `status` is that of the answer."""

    media: str
    data: bytes
    etag: str
    immutable: bool
    status: int = 200

    @property
    def headers(self) -> dict[str, str]:
        """The headers of an answer with this file."""
        return {
            "Content-Type": self.media,
            "ETag": self.etag,
            "Cache-Control": "public, max-age=31536000, immutable" if self.immutable else "no-cache",
            "Content-Security-Policy": CONTENT_SECURITY_POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
        }


class Files:
    """The files of one folder, read once. Any thread."""

    def __init__(self, folder: Path = STATIC) -> None:
        paths = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()) if folder.is_dir() else []
        self._files = {path.relative_to(folder).as_posix(): path for path in paths if path.suffix in _TYPES}
        self._read: dict[str, File] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """Paths below the folder, sorted."""
        return tuple(self._files)

    @property
    def is_built(self) -> bool:
        """Whether there is a dashboard: a checkout has none before its first build."""
        return INDEX in self._files

    def get(self, path: str) -> File | None:
        """The file of the decoded path of a URL, the shared page for the path of a page, or None.

        Where there is no build, the path of a page gives one with the commands.
        """
        name = path.removeprefix("/")
        if name in ("", *PAGES) or name.split("/", 1)[0] in PAGES:
            name = INDEX
            if not self.is_built:
                data = _NOT_BUILT_PAGE.encode()
                return File(_TYPES[".html"], data, _etag(data), False, 503)
        # The names in `_files` are normalized; the second condition holds also for a table that is built differently.
        if name not in self._files or posixpath.normpath(name) != name:
            return None
        found = self._read.get(name)
        if found is None:
            found = self._read[name] = self._load(name)
        return found

    def _load(self, name: str) -> File:
        data = self._files[name].read_bytes()
        return File(_TYPES[Path(name).suffix], data, _etag(data), name.startswith(_HASHED))


def _etag(data: bytes) -> str:
    return f'"{hashlib.sha256(data).hexdigest()[:32]}"'


@lru_cache(maxsize=1)
def files() -> Files:
    """The files of this wheel's dashboard."""
    return Files()

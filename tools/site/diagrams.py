"""The program that draws the diagrams of pages, for the site itself: pages load nothing from other servers."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
import tempfile
from pathlib import Path

from tools.build_dashboard import npm

VERSION = "11.17.2"
_SHA512 = "V6K3C8EBdEsPFZXSKMJe6ppQOENxuHARr9GvHX4hh47lAbhMRD9qf4oEK7LoaRQxULMa80/qt5gHO73aCleBBg=="
_MEMBER = "package/dist/mermaid.min.js"
FENCE = "```mermaid"


def script() -> bytes:
    """The program, from the cache of this user or from npm. `CalledProcessError` if npm fails, `ValueError` for other bytes."""
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "monarch" / "site" / f"mermaid-{VERSION}.tgz"
    if not cached.exists():
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached.parent) as scratch:
            npm(["pack", f"mermaid@{VERSION}", "--silent"], Path(scratch))
            (made,) = Path(scratch).glob("*.tgz")
            made.rename(cached)
    content = cached.read_bytes()
    if base64.b64encode(hashlib.sha512(content).digest()).decode() != _SHA512:
        cached.unlink()
        raise ValueError(f"mermaid {VERSION} has other bytes than those that this project has checked")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        found = archive.extractfile(_MEMBER)
        assert found is not None
        return found.read()

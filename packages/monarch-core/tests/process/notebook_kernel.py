"""A real kernel of notebooks, in which a test runs cells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from jupyter_client import KernelManager

# Seconds: a kernel takes a few to start, many on a busy machine.
TIMEOUT = 100


class Kernel:
    """A kernel and its client; `cell` runs one to its end."""

    def __init__(self, folder: Path) -> None:
        self.manager = KernelManager(transport="ipc", connection_file=str(folder / "kernel.json"))
        self.manager.start_kernel()
        self._connect()

    def _connect(self) -> None:
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=TIMEOUT)

    def restart(self) -> None:
        self.client.stop_channels()
        self.manager.restart_kernel()
        self._connect()

    def begin(self, code: str) -> str:
        return self.client.execute(code)

    def events(self, cell: str) -> Iterator[tuple[str, str]]:
        """The output of a cell until its end: (stream, text), ("result", text), ("error", name and value)."""
        while True:
            message = self.client.get_iopub_msg(timeout=TIMEOUT)
            assert message["parent_header"].get("msg_id") == cell or message["msg_type"] == "status", message
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    yield content["name"], content["text"]
                case "execute_result":
                    yield "result", content["data"]["text/plain"]
                case "error":
                    yield "error", f"{content['ename']}: {content['evalue']}"
                case "status":
                    if content["execution_state"] == "idle" and message["parent_header"].get("msg_id") == cell:
                        return

    def cell(self, code: str) -> dict[str, str]:
        shown: dict[str, str] = {}
        for kind, text in self.events(self.begin(code)):
            shown[kind] = shown.get(kind, "") + text
        return shown

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
        self.manager.context.destroy(linger=0)

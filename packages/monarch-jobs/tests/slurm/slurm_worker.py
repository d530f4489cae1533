"""What `monarch worker` looks like to a launcher, for tests of launchers: checks its secret, listens, publishes, ends on request.

Called as the interpreter of a job, so its first arguments are those of Python. It ends with the code that a test sends to its port.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import stat
import sys


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", required=True)
    parser.add_argument("--port-tries", type=int, required=True)
    parser.add_argument("--secret-file", required=True)
    parser.add_argument("--publish", required=True)
    options = parser.parse_args(sys.argv[sys.argv.index("worker") + 1 :])
    if stat.S_IMODE(os.stat(options.secret_file).st_mode) != 0o600:
        print("the secret is open to others")
        return 3
    with open(options.secret_file, "rb") as file:
        if len(file.read()) != 32:
            print("the secret is not whole")
            return 3
    first = int(options.listen.rpartition(":")[2])
    listener = socket.socket()
    for port in range(first, first + options.port_tries):
        try:
            listener.bind(("127.0.0.1", port))
            break
        except OSError:
            continue
    listener.listen()
    said = {
        "address": f"tcp://127.0.0.1:{listener.getsockname()[1]}",
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "uid": 0,
        "version": "0",
        "node": os.environ["SLURMD_NODENAME"],
    }
    with open(f"{options.publish}.part", "w") as file:
        json.dump(said, file)
    os.rename(f"{options.publish}.part", options.publish)
    print(f"worker on {os.environ['SLURMD_NODENAME']}", flush=True)
    words = _words(listener)
    if words[0] == b"grow":
        kept = bytearray(int(words[1]) << 20)
        kept[::4096] = b"x" * len(kept[::4096])
        listener.accept()
    return int(words[0])


def _words(listener: socket.socket) -> list[bytes]:
    """The request of the test. A client of another test may dial this port, which was that of its own worker before."""
    while True:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            words = lines.readline().split()
        if words and (words[0] == b"grow" or words[0].isdigit()):
            return words


if __name__ == "__main__":
    sys.exit(main())

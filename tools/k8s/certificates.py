"""The cluster's own authority: keys, certificates, and kubeconfigs made from them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

_DAYS = "30"


class Authority:
    """Issues certificates into `folder`, each as NAME.crt and NAME.key. Its own is ca.crt, made if it is missing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if self.certificate("ca").exists():
            return
        folder.mkdir(mode=0o700, parents=True)
        _openssl("req", "-x509", *_new_key(self.key("ca")), "-out", str(self.certificate("ca")), "-days", _DAYS, "-subj", "/CN=monarch-k8s")

    def certificate(self, name: str) -> Path:
        return self.folder / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def issue(self, name: str, user: str, groups: Sequence[str] = (), *, hosts: Sequence[str] = (), days: str = _DAYS) -> None:
        """Issues a certificate for a client (a user of these groups), and for a server if it has `hosts` (`DNS:...`, `IP:...`)."""
        request, extensions = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        subject = "".join(f"/{field}" for field in (*(f"O={group}" for group in groups), f"CN={user}"))
        _openssl("req", *_new_key(self.key(name)), "-out", str(request), "-subj", subject)
        extensions.write_text(
            "\n".join(["extendedKeyUsage=clientAuth,serverAuth", *([f"subjectAltName={','.join(hosts)}"] if hosts else [])])
        )
        authority = ["-CA", str(self.certificate("ca")), "-CAkey", str(self.key("ca")), "-CAcreateserial"]
        files = ["-in", str(request), "-out", str(self.certificate(name)), "-extfile", str(extensions)]
        _openssl("x509", "-req", *files, *authority, "-days", days)
        request.unlink()
        extensions.unlink()

    def kubeconfig(self, path: Path, name: str, server: str) -> Path:
        """Writes a kubeconfig that contains the key and certificate of `name`. Only its owner may read it."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "monarch", "cluster": {"server": server, "certificate-authority-data": _encoded(self.certificate("ca"))}}
            ],
            "users": [
                {
                    "name": name,
                    "user": {
                        "client-certificate-data": _encoded(self.certificate(name)),
                        "client-key-data": _encoded(self.key(name)),
                    },
                }
            ],
            "contexts": [{"name": "monarch", "context": {"cluster": "monarch", "user": name, "namespace": "default"}}],
            "current-context": "monarch",
        }
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(config, file, indent=1)  # JSON is YAML
        return path


def signing_keys(private: Path, public: Path) -> None:
    """Makes the key pair that signs and verifies service account tokens."""
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(private))
    _openssl("ec", "-in", str(private), "-pubout", "-out", str(public))


def _new_key(path: Path) -> list[str]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(path)]


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _openssl(*arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"openssl {' '.join(arguments)}: {done.stderr.strip()}")

"""Kubeconfigs of every kind: what is read from them, what is sent to the server, what errors name, and what stays secret."""

from __future__ import annotations

import base64
import json
import os
import pickle
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from api_stand_in import Answer, ApiStandIn, Asked, status

from monarch.job import CredentialsError, JobError
from monarch.job.kubernetes.access import config as config_module
from monarch.job.kubernetes.access.client import Cluster
from monarch.job.kubernetes.access.config import KubeConfig
from monarch.job.kubernetes.access.failures import UnreachableError
from tools.k8s.certificates import Authority

SECRET = "s3cr3t-" + "x" * 40


def seen(asked: Asked) -> Answer:
    """What the server sees of who asks."""
    who = {"authorization": asked.headers.get("authorization", ""), "subject": asked.subject}
    who |= {key: value for key, value in asked.headers.items() if key.startswith("impersonate")}
    return Answer(200, {"kind": "ConfigMap", "apiVersion": "v1", "data": who})


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiStandIn]:
    with ApiStandIn(tmp_path, seen, hosts=("IP:127.0.0.1", "DNS:api.example")) as made:
        yield made


def who(config: KubeConfig) -> dict[str, str]:
    connection = config.load()
    try:
        found = Cluster(connection, "there").get("v1/ConfigMap", "me")
    finally:
        connection.close()
    assert found is not None
    return found["data"]


def encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def test_token_is_sent(server: ApiStandIn, tmp_path: Path) -> None:
    path = server.kubeconfig(tmp_path / "config", {"token": SECRET})
    assert who(KubeConfig.from_path(str(path)))["authorization"] == f"Bearer {SECRET}"


def test_name_and_password_are_sent(server: ApiStandIn, tmp_path: Path) -> None:
    path = server.kubeconfig(tmp_path / "config", {"username": "ada", "password": "pw"})
    assert who(KubeConfig.from_path(str(path)))["authorization"] == "Basic " + base64.b64encode(b"ada:pw").decode()


@pytest.mark.parametrize("is_inline", [True, False])
def test_client_certificates_leave_no_file(server: ApiStandIn, tmp_path: Path, is_inline: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    server.authority.issue("ada", "ada", days="3")
    certificate, key = server.authority.certificate("ada"), server.authority.key("ada")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    user = {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}
    if not is_inline:
        # The paths are relative to the folder of the file.
        user = {"client-certificate": os.path.relpath(certificate, tmp_path), "client-key": os.path.relpath(key, tmp_path)}
    path = server.kubeconfig(tmp_path / "config", user)
    assert who(KubeConfig.from_path(str(path)))["subject"] == "ada"
    assert not list(temporary.iterdir())


def test_refused_token_file_is_read_again(server: ApiStandIn, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old\n")
    path = server.kubeconfig(tmp_path / "config", {"tokenFile": "token", "token": "never"})
    connection = KubeConfig.from_path(str(path)).load()
    accepted = "Bearer old"

    def answer(asked: Asked) -> Answer:
        return seen(asked) if asked.headers["authorization"] == accepted else status(401, "Unauthorized", "Unauthorized")

    server.answer = answer
    cluster = Cluster(connection, "there")
    assert cluster.get("v1/ConfigMap", "me")
    token.write_text("new")
    accepted = "Bearer new"
    found = cluster.get("v1/ConfigMap", "me")
    assert found is not None and found["data"]["authorization"] == accepted
    accepted = "Bearer none"
    with pytest.raises(CredentialsError, match=r"config, context 'test': the API server https://127.0.0.1:\d+ does not accept"):
        cluster.get("v1/ConfigMap", "me")


def plugin(folder: Path, lines: str) -> str:
    path = folder / "plugin"
    path.write_text(f"#!{sys.executable}\nimport json, os, sys\n{lines}")
    path.chmod(0o755)
    return "./plugin"


def exec_user(command: str, **more: Any) -> dict[str, Any]:
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": command, "interactiveMode": "Never"} | more}


JSON = """
info = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
assert info["spec"]["interactive"] is False
token = os.environ["PREFIX"] + sys.argv[1] + info["spec"]["cluster"]["server"].rpartition(":")[2]
with open("runs", "a") as f: f.write("run\\n")
status = {"token": token, "expirationTimestamp": "2999-01-01T00:00:00Z"}
print(json.dumps({"kind": "ExecCredential", "apiVersion": info["apiVersion"], "status": status}))
"""
YAML = """
print("kind: ExecCredential", "apiVersion: client.authentication.k8s.io/v1", "status:", sep="\\n")
print("  token: of-yaml", "  expirationTimestamp: 2999-01-01T00:00:00Z", sep="\\n")
"""


def test_exec_plugin_answers_json(server: ApiStandIn, tmp_path: Path, folder: Path) -> None:
    user = exec_user(plugin(tmp_path, JSON), args=["one"], env=[{"name": "PREFIX", "value": "p-"}], provideClusterInfo=True)
    connection = KubeConfig.from_path(str(server.kubeconfig(tmp_path / "config", user))).load()
    cluster = Cluster(connection, "there")
    for _ in range(3):
        found = cluster.get("v1/ConfigMap", "me")
        assert found is not None and found["data"]["authorization"] == f"Bearer p-one{server.port}"
    connection.close()
    # It runs once for its credential, in the working directory.
    assert (folder / "runs").read_text() == "run\n"


def test_exec_plugin_answers_yaml(server: ApiStandIn, tmp_path: Path) -> None:
    path = server.kubeconfig(tmp_path / "config", exec_user(plugin(tmp_path, YAML)))
    assert who(KubeConfig.from_path(str(path)))["authorization"] == "Bearer of-yaml"


def test_exec_plugin_gives_a_certificate(server: ApiStandIn, tmp_path: Path) -> None:
    server.authority.issue("eve", "eve")
    lines = f"""
read = lambda path: open(path).read()
given = {{"clientCertificateData": read({str(server.authority.certificate("eve"))!r})}}
given["clientKeyData"] = read({str(server.authority.key("eve"))!r})
print(json.dumps({{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": given}}))
"""
    path = server.kubeconfig(tmp_path / "config", exec_user(plugin(tmp_path, lines)))
    assert who(KubeConfig.from_path(str(path)))["subject"] == "eve"


def test_expired_credential_of_a_plugin_is_renewed(server: ApiStandIn, tmp_path: Path, folder: Path) -> None:
    lines = """
with open("runs", "a+") as f:
    f.write("x"); f.seek(0); number = len(f.read())
print(json.dumps({"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1",
    "status": {"token": f"token-{number}", "expirationTimestamp": "2001-01-01T00:00:00Z"}}))
"""
    cluster = Cluster(KubeConfig.from_path(str(server.kubeconfig(tmp_path / "config", exec_user(plugin(tmp_path, lines))))).load(), "there")
    tokens = [(cluster.get("v1/ConfigMap", "me") or {})["data"]["authorization"] for _ in range(2)]
    cluster.connection.close()
    assert tokens[0] != tokens[1]


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (f"print('{SECRET}'); sys.stderr.write('no session, token {SECRET}\\n'); sys.exit(3)", "failed with exit code 3"),
        (f"print('{SECRET}: [')", "neither JSON nor YAML"),
        (f"print(json.dumps({{'token': '{SECRET}'}}))", "is no ExecCredential"),
        ("print(json.dumps({'kind': 'ExecCredential', 'apiVersion': 'client.authentication.k8s.io/v1', 'status': {}}))", "neither a token"),
        ("open('/dev/tty').read()", "failed with exit code 1"),
    ],
)
def test_failed_exec_plugin_is_named_without_its_output(server: ApiStandIn, tmp_path: Path, lines: str, words: str) -> None:
    path = server.kubeconfig(tmp_path / "config", exec_user(plugin(tmp_path, lines)))
    with pytest.raises(CredentialsError) as raised:
        who(KubeConfig.from_path(str(path)))
    text = str(raised.value)
    assert words in text and str(path) in text and "plugin" in text
    assert SECRET not in text


def test_silent_exec_plugin_ends_with_the_time_limit(server: ApiStandIn, tmp_path: Path) -> None:
    from monarch.job._machine.commands import time_limit

    path = server.kubeconfig(tmp_path / "config", exec_user(plugin(tmp_path, "import signal\nsignal.pause()")))
    with time_limit(0.2), pytest.raises(CredentialsError, match=r"plugin' gave no answer within 0 s"):
        who(KubeConfig.from_path(str(path)))
    assert not server.requests


def test_unusable_plugins_are_refused_before_they_run(server: ApiStandIn, tmp_path: Path) -> None:
    def error(user: dict[str, Any]) -> str:
        with pytest.raises(CredentialsError) as raised:
            who(KubeConfig.from_path(str(server.kubeconfig(tmp_path / "config", user))))
        return str(raised.value)

    assert "asks questions at the terminal" in error(exec_user("x", interactiveMode="Always"))
    assert "hint: get it there" in error(exec_user("monarch-no-such-plugin", installHint="get it there"))
    assert "client.authentication.k8s.io/v1alpha1" in error(exec_user("x", apiVersion="client.authentication.k8s.io/v1alpha1"))
    assert "auth-provider ('gcp')" in error({"auth-provider": {"name": "gcp"}})
    assert not server.requests


def test_impersonation_is_sent(server: ApiStandIn, tmp_path: Path) -> None:
    path = server.kubeconfig(tmp_path / "config", {"token": "t", "as": "bob", "as-groups": ["a"]})
    found = who(KubeConfig.from_path(str(path)))
    assert (found["impersonate-user"], found["impersonate-group"]) == ("bob", "a")


def test_kubeconfig_of_several_files_is_merged(server: ApiStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = tmp_path / "first"
    # The user of the second file's context is that of the first.
    first.write_text(json.dumps({"users": [{"name": "someone", "user": {"token": "of-the-first"}}], "contexts": None}))
    second = server.kubeconfig(tmp_path / "second", {"token": "of-the-second"})
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join([str(first), str(tmp_path / "missing"), str(second)]))
    assert who(KubeConfig())["authorization"] == "Bearer of-the-first"
    connection = KubeConfig.from_context("test").load()
    assert connection.namespace == "there"
    with pytest.raises(CredentialsError, match=r"there is no context 'other'\n  there are: test"):
        KubeConfig.from_context("other").load()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "cannot be read\n  No such file"),
        ("a: [", "is not YAML"),
        ("- 1", "is not a mapping"),
        ("contexts: 3", "contexts of the kubeconfig is not a list"),
        ("contexts: [{name: a}, {}]", r"contexts\[1\] of the kubeconfig has no name"),
        ("{}", "no current context is set"),
        ("current-context: x", "there is no context 'x'"),
        ("{current-context: x, contexts: [{name: x, context: {cluster: c}}]}", "names the cluster 'c', which is not there"),
        (
            "{current-context: x, contexts: [{name: x, context: {cluster: c}}], clusters: [{name: c, cluster: {server: here}}]}",
            "has the server 'here', which is no URL",
        ),
    ],
)
def test_bad_kubeconfig_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CredentialsError, match=words) as raised:
        KubeConfig.from_path(str(path)).load()
    assert str(path) in str(raised.value)


def test_syntax_error_does_not_quote_the_kubeconfig(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(f"users:\n- user: {{token: {SECRET}\n")
    with pytest.raises(CredentialsError) as raised:
        KubeConfig.from_path(str(path)).load()
    assert SECRET not in str(raised.value) and "line " in str(raised.value)


def test_insecure_server_needs_the_kubeconfigs_option(server: ApiStandIn, tmp_path: Path) -> None:
    user = {"token": "t"}
    path = server.kubeconfig(tmp_path / "config", user, certificate_authority_data=None, insecure_skip_tls_verify=True)
    assert who(KubeConfig.from_path(str(path)))["authorization"] == "Bearer t"
    path = server.kubeconfig(tmp_path / "config", user, insecure_skip_tls_verify=True)
    with pytest.raises(CredentialsError, match="has both insecure-skip-tls-verify and a certificate-authority"):
        who(KubeConfig.from_path(str(path)))


def test_certificate_of_another_authority_is_refused(server: ApiStandIn, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    path = server.kubeconfig(tmp_path / "config", {"token": SECRET}, certificate_authority_data=encoded(other.certificate("ca")))
    with pytest.raises(UnreachableError, match="its certificate is not accepted") as raised:
        who(KubeConfig.from_path(str(path)))
    assert "certificate-authority" in str(raised.value) and SECRET not in str(raised.value)
    assert not server.requests


@pytest.mark.parametrize("is_inline", [True, False])
def test_authority_with_line_breaks_and_comments_is_read(server: ApiStandIn, tmp_path: Path, is_inline: bool) -> None:
    authority = "# F\u0151tan\u00fas\u00edtv\u00e1ny\n".encode() + server.authority.certificate("ca").read_bytes()
    (tmp_path / "ca.pem").write_bytes(authority)
    # 76 characters a line, as `base64` prints them.
    changes = {"certificate_authority_data": base64.encodebytes(authority).decode().replace("\n", "\r\n") if is_inline else None}
    path = server.kubeconfig(tmp_path / "config", {"token": "t"}, **changes, certificate_authority=None if is_inline else "ca.pem")
    assert who(KubeConfig.from_path(str(path)))["authorization"] == "Bearer t"


def test_server_name_of_the_kubeconfig_is_checked(server: ApiStandIn, tmp_path: Path) -> None:
    path = server.kubeconfig(tmp_path / "config", {"token": "t"}, tls_server_name="api.example")
    assert who(KubeConfig.from_path(str(path)))["authorization"] == "Bearer t"
    path = server.kubeconfig(tmp_path / "config", {"token": "t"}, tls_server_name="other.example")
    with pytest.raises(UnreachableError, match="its certificate is not accepted: Hostname mismatch"):
        who(KubeConfig.from_path(str(path)))


def test_expired_credentials_are_named(server: ApiStandIn, tmp_path: Path) -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": 1000000000}).encode()).decode().rstrip("=")
    server.answer = lambda asked: status(401, "Unauthorized", "Unauthorized")
    path = server.kubeconfig(tmp_path / "config", {"token": f"a.{claims}.b"})
    with pytest.raises(CredentialsError, match="the token has expired on 2001-09-09 01:46:40 UTC") as raised:
        who(KubeConfig.from_path(str(path)))
    assert claims not in str(raised.value)


def test_incomplete_or_broken_key_pair_is_named(server: ApiStandIn, tmp_path: Path) -> None:
    server.authority.issue("ada", "ada")
    certificate = encoded(server.authority.certificate("ada"))
    for user, words in (
        ({"client-certificate-data": certificate}, "has no client-key"),
        ({"client-certificate-data": "%", "client-key-data": "%"}, "is not base64"),
        ({"client-certificate-data": "\u00fc", "client-key-data": "\u00fc"}, "is not base64"),
        ({"client-certificate-data": certificate, "client-key-data": encoded(server.authority.key("ca"))}, "its key cannot be used"),
        ({"client-certificate": "missing", "client-key": "missing"}, "client-certificate of 'someone' in .* cannot be read"),
        ({"token": "a\nb c\u00e9"}, "has characters that no header can have"),
    ):
        with pytest.raises(CredentialsError, match=words):
            who(KubeConfig.from_path(str(server.kubeconfig(tmp_path / "config", user))))


class Proxy(threading.Thread):
    """An HTTP proxy that connects as CONNECT asks it, and a SOCKS5 proxy: the first byte decides."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.asked: list[bytes] = []
        self.target = 0
        self.start()

    def run(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            first = client.recv(1)
            if first == b"\x05":
                client.recv(2)
                client.sendall(b"\x05\x00")
                self.asked.append(client.recv(4096))
                client.sendall(b"\x05\x00\x00\x01" + bytes(6))
            else:
                head = first
                while not head.endswith(b"\r\n\r\n"):
                    head += client.recv(1)
                self.asked.append(head)
                if b"deny" in head:
                    client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
                    client.close()
                    continue
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            server = socket.create_connection(("127.0.0.1", self.target))
            threading.Thread(target=self.relay, args=(client, server), daemon=True).start()

    def relay(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            down = threading.Thread(target=self.copy, args=(server, client), daemon=True)
            down.start()
            self.copy(client, server)
            down.join()

    def copy(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@pytest.fixture
def proxy(server: ApiStandIn) -> Iterator[Proxy]:
    made = Proxy()
    made.target = server.port
    yield made
    made.listener.close()


@pytest.mark.parametrize("scheme", ["http", "socks5"])
def test_proxy_of_the_kubeconfig_is_used(server: ApiStandIn, proxy: Proxy, tmp_path: Path, scheme: str) -> None:
    # Only the proxy knows this name.
    path = server.kubeconfig(
        tmp_path / "config", {"token": "t"}, server="https://api.example:7443", proxy_url=f"{scheme}://127.0.0.1:{proxy.port}"
    )
    assert who(KubeConfig.from_path(str(path)))["authorization"] == "Bearer t"
    assert b"api.example" in proxy.asked[0]


def test_proxy_that_refuses_is_named_without_its_password(server: ApiStandIn, proxy: Proxy, tmp_path: Path) -> None:
    path = server.kubeconfig(
        tmp_path / "config", {"token": "t"}, server="https://deny.example", proxy_url=f"http://ada:{SECRET}@127.0.0.1:{proxy.port}"
    )
    with pytest.raises(UnreachableError, match=r"the proxy http://127.0.0.1:\d+: 407 Proxy") as raised:
        who(KubeConfig.from_path(str(path)))
    assert SECRET not in str(raised.value) and b"Proxy-Authorization: Basic" in proxy.asked[0]
    path = server.kubeconfig(tmp_path / "config", {"token": "t"}, proxy_url=f"ftp://ada:{SECRET}@127.0.0.1:1")
    with pytest.raises(CredentialsError, match="the proxy 'ftp://127.0.0.1:1' is none of") as refused:
        KubeConfig.from_path(str(path)).load()
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("scheme", ["http://", ""])
def test_proxy_of_the_environment_is_used(
    server: ApiStandIn, proxy: Proxy, tmp_path: Path, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"{scheme}127.0.0.1:{proxy.port}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    path = server.kubeconfig(tmp_path / "config", {"token": "t"}, server="https://api.example:7443")
    assert who(KubeConfig.from_path(str(path)))["authorization"] == "Bearer t"
    assert len(proxy.asked) == 1
    monkeypatch.setenv("NO_PROXY", ".example")
    assert KubeConfig.from_path(str(path)).load().address.proxy is None


def test_server_of_this_machine_needs_no_proxy(server: ApiStandIn, proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    path = server.kubeconfig(tmp_path / "config", {"token": "t"})
    assert who(KubeConfig.from_path(str(path)))["authorization"] == "Bearer t"
    assert not proxy.asked


def test_service_account_of_a_pod_is_used(server: ApiStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "account"
    folder.mkdir()
    (folder / "token").write_text("of-the-pod")
    (folder / "ca.crt").write_bytes(server.authority.certificate("ca").read_bytes())
    (folder / "namespace").write_text("mine")
    monkeypatch.setattr(config_module, "SERVICE_ACCOUNT", str(folder))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    config = KubeConfig()
    assert not config.out_of_cluster and config.load().namespace == "mine"
    assert who(config)["authorization"] == "Bearer of-the-pod"


def test_given_configuration_is_used_and_never_saved(server: ApiStandIn) -> None:
    from kubernetes.client import Configuration

    given = Configuration(host=server.url)
    given.ssl_ca_cert = str(server.authority.certificate("ca"))
    given.api_key = {"authorization": SECRET}
    given.api_key_prefix = {"authorization": "Bearer"}
    config = KubeConfig.from_config(given)
    assert config.out_of_cluster and who(config)["authorization"] == f"Bearer {SECRET}"
    assert config.saved() == {"given": True} and SECRET not in repr(config)
    with pytest.raises(CredentialsError, match="which is never written anywhere"):
        KubeConfig.restored(config.saved())
    with pytest.raises(TypeError, match="takes a kubernetes.client.Configuration, not SimpleNamespace"):
        KubeConfig.from_config(SimpleNamespace())


def test_saved_configuration_has_no_secret(server: ApiStandIn, tmp_path: Path) -> None:
    path = server.kubeconfig(tmp_path / "config", {"token": SECRET})
    config = KubeConfig.from_path(str(path), context="test")
    assert config.saved() == {"path": str(path), "context": "test"}
    again = KubeConfig.restored(config.saved())
    assert who(again)["authorization"] == f"Bearer {SECRET}"
    connection = config.load()
    for text in (repr(config), repr(connection), repr(connection._identity), pickle.dumps(config.saved()).decode("latin-1")):
        assert SECRET not in text


def test_unreachable_server_is_named_at_once(tmp_path: Path, server: ApiStandIn) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for url, words in ((f"https://127.0.0.1:{port}", "Connection refused"), ("https://no-such-host.invalid", "its name is not known")):
        path = server.kubeconfig(tmp_path / "config", {"token": "t"}, server=url)
        with pytest.raises(UnreachableError, match=words) as raised:
            who(KubeConfig.from_path(str(path)))
        assert url in str(raised.value) and str(path) in str(raised.value)


def test_silent_server_ends_with_the_time_limit(tmp_path: Path, server: ApiStandIn) -> None:
    from monarch.job._machine.commands import time_limit

    with socket.create_server(("127.0.0.1", 0)) as silent:
        path = server.kubeconfig(tmp_path / "config", {"token": "t"}, server=f"https://127.0.0.1:{silent.getsockname()[1]}")
        with time_limit(0.2), pytest.raises(JobError, match="no answer within"):
            who(KubeConfig.from_path(str(path)))


def test_importing_and_loading_needs_no_models(tmp_path: Path, server: ApiStandIn) -> None:
    import subprocess

    path = server.kubeconfig(tmp_path / "config", {"token": "t"})
    code = (
        "import sys\nfrom monarch.job.kubernetes.access.config import KubeConfig\n"
        "from monarch.job.kubernetes.access.client import Cluster\n"
        f"Cluster(KubeConfig.from_path({str(path)!r}).load(), 'there').get('v1/ConfigMap', 'me')\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('kubernetes', 'urllib3', 'requests', 'aiohttp', 'asyncio')])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=25)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


class _Configuration:
    """What the official client's one has of the name of a server."""

    host = "https://api.example"


def test_local_and_remote_are_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/ada")
    given = _Configuration()
    by_path, by_configuration, default = KubeConfig.from_path("~/config"), KubeConfig.from_config(given), KubeConfig()
    assert (by_path.local, by_path.remote, by_path.out_of_cluster) == (Path("/ada/config"), None, True)
    assert (by_configuration.local, by_configuration.remote, by_configuration.out_of_cluster) == (None, given, True)
    assert (default.local, default.remote) == (None, None)
    assert KubeConfig(local=Path("~/config")) == by_path and hash(KubeConfig(local="~/config")) == hash(by_path)
    assert KubeConfig(remote=given) == by_configuration != KubeConfig(remote=_Configuration())
    assert by_path != default == KubeConfig() and by_path != "~/config"
    assert KubeConfig.from_path("~/config", context="a") != by_path


def test_file_and_configuration_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="local and remote exclude each other"):
        KubeConfig("config", _Configuration())
    for make in (lambda: KubeConfig(remote="config"), lambda: KubeConfig.from_config(None)):
        with pytest.raises(TypeError, match=r"a kubernetes\.client\.Configuration"):
            make()
    with pytest.raises(TypeError):
        KubeConfig.from_path(None)  # pyright: ignore[reportArgumentType]

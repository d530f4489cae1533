"""The end of the operator, which needs no cluster for it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from operator_process import OperatorProcess

from tools.thread_signals import signal_beside_main_thread

KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: none
contexts: [{name: none, context: {cluster: none, user: none}}]
clusters: [{name: none, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: none, user: {}}]
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_operator_ends_whichever_thread_gets_the_signal(tmp_path: Path, number: signal.Signals) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    with OperatorProcess(tmp_path / "log", kubeconfig) as operator:
        operator.await_log(" serving the meshes of ")
        assert operator.end(number, signal_beside_main_thread) == 0
        assert operator.log().endswith(" INFO ended\n")

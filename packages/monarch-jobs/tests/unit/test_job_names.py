"""The facade: names are loaded on first use, and a name that is not there yet is refused with its reason."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import monarch.job
from monarch.job import BackendMissingError


def test_every_public_name_is_importable() -> None:
    for name in monarch.job.__all__:
        found = getattr(monarch.job, name)
        assert getattr(found, "__module__", "monarch.job").startswith("monarch.job")
    assert set(monarch.job.__all__) == set(dir(monarch.job))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = monarch.job.nothing


def test_backend_whose_extra_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("monarch.job.kubernetes")
    monkeypatch.delattr(module, "KubernetesJob", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendMissingError, match="needs the Python packages python_socks, websockets, yaml") as found:
        _ = module.KubernetesJob
    assert found.value.hint == "pip install 'monarch-jobs[kubernetes]'"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing


def test_settings_of_backend_do_not_load_it() -> None:
    code = "import sys, monarch.config as c; assert 'skypilot_python' in c.get_global_config(); sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""Settings that other wheels declare: loaded on demand, and refused with the name of the culprit."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tools import installed_wheel

DECLARED = """
from monarch.extension import Setting

SETTINGS = (
    Setting("parrot_words", "int", 3, "Words that it knows.", unit="words", variable=("PARROT_WORDS",)),
    Setting("parrot_pause", "duration", "1s", "Time between two words.", nullable=True),
    Setting("parrot_cage", "str", "", "Where it lives.", local=True),
)
"""
START = "from monarch.config import configure, configured, get_global_config; from monarch.extension import setting, seconds\n"


def run(code: str, site: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs in a fresh process: a declared key stays declared."""
    import os

    path = os.pathsep.join([str(site), *filter(None, sys.path)])
    argv = [sys.executable, "-W", "error", "-c", START + textwrap.dedent(code)]
    return subprocess.run(argv, env={**os.environ, "PYTHONPATH": path, **environment}, capture_output=True, text=True, check=False)


def site_with(folder: Path, source: str = DECLARED, target: str = "parrot_settings:SETTINGS", requires: tuple[str, ...] = ()) -> Path:
    return installed_wheel.install(
        folder, "parrot", {"monarch.settings": {"parrot": target}}, {"parrot_settings": source}, requires=requires
    )


def good(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_declared_setting_works_like_any_other(tmp_path: Path) -> None:
    code = """
        assert setting("parrot_words") == 3 and seconds("parrot_pause") == 1.0
        configure(parrot_words=4, parrot_pause=None)
        assert (setting("parrot_words"), setting("parrot_pause"), get_global_config()["parrot_cage"]) == (4, None, "")
        with configured(parrot_words=5) as values:
            assert values["parrot_words"] == 5 and values["parrot_cage"] == ""
        assert setting("parrot_words") == 4
        for wrong in ({"parrot_words": "many"}, {"parrot_pause": "soon"}):
            try:
                configure(**wrong)
            except TypeError as e:
                assert "parrot_" in str(e)
            else:
                raise AssertionError(wrong)
    """
    assert good(run(code, site_with(tmp_path))) == ""


def test_first_use_finds_the_declaration(tmp_path: Path) -> None:
    site = site_with(tmp_path)
    good(run("configure(parrot_words=4, tail_log_lines=3); assert setting('parrot_words') == 4 and setting('tail_log_lines') == 3", site))
    good(run("assert get_global_config()['parrot_words'] == 3", site))
    good(run("import sys; setting('tail_log_lines'); configure(tail_log_lines=3); assert 'parrot_settings' not in sys.modules", site))


@pytest.mark.parametrize("variable", ["MONARCH_PARROT_WORDS", "PARROT_WORDS"])
def test_environment_sets_a_declared_setting(variable: str, tmp_path: Path) -> None:
    code = """
        assert setting("tail_log_lines") == 20
        configure(parrot_words=9)
        assert setting("parrot_words") == 7
    """
    assert f"configuration key `parrot_words` keeps 7: variable {variable} is set" in good(
        run(code, site_with(tmp_path), **{variable: "7"})
    )
    code = "from monarch.config import reset_config_to_defaults, reload_config_from_env; reset_config_to_defaults()\n"
    code += "assert setting('parrot_words') == 3; reload_config_from_env(); assert setting('parrot_words') == 7"
    good(run(code, tmp_path, **{variable: "7"}))
    assert "environment variable PARROT_WORDS is ignored: " in good(run("assert setting('parrot_words') == 3", tmp_path, PARROT_WORDS="x"))


def test_values_sent_before_the_declaration_count(tmp_path: Path) -> None:
    code = """
        from monarch._core.config import config
        config.apply_pushed({"parrot_words": 8, "parrot_pause": "2s", "of_no_wheel": "x"})
        assert config.pushed_values() == {"parrot_words": 8, "parrot_pause": "2s", "of_no_wheel": "x"}
        assert setting("parrot_words") == 8
        config.apply_pushed({"parrot_words": 9})
        assert (setting("parrot_words"), setting("parrot_pause")) == (9, "1s")
    """
    good(run(code, site_with(tmp_path)))
    code = """
        from monarch._core.config import config
        config.apply_pushed({"parrot_words": "many"})
        assert setting("parrot_words") == 3
    """
    assert "what the client sent is ignored: invalid value `'many'`" in good(run(code, tmp_path))


def test_local_settings_are_not_pushed(tmp_path: Path) -> None:
    code = """
        from monarch._core.config import config
        configure(parrot_cage="here", parrot_words=4)
        assert config.pushed_values() == {"parrot_words": 4}
    """
    good(run(code, site_with(tmp_path)))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("SETTINGS = 3", "TypeError: 'int' object is not iterable"),
        ("SETTINGS = ['word']", "TypeError: 'word' is not a Setting"),
        ("raise OSError('no dictionary')", "OSError: no dictionary"),
        (DECLARED.replace("parrot_pause", "parrot_words"), "ValueError: configuration key `parrot_words` is declared twice"),
        (DECLARED.replace("parrot_pause", "exit_grace"), "ValueError: configuration key `exit_grace` belongs to monarch-core"),
        (DECLARED.replace('"PARROT_WORDS"', '"MONARCH_LOG"'), "ValueError: variable MONARCH_LOG of `parrot_words` belongs to `log_filter`"),
        (DECLARED.replace("3", "'three'"), "TypeError: invalid value `'three'` for configuration key `parrot_words`"),
        (DECLARED.replace('"1s"', '"1000ms"'), "ValueError: the default of `parrot_pause` is not in normal form: '1s' is"),
    ],
)
def test_broken_declaration_is_named_and_left_out(source: str, text: str, tmp_path: Path) -> None:
    code = """
        assert "parrot_words" not in get_global_config()
        try:
            configure(parrot_words=4)
        except ValueError as e:
            print(e)
        try:
            setting("parrot_words")
        except KeyError as e:
            assert "parrot 1.0" in str(e)
        configure(tail_log_lines=3)
    """
    done = run(code, site_with(tmp_path, source))
    assert good(done).count("left out: parrot 1.0: entry point 'parrot' of monarch.settings") == 1
    assert text in done.stderr
    assert done.stdout.startswith("invalid configuration key: `parrot_words`\n  left out: parrot 1.0: entry point 'parrot'")
    assert text in done.stdout and "hint: `pip install -U parrot`" in done.stdout


def test_wheel_of_another_version_declares_nothing(tmp_path: Path) -> None:
    done = run("configure(parrot_words=4)", site_with(tmp_path, requires=("monarch-core>=7",)))
    assert done.returncode == 1 and "RefusedVersion: parrot 1.0 was built for monarch-core>=7" in done.stderr


def test_key_of_a_missing_wheel_names_it(tmp_path: Path) -> None:
    code = """
        import sys
        sys.path[:] = [path for path in sys.path if "site-packages" not in path]
        try:
            configure(rdma_qps_per_peer=4)
        except ValueError as e:
            text = str(e)
        assert text.startswith("invalid configuration key: `rdma_qps_per_peer` needs the wheel monarch-rdma, which is not installed"), text
        assert "hint: `pip install ./packages/monarch-rdma`" in text
    """
    good(run(code, tmp_path))

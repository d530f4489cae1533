"""Every check of the project, step by step, the cheap ones first.

    python -m tools.ci_steps             all steps, but for those of `ON_DEMAND`
    python -m tools.ci_steps STEP...     these steps, in the order of the table
    python -m tools.ci_steps --list      the table

`--changed-since REF` limits all of these to what the changes since that commit concern (`tools/changes.py`), and checks the messages of the
new commits. Everything runs if that cannot be limited.

`--within MINUTES` is the time of the run: steps with clusters that have not ended then are ended or left out, and listed in the last lines.
They are no failure, but for their failed tests. So a slow machine still ends with the result of all other steps.

The steps of one stage all run, so that one run shows all problems; a failed stage ends the run. Steps that run beside
others have a queue of their own: they run one after another, from the start of their stage on, through as many stages as they take
(`tools/lanes.py`). Their output is printed when they end. The end of the output has one line per step with its time, the closing lines
of the test runners again, and the slowest tests. Up to ten failed tests of a step of pytest are repeated alone: if they pass then, they
are listed as flaky, and the step is no failure.
"""

from __future__ import annotations

import argparse
import sys
import time

from tools.changes import BaseError, changed_files, concerned
from tools.lanes import DURATION, Lanes, Outcome, Step
from tools.project import CORE, PACKAGES, RDMA, ROOT, RUST, TENSOR

PY = sys.executable
RUST_TESTED = ("monarch-events", "monarch-files", "monarch-wire", "monarch-net", "monarch-runtime", "monarch-bulk")
_SOURCES = ("tools", *(str(folder.relative_to(ROOT)) for part in ("python", "tests") for folder in sorted(PACKAGES.glob(f"*/{part}"))))
_RUST_FOLDER = str(RUST.relative_to(ROOT))
_CORE_FOLDER = str(CORE.relative_to(ROOT))
_PYTHON_FOLDER = f"{_CORE_FOLDER}/python"
_TESTED = tuple(word for crate in RUST_TESTED for word in ("-p", crate))
# The profile of the wheel with three changes: link-time optimisation of every test binary takes seconds each and tests nothing, and tests
# need assertions and overflow checks, of which cargo switches each one alone.
_PROFILE = tuple(
    word for change in ("lto=false", "debug-assertions=true", "overflow-checks=true") for word in ("--config", f"profile.release.{change}")
)
_READINESS = str((RDMA / "tests" / "unit" / "test_rdma_verbs_readiness.py").relative_to(ROOT))
_CLIPPY = ("cargo", "clippy", "--quiet", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings")
_TENSOR_FOLDER = str(TENSOR.relative_to(ROOT))
# Used only if build_torch has made the environment.
_WITH_TORCH = (PY, "-m", "tools.with_torch", "--if-made")
_QUICK = "small or dropped or every_name"
_CHAOS = ("--seed", "1", "--seconds", "60", "--procs", "8", "--keep", "bench/.chaos")
# Tests of pages are among the unit tests of the tools.
_ALWAYS_TESTED = "tools/tests/unit"
_SLOWEST = 10
_PRELOADED = tuple(
    str((PACKAGES / "monarch-spmd" / "tests" / "process" / f"test_spmd_{name}.py").relative_to(ROOT)) for name in ("exit_codes", "output")
)


def _with(folder: str) -> tuple[str, ...]:
    """The wheels that have such a folder."""
    return tuple(sorted(path.relative_to(PACKAGES).parts[0] for path in PACKAGES.glob(f"*/{folder}")))


_ALL = _with("pyproject.toml")


def _pytest(
    name: str,
    stage: str,
    *arguments: str,
    within: tuple[str, ...] = (),
    wheels: tuple[str, ...] = _ALL,
    queue: int = 0,
    apart: bool = False,
) -> Step:
    """A run of pytest with the tests of a category and a cache folder of its own."""
    cache = f".pytest_cache/steps/{name}"
    argv = (*within, PY, "-m", "pytest", "-o", f"cache_dir={cache}", "--durations=10", "-W", "error", "-m", *arguments)
    return Step(name, stage, argv, queue=queue, apart=apart, cache=cache, wheels=wheels)


_STEPS = (
    Step("ruff", "cheap", ("ruff", "check", ".")),
    Step("format", "cheap", ("ruff", "format", "--check", ".")),
    Step("style", "cheap", (PY, "-m", "tools.check_style")),
    # monarch-tensor is not installed: it needs PyTorch.
    Step("imports", "cheap", ("env", f"PYTHONPATH={_TENSOR_FOLDER}/python", "lint-imports", "--no-cache", "--no-logo")),
    Step("rustfmt", "cheap", ("cargo", "fmt", "--all", "--check"), _RUST_FOLDER, "rustfmt"),
    # Tests start thousands of interpreters. If the environment forbids writing bytecode, each would compile all of it again.
    Step("bytecode", "build", (PY, "-m", "compileall", "-q", *_SOURCES)),
    Step("build", "build", (PY, "-m", "tools.build_native")),
    # Mounts need a module that this step builds, and Debian's packages for it.
    Step("pyfuse3", "build", ("bash", "tools/pyfuse3.sh", PY), wheels=_with("tests/fuse")),
    # The static files of the dashboard, which are part of the wheel.
    Step("dashboard", "build", (PY, "-m", "tools.build_dashboard", "types", "test", "build"), wheels=_ALL),
    Step("api", "public", (PY, "-m", "tools.check_api", "--check")),
    Step("generated", "public", (PY, "-m", "tools.generate_docs", "--check")),
    Step("site", "public", (PY, "-m", "tools.site")),
    Step("types", "public", ("pyright", "--warnings")),
    Step("stub", "public", (PY, "-m", "mypy.stubtest", "monarch._core._native"), _PYTHON_FOLDER),
    Step("clippy", "rust", _CLIPPY, _RUST_FOLDER, "clippy-driver", wheels=(CORE.name,)),
    Step("cargo", "rust", ("cargo", "test", "--quiet", "--locked", "--release", *_PROFILE, *_TESTED), _RUST_FOLDER, wheels=(CORE.name,)),
    # Without PyTorch its tests are left out with a reason. The installation takes a minute or two and ends long before the step `torch`.
    Step("build_torch", "rust", (PY, "-m", "tools.side_venv", "torch"), queue=1, optional=True, wheels=_with("tests/pytorch")),
    # Without Prefect the tests of its plug-in are left out with a reason.
    Step("build_prefect", "rust", (PY, "-m", "tools.side_venv", "prefect"), queue=1, optional=True, wheels=_ALL),
    # Without a cluster its tests are left out with a reason.
    Step("build_k8s", "rust", (PY, "-m", "tools.k8s", "build"), queue=2, optional=True, wheels=_with("tests/k8s")),
    # Left out, with the reason, where the headers of libfuse cannot be installed.
    Step("build_pyfuse3", "wheels", (PY, "-m", "tools.build_pyfuse3"), optional=True, wheels=_ALL),
    Step("build_wheels", "wheels", (PY, "-m", "tools.build_wheels"), wheels=_ALL),
    Step("check_wheels", "check wheels", (PY, "-m", "tools.check_wheels"), wheels=_ALL),
    # The dry run of a release, with the wheels that `build_wheels` has made.
    Step("release", "check wheels", (PY, "-m", "tools.release"), wheels=_ALL),
    # Single tests are left out with a reason if their package is missing.
    Step("pythons", "check wheels", (PY, "-m", "tools.pythons"), wheels=_ALL),
    Step("packages", "packages", ("bash", "-c", "tools/system_packages.sh test browser slurm ssh k8s vm || true"), wheels=_ALL),
    # Tests with processes wait most of their time: several of them at a time cost little.
    _pytest("pytest_core", "tests", "not unit and not torch", _CORE_FOLDER, wheels=(CORE.name,), apart=True),
    _pytest("unit", "tests", "unit"),
    _pytest("pytest_others", "tests", "not unit and not k8s and not torch", f"--ignore={_CORE_FOLDER}", queue=1, apart=True),
    # Tests of programs once more, in forks of an interpreter with modules: preloading changes no result.
    _pytest(
        "preload", "clusters", "process", *_PRELOADED, within=("env", "MONARCH_PRELOAD=decimal"), wheels=("monarch-core", "monarch-spmd")
    ),
    # These run beside the shorter steps: clusters take all available processors, and tests with processes have time limits. They follow
    # the build of the cluster, which takes ten minutes of a processor, in its queue.
    _pytest("k8s", "clusters", "k8s", wheels=_with("tests/k8s"), queue=2),
    # Their ranks take all processors, and each needs seconds to import PyTorch.
    _pytest("torch", "clusters", "torch", wheels=_with("tests/pytorch")),
    # These import PyTorch into the process of pytest.
    _pytest("tensor", "clusters", "torch", f"{_TENSOR_FOLDER}/tests/pytorch", within=_WITH_TORCH, wheels=(TENSOR.name,), queue=1),
    Step("api_tensor", "clusters", (*_WITH_TORCH, PY, "-m", "tools.check_api", "--check"), wheels=(TENSOR.name,), queue=1),
    # The quick tests only: an emulated machine is slow. All of them: `-m verbs packages/monarch-rdma`.
    Step(
        "verbs",
        "clusters",
        (
            PY,
            "-m",
            "tools.vm",
            "run",
            "python",
            "-m",
            "pytest",
            "-W",
            "error",
            "packages/monarch-rdma/tests/verbs",
            _READINESS,
            "-k",
            _QUICK,
        ),
        needs="qemu-system-x86_64",
        wheels=(RDMA.name,),
    ),
    Step("chaos", "clusters", (PY, "bench/chaos.py", *_CHAOS), wheels=(CORE.name,)),
    Step("docs", "clusters", (PY, "-m", "tools.check_docs")),
)
# Clusters come last, and need the most of a machine.
STEPS = tuple(step._replace(timed=step.stage == "clusters") for step in _STEPS)
# These run only if they are named. `pythons` takes minutes of a processor for each version, which are other jobs of the workflow.
ON_DEMAND = ("pythons",)
ALIASES = {
    "wheels": ("build_wheels", "check_wheels"),
    "pytest": ("pytest_core", "pytest_others"),
    "torch": ("torch", "tensor"),
    "tests": ("pytest_core", "pytest_others", "unit", "k8s", "torch", "tensor"),
}


def chosen(names: list[str]) -> list[Step]:
    """The steps of these names, in the order of the table; all but those on demand if `names` is empty."""
    wanted = {step for name in names for step in ALIASES.get(name, (name,))}
    unknown = wanted - {step.name for step in STEPS}
    if unknown:
        raise SystemExit(f"ci_steps: no step '{', '.join(sorted(unknown))}'; --list shows them")
    return [step for step in STEPS if (step.name in wanted if wanted else step.name not in ON_DEMAND)]


def limited(steps: list[Step], wheels: set[str]) -> list[Step]:
    """The steps that a change of these wheels concerns, and of runs of pytest the tests of these wheels."""
    found: list[Step] = []
    for step in steps:
        names = sorted(wheels.intersection(step.wheels))
        if step.cache and len(step.wheels) > 1:
            folders = [f"packages/{name}/tests" for name in names if (PACKAGES / name / "tests").is_dir()]
            folders += [_ALWAYS_TESTED] if step.name == "unit" else []
            if folders:
                argv = tuple(word for word in step.argv if not word.startswith("--ignore="))
                found.append(step._replace(argv=(*argv, *folders), sparse=True))
        elif names or not step.wheels:
            found.append(step)
    return found


def changed(steps: list[Step], base: str) -> list[Step]:
    """The steps that the changes since this commit concern, after a check of the new commits; all steps if that cannot be limited."""
    commits = Step("commits", steps[0].stage, (PY, "-m", "tools.check_commits", base))
    try:
        wheels = concerned(changed_files(base))
    except BaseError as error:
        print(f"ci_steps: everything runs, as there is nothing to compare with: {error}")
        return steps
    if wheels is None or CORE.name in wheels:
        return [commits, *steps]
    print(f"ci_steps: the changes since {base} concern {', '.join(sorted(wheels)) or 'no wheel'}")
    return [commits, *limited(steps, wheels)]


def summary(outcomes: list[Outcome], left: list[Step], seconds: float) -> None:
    print("\n=== summary")
    for outcome in outcomes:
        print(f"{outcome.seconds:7.1f} s  {outcome.step.name:<14} {outcome.state}")
    for step in left:
        print(f"      --   {step.name:<14} not run")
    print(f"{seconds:7.1f} s  all")
    for outcome in outcomes:
        for line in outcome.closing:
            print(line)
    durations = sorted((line for outcome in outcomes for line in outcome.durations), key=_seconds, reverse=True)
    if durations:
        print("the slowest tests:")
    for line in durations[:_SLOWEST]:
        print(line)
    for outcome in outcomes:
        for test in outcome.flaky:
            print(f"flaky: {test}")
    for outcome in outcomes:
        if outcome.no_time:
            print(f"no time: {outcome.step.name} {'was ended' if outcome.seconds else 'has not begun'}")


def _seconds(duration: str) -> float:
    found = DURATION.match(duration)
    return float(found.group(1)) if found else 0.0


def main(arguments: list[str]) -> int:
    words = argparse.ArgumentParser(prog="ci_steps", add_help=False, allow_abbrev=False)
    words.add_argument("--changed-since", metavar="REF")
    words.add_argument("--within", type=float, metavar="MINUTES")
    words.add_argument("--list", action="store_true")
    words.add_argument("steps", nargs="*")
    given = words.parse_args(arguments)
    steps = chosen(given.steps)
    if given.changed_since:
        steps = changed(steps, given.changed_since)
    if given.list:
        for step in steps:
            print(f"{step.name:<14} {' '.join(step.argv).replace(PY, 'python')}{'  (beside others)' if step.queue else ''}")
        return 0
    start = time.monotonic()
    with Lanes(until=None if given.within is None else start + 60 * given.within) as lanes:
        for stage in dict.fromkeys(step.stage for step in steps):
            if lanes.failed:
                break
            lanes.run([step for step in steps if step.stage == stage])
    outcomes = sorted(lanes.outcomes, key=lambda outcome: steps.index(outcome.step))
    ran = [outcome.step for outcome in outcomes]
    summary(outcomes, [step for step in steps if step not in ran], time.monotonic() - start)
    return 1 if lanes.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

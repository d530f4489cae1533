"""Few descriptors: a client starts or reports that it cannot. A moment without any fails only the operation that needs one."""

from __future__ import annotations

import re

import pytest
from fresh import run

SCRIPT = """
import resource
from monarch.actor import this_host
resource.setrlimit(resource.RLIMIT_NOFILE, ({count}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
this_host()
print("started")
resource.setrlimit(resource.RLIMIT_NOFILE, (3, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
"""


@pytest.mark.parametrize("count", range(12, 20))
def test_client_with_few_descriptors_starts_or_fails_clearly(count: int) -> None:
    done = run(SCRIPT.format(count=count), check=False)
    if done.returncode == 0:
        assert (done.stdout, done.stderr) == ("started\n", "")
    else:
        last = done.stderr.splitlines()[-1]
        assert (done.returncode, done.stdout) == (1, ""), done
        assert re.fullmatch(r"OSError: .*Too many open files.*", last), done.stderr
        assert "atexit" not in done.stderr and "_at_exit" not in done.stderr


def test_failed_import_names_the_missing_descriptors() -> None:
    """The loader raises an `ImportError` at the first such module, whose text depends on the language."""
    source = """
    import os
    import resource
    import sys
    from monarch.actor import this_host

    assert "_pickle" not in sys.modules
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    class Loader:
        def find_spec(self, name, *more):
            if name == "_pickle":
                try:
                    while True:
                        os.dup(0)
                except OSError:
                    raise ImportError("Zu viele offene Dateien", name=name, path="/x/_pickle.so") from None

    sys.meta_path.insert(0, Loader())
    this_host()
    """
    done = run(source, check=False)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, last) == (1, "OSError: [Errno 24] cannot start the runtime: Too many open files: '/x/_pickle.so'"), done


def test_failed_import_with_descriptors_is_itself() -> None:
    source = """
    import sys
    from monarch.actor import this_host

    class Loader:
        def find_spec(self, name, *more):
            if name == "_pickle":
                raise ImportError("Too many open files in the text alone", name=name)

    sys.meta_path.insert(0, Loader())
    this_host()
    """
    done = run(source, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ImportError: Too many open files in the text alone"), done


# Numbers of free descriptors, at each of which another step fails.
@pytest.mark.parametrize("free", range(10))
def test_service_fails_once_without_descriptors(free: int) -> None:
    source = """
    import sys
    from descriptors import few_descriptors
    from monarch.actor import this_host
    from monarch.extension import ServiceError, service
    from service_actors import Perch, declare

    host = this_host()
    other = host.spawn_procs(name="other").spawn("perch", Perch)
    other.sit.call_one("first").get()
    name = declare("poor")
    with few_descriptors(int(sys.argv[1])):
        try:
            service(host, name)
        except ServiceError as e:
            text = str(e)
        else:
            text = "started"
    print(text.splitlines()[0])
    assert service(host, name).sit.call_one("a").get() == ["a"]
    assert service(host, name).sit.call_one("b").get() == ["a", "b"]
    assert other.sit.call_one("second").get() == ["first", "second"]
    """
    done = run(source, str(free))
    assert re.fullmatch(r"service poor on host [\w.-]+: (.*: )?(\[Errno 24\] )?Too many open files.*", done.stdout.strip()), done.stdout
    assert "Exception ignored" not in done.stderr, done.stderr


def test_link_outlives_a_descriptor_that_is_lost() -> None:
    # The first large answer of a proc comes with the descriptor of the memory that holds it.
    source = """
    from descriptors import few_descriptors
    from threading import Event
    from monarch.actor import Actor, SupervisionError, endpoint, this_host
    from monarch.extension import when_done

    class Giver(Actor):
        @endpoint
        def give(self, size):
            return b"x" * size

    giver = this_host().spawn_procs().spawn("giver", Giver)
    small, done, over = giver.give.call_one(1), Event(), Event()
    when_done(small, lambda _: done.set())
    assert done.wait()
    with few_descriptors(0):
        lost = giver.give.call_one(4 << 20)
        when_done(lost, lambda _: over.set())
        over.wait()
    try:
        lost.get()
    except SupervisionError as e:
        print(str(e).splitlines()[0])
    assert len(giver.give.call_one(4 << 20).get()) == 4 << 20
    """
    done = run(source)
    assert "parts of the answer were lost on the way" in done.stdout, done


def test_procs_get_links_after_their_agent_has_descriptors() -> None:
    source = """
    from descriptors import few_descriptors
    from monarch.actor import this_host
    from service_actors import Perch

    first, second = (this_host().spawn_procs(name=name).spawn("perch", Perch) for name in ("first", "second"))
    assert first.sit.call_one("a").get() == ["a"] and second.sit.call_one("b").get() == ["b"]
    with few_descriptors(0):
        forwarded = first.forward.call_one(second, "c")
        # Meanwhile the agent is asked for the link.
        for _ in range(300):
            second.pid.call_one().get()
    assert forwarded.get() == ["b", "c"]
    """
    run(source)

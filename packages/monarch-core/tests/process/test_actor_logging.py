"""The prefix of log records inside actors."""

from __future__ import annotations

import asyncio
import io
import logging
import logging.handlers
import queue

import pytest
from fresh import lines, run

from monarch._core.process.identity import new_uid
from monarch.actor import Actor, endpoint, this_host, this_proc


class Logging(Actor):
    """Logs through a handler of its own and returns its output."""

    def __init__(self):
        self.stream = io.StringIO()
        self.log = logging.Logger(f"test.{new_uid()}", logging.DEBUG)
        self.log.addHandler(logging.StreamHandler(self.stream))

    def written(self):
        return self.stream.getvalue()

    @endpoint
    def write(self, message, *args):
        self.log.info(message, *args)
        return self.written()

    @endpoint
    def write_through_queue(self, message, *args):
        waiting = queue.SimpleQueue()
        log = logging.Logger("queued")
        log.addHandler(logging.handlers.QueueHandler(waiting))
        log.info(message, *args)
        listener = logging.handlers.QueueListener(waiting, *self.log.handlers)
        listener.handle(waiting.get())
        return self.written()

    @endpoint
    def write_with_switch(self, message, on):
        from monarch.actor import config

        config.prefix_python_logs_with_actor = on
        try:
            self.log.info(message)
        finally:
            config.prefix_python_logs_with_actor = True
        return self.written()

    @endpoint
    def write_odd(self, kind):
        class Odd:
            def __eq__(self, other):
                raise ValueError("not to be compared")

            __hash__ = None

            def __str__(self):
                if kind == "no text":
                    raise TypeError("no text")
                return "odd"

        logging.raiseExceptions = False
        try:
            self.log.info(Odd())
        finally:
            logging.raiseExceptions = True
        return self.written()

    @endpoint
    def write_then_add_a_handler(self, message):
        self.log.info(message)
        later = io.StringIO()
        self.log.addHandler(logging.StreamHandler(later))
        self.log.warning(message)
        logging.getLogger("other").addHandler(logging.StreamHandler(later))
        logging.getLogger("other").error("%s", message)
        return self.written(), later.getvalue()

    @endpoint
    def write_in_a_task_of_a_thread(self, message):
        """Writes with a copied context, as `asyncio.to_thread` does."""
        import contextvars
        import threading

        thread = threading.Thread(target=contextvars.copy_context().run, args=(self.log.info, message))
        thread.start()
        thread.join()
        return self.written()

    @endpoint
    def write_in_a_thread(self, message):
        import threading

        thread = threading.Thread(target=self.log.info, args=(message,))
        thread.start()
        thread.join()
        return self.written()

    @endpoint
    def own_logger(self):
        self.logger.addHandler(logging.StreamHandler(self.stream))
        self.logger.propagate = False
        self.logger.debug("to my own")
        return self.logger.name, self.logger.level, self.written()


class AsyncLogging(Actor):
    @endpoint
    async def write(self, message):
        stream = io.StringIO()
        log = logging.Logger("async")
        log.addHandler(logging.StreamHandler(stream))
        log.info(message)
        await asyncio.create_task(self.later(log, message))
        return stream.getvalue()

    async def later(self, log, message):
        log.info("task: %s", message)


class LoggingInInit(Actor):
    def __init__(self):
        self.stream = io.StringIO()
        log = logging.Logger("init")
        log.addHandler(logging.StreamHandler(self.stream))
        log.info("being made")

    @endpoint
    def written(self):
        return self.stream.getvalue()


@pytest.fixture(scope="module")
def procs():
    with this_host().spawn_procs({"gpus": 2}) as mesh:
        yield mesh


def prefix(name, cls="Logging", point="{'gpus': 1/2}"):
    return f"[actor=<root>.<{__name__}.{cls} {name}{point}>] "


@pytest.mark.parametrize(
    ("message", "args", "expected"),
    [
        ("plain", (), "plain"),
        ("%s and %d", ("one", 2), "one and 2"),
        ("%(a)s", ({"a": 1},), "1"),
        ("100%", (), "100%"),
        (ValueError("an object"), (), "an object"),
        (17, (), "17"),
        ("two\nlines", (), "two\nlines"),
    ],
)
def test_records_begin_with_the_actor(procs, message, args, expected):
    actor = procs.spawn("a", Logging).slice(gpus=1)
    assert actor.write.call_one(message, *args).get() == f"{prefix('a')}{expected}\n"


@pytest.mark.parametrize("message", ["", None])
def test_empty_messages_are_left_alone(procs, message):
    actor = procs.spawn("empty", Logging).slice(gpus=1)
    assert actor.write.call_one(message).get() == ("\n" if message == "" else "None\n")


def test_name_with_a_percent_sign(procs):
    actor = procs.spawn("50%s", Logging).slice(gpus=1)
    assert actor.write.call_one("%s", "x").get() == f"{prefix('50%s')}x\n"
    assert actor.write.call_one("y").get() == f"{prefix('50%s')}x\n{prefix('50%s')}y\n"


def test_once_when_a_queue_carries_records_on(procs):
    actor = procs.spawn("queued", Logging).slice(gpus=1)
    assert actor.write_through_queue.call_one("%s", "x").get() == f"{prefix('queued')}x\n"


def test_switch(procs):
    actor = procs.spawn("switched", Logging).slice(gpus=1)
    assert actor.write_with_switch.call_one("x", False).get() == "x\n"
    assert actor.write_with_switch.call_one("y", True).get() == f"x\n{prefix('switched')}y\n"


def test_own_threads_are_not_the_actor(procs):
    actor = procs.spawn("threaded", Logging).slice(gpus=1)
    assert actor.write_in_a_thread.call_one("x").get() == "x\n"


def test_thread_with_a_copied_context_has_the_prefix(procs):
    actor = procs.spawn("copied", Logging).slice(gpus=1)
    assert actor.write_in_a_task_of_a_thread.call_one("x").get() == f"{prefix('copied')}x\n"


def test_thread_of_the_only_actor_has_the_prefix():
    """As for `context()`: the thread can only belong to this actor."""
    with this_host().spawn_procs({"gpus": 2}) as mesh:
        actor = mesh.spawn("only", Logging).slice(gpus=1)
        assert actor.write_in_a_thread.call_one("x").get() == f"{prefix('only')}x\n"


def test_handlers_that_are_added_later(procs):
    actor = procs.spawn("later", Logging).slice(gpus=1)
    start = prefix("later")
    assert actor.write_then_add_a_handler.call_one("x").get() == (f"{start}x\n" * 2, f"{start}x\n" * 2)


@pytest.mark.parametrize(("kind", "expected"), [("no comparison", "odd\n"), ("no text", "")])
def test_malformed_log_messages_are_written(procs, kind, expected):
    actor = procs.spawn("odd", Logging).slice(gpus=1)
    assert actor.write_odd.call_one(kind).get() == (prefix("odd") + expected if expected else "")


def test_tasks_of_async_actors(procs):
    actor = procs.spawn("async", AsyncLogging).slice(gpus=1)
    start = prefix("async", "AsyncLogging")
    assert actor.write.call_one("x").get() == f"{start}x\n{start}task: x\n"


def test_logging_in_init_has_the_prefix(procs):
    actor = procs.spawn("made", LoggingInInit).slice(gpus=1)
    assert actor.written.call_one().get() == f"{prefix('made', 'LoggingInInit')}being made\n"


def test_own_logger_is_named_after_the_class(procs):
    actor = procs.spawn("own", Logging).slice(gpus=1)
    assert actor.own_logger.call_one().get() == (f"{__name__}.Logging", logging.DEBUG, f"{prefix('own')}to my own\n")


def test_actor_in_the_client_has_a_prefix():
    stream = io.StringIO()
    log = logging.Logger("client")
    log.addHandler(logging.StreamHandler(stream))
    actor = this_proc().spawn("here", Logging)
    assert actor.write.call_one("x").get() == f"{prefix('here', point='')}x\n"
    actor.stop().get()
    log.info("from the client")
    assert stream.getvalue() == "from the client\n"


def test_factory_of_the_user_is_kept():
    done = run("""
        import logging
        class Record(logging.LogRecord):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.marked = "mark"
        logging.setLogRecordFactory(Record)
        from monarch.actor import Actor, endpoint, this_proc
        class Logs(Actor):
            @endpoint
            def write(self):
                logging.basicConfig(format="%(marked)s %(levelname)s %(message)s")
                logging.getLogger("x").warning("text")
        this_proc().spawn("logs", Logs).write.call_one().get()
    """)
    assert lines(done.stderr) == ["mark WARNING [actor=<root>.<__main__.Logs logs>] text"]


def test_programs_without_actors_pay_nothing():
    done = run("""
        import sys
        import monarch.actor
        from monarch.actor import context
        context()
        print("logging" in sys.modules, "monarch._core.actor.actor_logging" in sys.modules)
    """)
    assert lines(done.stdout) == ["False False"]

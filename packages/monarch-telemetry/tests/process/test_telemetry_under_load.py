"""A job that works while its telemetry is in trouble: no call is lost or fails, and what telemetry has lost is stated."""

from __future__ import annotations

import telemetry_program

PROGRAM = """
import http.client, json, logging, os, resource, signal, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import monarch.actor
import monarch.telemetry as telemetry
from monarch.actor import Actor, endpoint, this_host
from monarch.telemetry._http.http_client import HttpClient
from monarch.telemetry.errors import TelemetryError
from observed_job import stop

os.environ["MONARCH_HOME"] = str(Path.cwd() / "home")

class Worker(Actor):
    def __init__(self) -> None:
        self.sum = 0

    @endpoint
    def add(self, n: int) -> int:
        self.sum += n
        return n

    @endpoint
    def total(self) -> int:
        return self.sum

def rows(sql, timeout=None):
    return [tuple(row.values()) for row in telemetry.query(sql, timeout=timeout).to_pylist()]

def until(sql, holds):
    # What another process records is there soon, and a test that waits for what never comes is ended by its time limit.
    while True:
        try:
            found = rows(sql)[0][0]
        except telemetry.QueryTimeout:
            continue
        if holds(found):
            return found

class Load:
    # Calls without a pause, from another thread.
    def __enter__(self):
        self.sent, self.failed, self._over = 0, [], threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def _run(self):
        while not self._over.is_set():
            try:
                assert worker.add.call_one(1).get(timeout=60) == 1
            except BaseException as error:
                self.failed.append(error)
                return
            self.sent += 1

    def more(self, calls=20):
        # Waits until so many calls more were answered.
        wanted = self.sent + calls
        while self.sent < wanted and not self.failed:
            self._over.wait(0.01)

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

worker = this_host().spawn_procs(name="workers").spawn("worker", Worker)
running = telemetry.start(serve=True, admin_addr="127.0.0.1:0")
collector = lambda: running.asking.hosts[0].pid
"""


def shown(text: str) -> list[str]:
    return telemetry_program.shown(PROGRAM + text)


def test_job_does_not_notice_what_its_collector_suffers():
    assert shown("""
with Load() as load:
    load.more()
    first = collector()
    os.kill(first, signal.SIGKILL)
    load.more()
    ended = "SELECT count(*) FROM events WHERE name = 'telemetry.collector_ended'"
    until(ended, lambda n: n == 1)
    print("= killed", collector() != first)
    until("SELECT count(*) FROM messages WHERE endpoint = 'add'", lambda n: n > 0)
    # No more memory than it has: rows cannot be kept, answers cannot be made.
    second = collector()
    size = int(Path(f"/proc/{second}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.prlimit(second, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
    load.more()
    answers = []
    for _ in range(3):
        try:
            rows("SELECT endpoint, count(*) FROM messages GROUP BY endpoint ORDER BY 1", timeout=3.0)
            answers.append("answer")
        except TelemetryError as error:
            answers.append("error")
        load.more(1)
    print("= without memory", len(answers))
    if collector() == second and Path(f"/proc/{second}").exists():
        resource.prlimit(second, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    load.more()
    before = load.sent
    until("SELECT count(*) FROM messages WHERE endpoint = 'add'", lambda n: n > 0)
print("=", load.failed, worker.total.call_one().get() == load.sent)
""") == ["killed True", "without memory 3", "[] True"]


def test_overwritten_events_of_a_ring_are_counted():
    assert shown("""
worker.add.call_one(1).get()
until("SELECT count(*) FROM messages WHERE endpoint = 'add'", lambda n: n == 1)
dropped = "SELECT dropped FROM telemetry_status WHERE table_name = '(rings)'"
print("=", rows(dropped))
stop(collector())
calls = 30_000
for _ in range(calls - 1):
    worker.add.broadcast(1)
# No call waits for a collector.
print("=", worker.add.call_one(1).get(timeout=60), worker.total.call_one().get(timeout=60) == calls + 1)
os.kill(collector(), signal.SIGCONT)
lost = until(dropped, lambda n: n > 0)
kept = rows("SELECT count(*) FROM messages WHERE endpoint = 'add'")[0][0]
print("=", 0 < kept < calls + 1, lost > calls + 1 - kept)
worker.add.call_one(1).get()
until("SELECT max(timestamp_us) > 0 FROM messages", bool)
print("= goes on")
""") == ["[(0,)]", "1 True", "True True", "goes on"]


def test_hundred_queries_run_beside_a_huge_one():
    assert shown("""
def used():
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]) << 10

def post(token, sql, seconds):
    try:
        return json.loads(HttpClient(running.url, token=token).post("/v1/query", {"sql": sql, "timeout_s": seconds}, 100.0))["rows"]
    except TelemetryError as error:
        return error

LATE = ("queries are running already", "no host has answered", "the time of the query is over")
tokens = json.loads(next(Path("home/jobs").glob("*/telemetry.json")).read_text())
sql = "SELECT count(*) AS n FROM hosts"
rows(sql)
before = used()
with ThreadPoolExecutor(150) as pool:
    here = [pool.submit(telemetry.query, sql) for _ in range(100)]
    there = [pool.submit(post, tokens[("read", "admin")[n % 2]], sql, 10) for n in range(50)]
    # Answers, or the error of those that had no turn in time.
    ends = [future.exception(timeout=60) or future.result().to_pylist() for future in here]
    late = [end for end in ends if isinstance(end, telemetry.QueryTimeout)]
    print("=", all(end == [{"n": 1}] for end in ends if end not in late), len(late) < 100,
          all(any(why in str(end) for why in LATE) for end in late))
    print("=", {str(future.result(timeout=60)) for future in there} <= {"[{'n': 1}]"})
# 10^10 rows, at two users at the same time; others are answered meanwhile.
numbers = ", ".join(f"({n})" for n in range(400))
product = f"WITH t(x) AS (VALUES {numbers}) SELECT sum(a.x * b.x + c.x * d.x) AS s FROM t a, t b, t c, t d"
with ThreadPoolExecutor(4) as pool:
    large = [pool.submit(post, tokens[name], product, 2) for name in ("read", "admin")]
    print("=", rows(sql))
    for future in large:
        # At work, or before there was one more process to do it.
        print("=", "the time of the query is over" in str(future.result(timeout=60)))
print("=", used() - before < 256 << 20, rows(sql))
print("=", HttpClient(running.url, token=tokens["read"]).get("/v1/admin", 20.0)[:1])
""") == [
        "True True True",
        "True",
        "[(1,)]",
        "True",
        "True",
        "True [(1,)]",
        "b'{'",
    ]

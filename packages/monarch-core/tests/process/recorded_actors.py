"""The begin of scripts whose processes record events: their imports, and an actor that emits events."""

from __future__ import annotations


def recorder(events: int) -> dict[str, str]:
    """The environment of a script whose processes keep `events` events each."""
    return {"MONARCH_FLIGHT_RECORDER": "1", "MONARCH_FLIGHT_RECORDER_EVENTS": str(events)}


ACTORS = """
import json, os, signal, sys, threading, time
from monarch.actor import Actor, MeshFailure, endpoint, this_host, this_proc
from monarch import actor as monarch_actor
from monarch.extension import ProcId, events, member

class Worker(Actor):
    @endpoint
    def step(self, n):
        return n

    @endpoint
    def emit(self, n):
        for i in range(n):
            events.emit("step", i=i)

    @endpoint
    def fork(self):
        pid = os.fork()
        if pid == 0:
            events.emit("in the child")
            os._exit(7)
        events.emit("in the parent")
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    @endpoint
    def job(self):
        return member().job

    @endpoint
    def pid(self):
        return os.getpid()

    @endpoint
    def die(self):
        events.emit("about to die", why="a test")
        os.kill(os.getpid(), signal.SIGKILL)

def names(found):
    return [event.name for event in found]

def of(found, name):
    return [event.fields for event in found if event.name == name]

failures = []
monarch_actor.unhandled_fault_hook = failures.append
"""

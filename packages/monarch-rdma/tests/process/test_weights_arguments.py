"""Bad arguments of `monarch.rdma.weights` are refused at the call, with their names and values."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from monarch.actor import this_proc
from monarch.rdma.weights import Box, Weights


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"of": None}, TypeError, "of=None: expected a mesh of procs or actors"),
        ({"name": ""}, TypeError, "name must be a text that is not empty, got ''"),
        ({"name": None}, TypeError, "name must be a text that is not empty, got None"),
        ({"buffers": 3}, ValueError, "buffers must be 1 or 2, got 3"),
        ({"buffers": "2"}, TypeError, "buffers must be a whole number, got '2'"),
        ({"buffers": True}, TypeError, "buffers must be a whole number, got True"),
        ({"buffers": 1, "cast": True}, ValueError, "needs buffers=2"),
        ({"cast": "no"}, TypeError, "cast must be True or False, got 'no'"),
        ({"timeout": -1}, ValueError, "timeout must not be negative, got -1"),
        ({"timeout": float("nan")}, ValueError, "timeout must not be negative, got nan"),
        ({"timeout": float("inf")}, OverflowError, "timeout of inf s is beyond 64 bits"),
        ({"timeout": None}, TypeError, "timeout must be a number of seconds, got None"),
        ({"fan_out": -1}, ValueError, "fan_out must not be negative, got -1"),
        ({"fan_out": "2"}, TypeError, "fan_out must be a whole number, got '2'"),
        ({"into": None}, TypeError, "into must be a mapping of names to tensors, got None"),
        ({"into": [1]}, TypeError, r"into must be a mapping of names to tensors, got \[1\]"),
        ({"into": {}}, ValueError, "there is no tensor to take weights"),
        ({"into": {"bias": np.broadcast_to(np.zeros(1), (8,))}}, ValueError, "tensor 'bias' is read-only"),
        ({"into": {"bias": as_strided(np.zeros(1), (8,), (0,))}}, ValueError, "tensor 'bias' has several items in the same memory"),
    ],
)
def test_arguments_that_attach_refuses(options, error, text):
    given = {"name": "policy", "of": this_proc(), "into": {"bias": np.zeros(8)}, **options}
    with pytest.raises(error, match=text):
        Weights.attach(given.pop("name"), **given)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"buffers": 0}, ValueError, "buffers must be 1 or 2, got 0"),
        ({"buffers": 2.0}, TypeError, "buffers must be a whole number, got 2.0"),
        ({"wait": -1}, ValueError, "wait must not be negative, got -1"),
        ({"wait": "1"}, TypeError, "wait must be a number of seconds, got '1'"),
        ({"columns": 0}, ValueError, "columns must be 1 or more, got 0"),
        ({"columns": 2.0}, TypeError, "columns must be a whole number, got 2.0"),
        ({"columns": 2, "buffers": 1}, ValueError, "columns=2 is the layout of copies, .* publish with buffers=2"),
        ({"state_dict": {"a": 3}}, TypeError, "tensor 'a'"),
        ({"state_dict": {5: np.zeros(2)}}, TypeError, "the key 5 is no str"),
        ({"state_dict": None}, TypeError, "state_dict must be a mapping of names to tensors, got None"),
        ({"name": 5}, TypeError, "name must be a text that is not empty, got 5"),
    ],
)
def test_arguments_that_publish_refuses(options, error, text):
    given = {"name": "refused", "state_dict": {"a": np.zeros(2)}, **options}
    with pytest.raises(error, match=text):
        Weights.publish(given.pop("name"), given.pop("state_dict"), **given)


def test_name_that_is_published_already():
    with Weights.publish("once", {"a": (np.zeros(2), Box((0,), (2,), (4,)))}) as source:
        with pytest.raises(ValueError, match="publishes weights 'once' already"):
            Weights.publish("once", {})
        assert repr(source) == "<Source of weights 'once', version 0>"
    Weights.publish("once", {}).close()


def test_versions_are_whole_numbers():
    with Weights.publish("named", {"a": np.zeros(2)}) as source:
        with pytest.raises(TypeError, match="version must be a whole number, got '3'"), source.update("3"):
            pass
        assert source.version == 0
        target = Weights.attach("named", of=this_proc(), into={"a": np.zeros(2)})
        with pytest.raises(TypeError, match="version must be a whole number, got None"):
            target.wait(None)
        # Longer than a lock can wait.
        assert target.pull(timeout=1e12).get() == 0


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((3, (4,), (8,)), "offset must be whole numbers.*got 3"), (((0,), ("4",), (8,)), r"shape must be whole numbers.*got \('4',\)")],
)
def test_box_of_other_things_than_numbers(numbers, text):
    with pytest.raises(TypeError, match=text):
        Box(*numbers)

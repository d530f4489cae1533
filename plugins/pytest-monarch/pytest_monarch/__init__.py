"""The plug-in: its fixtures, which pytest finds by the entry point `pytest11`."""

from pytest_monarch.fixtures import host_mesh as host_mesh
from pytest_monarch.fixtures import mesh_failures as mesh_failures
from pytest_monarch.fixtures import proc_mesh as proc_mesh
from pytest_monarch.fixtures import pytest_configure as pytest_configure
from pytest_monarch.fixtures import unhandled_failures as unhandled_failures
from pytest_monarch.fixtures import universe as universe

__all__ = ["host_mesh", "mesh_failures", "proc_mesh", "pytest_configure", "unhandled_failures", "universe"]

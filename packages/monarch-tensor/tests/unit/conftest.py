"""These tests have no torch: the modules that they import know nothing of it."""

from tools.bare_package import bare_tensor_package

bare_tensor_package()

//! Submodules of the extension module. Python has no file to import them from, but a pickle names a class or function by its module.

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyType};

/// Registers a submodule under its full name, and sets the module of its classes and functions, unless they have a public one.
pub fn publish(module: &Bound<'_, PyModule>, name: &str) -> PyResult<()> {
    module.setattr("__name__", name)?;
    for value in module.dict().values() {
        let is_named = value.is_instance_of::<PyType>() || value.is_instance_of::<PyCFunction>();
        if is_named && !value.getattr("__module__")?.extract::<String>().is_ok_and(|m| m.starts_with("monarch.")) {
            value.setattr("__module__", name)?;
        }
    }
    module.py().import("sys")?.getattr("modules")?.set_item(name, module)
}

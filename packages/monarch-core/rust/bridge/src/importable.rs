//! Modules inside the file of another one: Python has nothing to import them from, and what is pickled is named by its module.

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyType};

/// Makes a module known by its full name, and its classes and functions as those of it, unless they name a public home themselves.
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

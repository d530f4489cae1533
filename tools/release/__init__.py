"""A release: `python -m tools.release FOLDER` makes the folder with all its files.

| module | task |
|---|---|
| `tree` | the sources of the release: the checkout, or a copy with the version of a nightly build |
| `sdists` | the sdist of each package, and the wheels that are built from the sdists alone |
| `native` | the files from which the native module was compiled, and their copies in its sdist |
| `licences` | the licences of the crates whose code is in the native wheel |
| `checks` | auditwheel, abi3audit and twine |
| `notes` | the changes of each wheel, from CHANGELOG.md |
| `statement` | checksums, and the provenance of each file |
"""

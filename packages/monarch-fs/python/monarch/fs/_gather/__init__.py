"""Live views of host directories on the client: confined roots, watchers, and the bridge to the server of the view.

Views are read-only. The kernel resolves every access below the confined root of the host, so no link leads out of the directory.
"""

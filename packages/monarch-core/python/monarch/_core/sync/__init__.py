"""Code sync: workspaces that hosts mirror."""

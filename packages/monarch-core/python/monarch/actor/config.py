"""Switches of `monarch.actor` that are plain module attributes."""

# Records of `logging` inside actors begin with `[actor={display}] `.
prefix_python_logs_with_actor: bool = True

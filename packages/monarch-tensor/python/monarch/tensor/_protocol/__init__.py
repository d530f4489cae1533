"""What the controller and the workers exchange and both know: commands, layouts, references, failures."""

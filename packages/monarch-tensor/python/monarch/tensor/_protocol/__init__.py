"""The protocol of the controller and the workers: commands, layouts, references, failures."""

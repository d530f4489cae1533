"""The controller of the workers of one mesh: its tensors and streams, its batches of commands, and the bound on its lead."""

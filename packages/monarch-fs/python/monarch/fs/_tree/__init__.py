"""Trees of files: nodes, tables, the difference of two tables, and the operations of a mounted tree."""

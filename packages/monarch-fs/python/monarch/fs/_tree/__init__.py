"""What a tree of files is: its nodes, its table, the difference of two tables, and the operations of a mounted tree."""

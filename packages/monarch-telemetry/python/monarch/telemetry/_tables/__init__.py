"""The tables: columns, types, what they mean, and an example each."""

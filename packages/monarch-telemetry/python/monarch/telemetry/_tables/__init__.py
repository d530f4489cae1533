"""The tables: their columns, types and meanings, and an example of each table.

A new table is declared in the `TABLES` of a module of this package, which `catalog.py` collects. Its rows come from `_ingest` (events) or
from `_collector` (live state).
"""

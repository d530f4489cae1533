"""Diagnoses as statements: the files `*.sql`, how they are found and read, and how answers are written for people and programs."""

"""Events of processes, made rows of tables: columns in, columns out; single rows are made only of what is rare."""

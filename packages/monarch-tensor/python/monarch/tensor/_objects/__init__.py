"""Objects and modules that are constructed on each rank."""

"""Import paths of torchmonarch 0.7: the tables of old names, and the modules that are made from them."""

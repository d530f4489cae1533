"""The detectors of this wheel: each is a pure function of a snapshot and its wait graph."""

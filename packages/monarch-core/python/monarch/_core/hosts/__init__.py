"""Hosts: attaching workers, spawning procs, and the meshes of both.

A mesh can be used before its hosts have joined and its procs have started: ids are chosen by the requesting process, and messages wait.
The set-up of a proc travels as bytes that the agent does not decode. A proc is ready when its `Hello` has arrived on its link;
`initialized` is resolved after its `bootstrap`.
"""

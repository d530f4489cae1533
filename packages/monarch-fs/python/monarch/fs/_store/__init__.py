"""The content-addressed store of a machine and user: chunks in append-only segments.

A chunk is named by its digest and verified before it is stored. The least recently used chunks are removed first; pinned chunks stay. A
full store fails no read: the content is passed on without being stored.
"""

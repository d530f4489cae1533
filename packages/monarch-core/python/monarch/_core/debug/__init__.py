"""The debugger: sessions in actors and the server that clients talk to."""

"""The interface of agents: tools over an engine, their compact answers, and the server of the Model Context Protocol."""

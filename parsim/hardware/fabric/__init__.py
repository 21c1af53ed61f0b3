"""The graph: links and machines, the networks that join them, routes, and how they are read and built from topology files."""

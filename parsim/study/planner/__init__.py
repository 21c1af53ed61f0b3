"""A scenario that changes one key at a time, answered in stages: a proven bound at once, a short run, the whole run.

Whoever shows it (`parsim.ui`) gets plain documents and asks for nothing else.
"""

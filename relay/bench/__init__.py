"""How fast this relay is on this machine against this database.

A run makes a schema of its own, fills an outbox, measures the ceiling (the bare claim-and-settle loop) and
the relay itself on the same kind of backlog, and drops the schema. Every figure is also a ratio of the
ceiling: the machine may be noisy, the ratio is what can be compared.
"""

"""How fast this relay is on this machine, against this database and broker.

A run makes a schema and destinations of its own and removes them again. It measures its ceilings (the bare
claim-and-settle loop without a broker, the bare client without a database), then the relay itself on a
backlog and under a steady load, each in processes of its own. Every figure is also a ratio of the ceilings:
the machine may be noisy, the ratio is what can be compared. Every stage ends with a check of what arrived.
"""

"""The same work through Outbox Relay and through what people would pick instead, in one run.

`.venv/bin/python benchmarks/run.py --help`. Nothing of the others is part of this repository: they are
installed into a cache directory when the comparison runs. docs/performance.md says what is measured and how.
"""

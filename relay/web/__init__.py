"""The operator's pages: what flows, what waits and why, and the means to act on it.

A starlette application and files that the browser runs as they are. It reads and acts through the store's
functions on connections of its own, few and with a time limit, so that no page can slow a relay down.
"""

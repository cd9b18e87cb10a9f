"""`relay demo`: the whole story on servers of its own, with nothing installed."""

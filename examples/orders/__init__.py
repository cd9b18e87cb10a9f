"""A small shop that loses no payment: an orders service, billing, and a checkout saga. See README.md."""

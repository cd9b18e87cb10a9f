"""Destinations as people may see them. URLs contain secrets; their hosts do not. Pure."""


def host_of(destination: str) -> str:
    """The host, with its port, of a destination that is a URL, else ''; the claim says the same in SQL."""
    parts = destination.split("/", 3)
    authority = parts[2] if len(parts) > 2 else ""
    return authority.partition("?")[0].partition("#")[0].rpartition("@")[2].lower()


def shown(destination: str) -> str:
    """A URL as its scheme and host, anything else as it is."""
    scheme, separator, _ = destination.partition("://")
    return f"{scheme}://{host_of(destination)}" if separator else destination

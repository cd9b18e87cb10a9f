"""A statement that changed fewer rows than it should fails, and takes back what it did.

So it needs no transaction around it in which somebody would have to look before the commit. What the server
says then is the failure of a cast, whose input is what we have to say.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from psycopg.errors import InvalidTextRepresentation

from relay.errors import Overtaken


def fails(condition: str, text: str, values: str) -> str:
    """SQL that is NULL, or ends the statement; every %% of the text stands for one of the values."""
    said = text.replace("%%", "%%s")
    return f"CASE WHEN {condition} THEN format('[[{said}]]', {values})::int END"


@contextmanager
def overtaken_is_told() -> Iterator[None]:
    try:
        yield
    except InvalidTextRepresentation as error:
        # The rest of the message is in whatever language the server speaks.
        said = re.search(r"\[\[(.*)\]\]", error.diag.message_primary or "")
        if said is None:
            raise
        raise Overtaken(said[1]) from None

"""The tables of the shop. One database here; in your system each service has its own, with its own outbox."""

import psycopg
from sqlalchemy import CheckConstraint, Engine, ForeignKey, create_engine, inspect, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from relay.errors import RelayError

STOCK = {"book": 1000, "lamp": 1000, "unicorn": 0}


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    __table_args__ = (CheckConstraint("cents > 0"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(ForeignKey("stock.item"))
    cents: Mapped[int]
    card: Mapped[str]
    address: Mapped[str]
    status: Mapped[str] = mapped_column(default="open")  # checkout, paid, shipped, refunded, cancelled


class Stock(Base):
    __tablename__ = "stock"

    item: Mapped[str] = mapped_column(primary_key=True)
    available: Mapped[int]


class LedgerEntry(Base):
    """Billing's. Nothing here forbids to credit an event twice: that is the inbox's work."""

    __tablename__ = "ledger"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]
    cents: Mapped[int]


class Saga(Base):
    __tablename__ = "sagas"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"), unique=True)
    status: Mapped[str] = mapped_column(default="running")  # done, compensated
    reason: Mapped[str | None]


class SagaStep(Base):
    """What has happened in a saga, in this order."""

    __tablename__ = "saga_steps"

    id: Mapped[int] = mapped_column(primary_key=True)
    saga_id: Mapped[int] = mapped_column(ForeignKey("sagas.id"))
    step: Mapped[str]


def make_engine(database_url: str) -> Engine:
    """An engine for any URL that libpq understands."""
    return create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database_url))


def create_tables(engine: Engine) -> None:
    with engine.begin() as conn:
        conn.execute(text("SELECT pg_advisory_xact_lock(20260701)"))  # others may be doing the same
        ours, there = set(Base.metadata.tables), set(inspect(conn).get_table_names())
        if ours & there and not ours <= there:
            raise RelayError(
                f"this database has a table of somebody else's that the shop would write to: "
                f"{', '.join(sorted(ours & there))}; give the shop a database of its own"
            )
        Base.metadata.create_all(conn)
        for item, available in STOCK.items():
            conn.execute(
                text("INSERT INTO stock VALUES (:item, :available) ON CONFLICT DO NOTHING"),
                {"item": item, "available": available},
            )

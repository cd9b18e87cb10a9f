"""The orders service: each request is one transaction that changes the order and emits the event about it.

Either both are committed or neither is. Publishing is not this service's business: it knows no broker.
"""

import os
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from examples.orders import saga
from examples.orders.shop import Shop
from examples.orders.tables import LedgerEntry, Order, Saga, SagaStep, Stock, make_engine
from relay import Outbox

outbox = Outbox()
sessions = sessionmaker()
app = FastAPI(title="Orders")


class NewOrder(BaseModel):
    item: str = "book"
    cents: Annotated[int, Field(gt=0, lt=2**31)]
    card: str = "4242"
    address: str = "1 Main Street"


@app.post("/orders", status_code=201)
def place(new: NewOrder) -> dict[str, Any]:
    with sessions.begin() as session:
        if session.get(Stock, new.item) is None:
            raise HTTPException(422, f"the shop does not sell this: {new.item}")
        order = Order(**new.model_dump())
        session.add(order)
        session.flush()  # gives the order its id
        emit(session, "OrderPlaced", order)
        return shown(order)


@app.post("/orders/{order_id}/pay")
def pay(order_id: int) -> dict[str, Any]:
    with sessions.begin() as session:
        order = locked(session, order_id)
        if order.status == "open":
            order.status = "paid"
            emit(session, "OrderPaid", order)
        elif order.status != "paid":  # a client that asks again is told so, and nothing is emitted
            raise HTTPException(409, f"order {order_id} is not open: {order.status}")
        return shown(order)


@app.post("/orders/{order_id}/checkout", status_code=202)
def checkout(order_id: int) -> dict[str, Any]:
    """Reserve, charge and ship: the saga does it from here on."""
    with sessions.begin() as session:
        order = locked(session, order_id)
        if order.status != "open":
            raise HTTPException(409, f"order {order_id} is not open: {order.status}")
        order.status = "checkout"
        started = Saga(order_id=order_id)
        session.add(started)
        session.flush()
        saga.start(session, started.id, order_id)
        return shown(order)


@app.get("/orders/{order_id}")
def show(order_id: int) -> dict[str, Any]:
    """The order, and what billing and the saga have made of it: here they share its database."""
    with sessions() as session:
        order = session.get(Order, order_id)
        if order is None:
            raise HTTPException(404, f"there is no order {order_id}")
        ledger = select(LedgerEntry.cents).where(LedgerEntry.order_id == order_id).order_by(LedgerEntry.id)
        steps = select(SagaStep.step).join(Saga).where(Saga.order_id == order_id).order_by(SagaStep.id)
        return shown(order) | {
            "ledger": list(session.scalars(ledger)),
            "saga": list(session.scalars(steps)),
        }


def locked(session: Session, order_id: int) -> Order:
    """The order under its row lock: who comes second sees what the first has done.

    The same lock puts the order's events in the order of their commits.
    """
    order = session.get(Order, order_id, with_for_update=True)
    if order is None:
        raise HTTPException(404, f"there is no order {order_id}")
    return order


def emit(session: Session, event_type: str, order: Order) -> None:
    payload = {"order_id": order.id, "cents": order.cents}
    outbox.emit(session, event_type, key=f"order:{order.id}", payload=payload)


def shown(order: Order) -> dict[str, Any]:
    return {"id": order.id, "item": order.item, "cents": order.cents, "status": order.status}


def main() -> None:
    sessions.configure(bind=make_engine(Shop.from_environment().database_url))
    host, port = os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", "8000"))
    uvicorn.run(app, host=host, port=port, log_level="warning")


if __name__ == "__main__":
    main()

"""`python -m examples.orders [relay] [service] [billing] [saga]`: the shop, or parts of it.

Each part is a process of its own, and is started again where somebody kills it. Ctrl-C ends them all, each in
its own good time.
"""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TypeAlias

import psycopg
from confluent_kafka import KafkaException
from pika.exceptions import AMQPError
from sqlalchemy.exc import SQLAlchemyError

from examples.orders.servers import make_directory, prepare, with_servers
from examples.orders.shop import Shop
from relay.demo.interruption import Interrupted, Interruption
from relay.demo.processes import launch
from relay.errors import RelayError
from relay.logs import redact

PARTS = {
    "relay": ["relay", "run"],
    "service": ["examples.orders.service"],
    "billing": ["examples.orders.billing"],
    "saga": ["examples.orders.saga"],
}
STOP_SECONDS = 30.0
LAST_WORDS = 2000  # characters of a log
USAGE = f"python -m examples.orders [{'] ['.join(PARTS)}]; no name means all of them. See README.md."

Child: TypeAlias = "subprocess.Popen[bytes]"


def run(names: list[str]) -> None:
    with ExitStack() as stack:
        interruption = stack.enter_context(Interruption())
        directory = make_directory(stack)
        shop = with_servers(Shop.from_environment(), directory, stack)
        prepare(shop)
        children = {name: start(name, shop, directory, stack) for name in names}
        welcome(children, shop)
        try:
            while True:
                interruption.sleep(0.1)
                for name, child in children.items():
                    if was_killed(name, child, directory):
                        children[name] = start(name, shop, directory, stack)
                        say(f"{name} was killed, and is back as process {children[name].pid}")
        except Interrupted:
            say("the shop closes")
            for child in children.values():
                child.terminate()


def start(name: str, shop: Shop, directory: Path, stack: ExitStack) -> Child:
    """Start this part; it is asked to stop when the stack is left."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("RELAY_")}
    with (directory / f"{name}.log").open("wb") as log:
        # In a session of its own: Ctrl-C reaches this process alone, which then asks the others to stop.
        child = launch(
            [sys.executable, "-m", *PARTS[name]],
            log if name == "relay" else sys.stdout.buffer,
            env=inherited | shop.environment(),
        )
    stack.callback(stop, name, child)
    return child


def stop(name: str, child: Child) -> None:
    child.terminate()
    try:
        child.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        say(f"{name} did not stop within {STOP_SECONDS:.0f} s and is killed")
        child.kill()
        child.wait()


def was_killed(name: str, child: Child, directory: Path) -> bool:
    """Whether it has to be started again. One that has failed by itself would fail again."""
    code = child.poll()
    if code is not None and code >= 0:
        said = (directory / f"{name}.log").read_text(errors="replace")[-LAST_WORDS:]
        raise RelayError(f"{name} ended by itself with exit code {code}\n{said}")
    return code is not None


def welcome(children: dict[str, Child], shop: Shop) -> None:
    say(f"running, until Ctrl-C: {', '.join(f'{name} {child.pid}' for name, child in children.items())}")
    if "service" in children:
        say(f"the shop: http://127.0.0.1:{os.environ.get('PORT', '8000')}/docs")
    new = {k: v for k, v in shop.environment().items() if os.environ.get(k) != v}
    if new:
        say("to use relay, or to start more parts, from another terminal:")
        say("".join(f"  export {name}='{value}'\n" for name, value in new.items()))


def say(text: str) -> None:
    print(text, flush=True)


def main() -> int:
    names = sys.argv[1:] or list(PARTS)
    if any(name not in PARTS for name in names):
        print(USAGE, file=sys.stderr)
        return 2
    try:
        run(names)
    except (RelayError, psycopg.Error, SQLAlchemyError, KafkaException, AMQPError, TimeoutError) as error:
        print(f"error: {redact(str(error).strip()) or type(error).__name__}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

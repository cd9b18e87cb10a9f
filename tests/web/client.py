"""A browser's requests without a browser: cookies, origin and CSRF token as a test wants them."""

import http.client
import json
from dataclasses import dataclass, field
from typing import Any

VIEWER = "the-token-to-look-with"
OPERATOR = "the-token-to-act-with"


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class Client:
    """One client of a server; `cookie` is sent once there is one."""

    port: int
    cookie: str = ""
    csrf: str = ""
    headers: dict[str, str] = field(default_factory=dict)

    def get(self, path: str, **headers: str) -> Answer:
        return self._ask("GET", path, None, headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        """As these pages send it, unless headers say otherwise; a header of '' is left out."""
        usual = {
            "Origin": f"http://127.0.0.1:{self.port}",
            "Content-Type": "application/json",
            "X-Relay-CSRF": self.csrf,
        }
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        return self._ask("POST", path, content, usual | given)

    def sign_in(self, token: str, name: str = "") -> Answer:
        answer = self.post("/api/sign-in", {"token": token, "name": name})
        if answer.status == 200:
            self.cookie = answer.headers["set-cookie"].partition(";")[0]
            self.csrf = self.get("/api/session").json["csrf"] or ""
        return answer

    def _ask(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        sent = {"Cookie": self.cookie} | self.headers | {k.replace("_", "-"): v for k, v in headers.items()}
        try:
            connection.request(method, path, body, {name: value for name, value in sent.items() if value})
            answer = connection.getresponse()
            named = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, named, answer.read().decode())
        finally:
            connection.close()

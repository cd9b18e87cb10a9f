// Who looks with a token, and how to be allowed to change something.

import { h, replace } from "./dom.js";
import { post } from "./api.js";

export function signIn({ body, session, params, go, again, title }) {
  document.getElementById("main").removeAttribute("aria-busy");
  if (session.closed) {
    title("No token is set");
    replace(body, h("div", { class: "card narrow" }, h("p", {}, "These pages can be reached from other machines, so they ask for a token, and none is set."), how()));
    return;
  }
  if (session.may_look && !session.can_operate) {
    title("Read-only");
    replace(body, h("div", { class: "card narrow" }, h("p", {}, "Everybody who can open these pages may look. Nothing can be changed from here, because no operator's token is set."), how()));
    return;
  }
  if (session.role === "operator") { go("/", { instead: true }); return; }
  const token = h("input", { type: "password", id: "token", autocomplete: "current-password", required: true });
  const name = h("input", { type: "text", id: "name", autocomplete: "username", maxlength: 60 });
  const said = h("p", { class: "error-text", role: "alert" });
  const button = h("button", { type: "submit", class: "button primary wide" }, "Sign in");
  const form = h("form", { class: "card narrow" },
    h("p", {}, session.may_look ? "With the operator's token you may pause, resume, retry and skip. Everybody else here may only look." : "These pages ask for a token: that of a reader, or the operator's, who may also change something."),
    h("label", { for: "token" }, "Token"), token, h("label", { for: "name" }, "Your name, for the audit trail (if you are an operator)"), name, said, button);
  form.addEventListener("submit", async (submit) => {
    submit.preventDefault();
    button.disabled = true;
    replace(said);
    try {
      await post("/api/sign-in", { token: token.value, name: name.value });
      const next = params.get("next") || "/";
      history.replaceState(null, "", next.startsWith("/") && !next.startsWith("//") ? next : "/");
      again();
    } catch (error) {
      replace(said, error.message);
      token.select();
      button.disabled = false;
    }
  });
  replace(body, form);
  token.focus();
}

function how() {
  return h("div", {}, h("p", {}, "Set a token of 12 characters or more where the relay is configured, and start it again:"),
    h("pre", { tabindex: "0" }, "export RELAY_HTTP_TOKEN=$(openssl rand -hex 16)      # may look\nexport RELAY_OPERATOR_TOKEN=$(openssl rand -hex 16)  # may look and act"));
}

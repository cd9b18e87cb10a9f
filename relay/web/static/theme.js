// Before anything is drawn, so that nobody sees the wrong theme flash by. Stored: light or dark; else the system's.
(function () {
  let chosen = null;
  try { chosen = localStorage.getItem("relay-theme"); } catch { /* storage may be switched off */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();

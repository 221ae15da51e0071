// Exchange the code in the fragment of the link for a cookie, then show the page.
const state = document.getElementById("state");

async function signIn(code) {
  history.replaceState(null, "", location.pathname + location.search);
  const response = await fetch("/session", { method: "POST", body: code });
  if (response.ok) location.reload();
  else state.textContent = await response.text();
}

if (location.hash.length > 1) signIn(location.hash.slice(1));
addEventListener("hashchange", () => signIn(location.hash.slice(1)));

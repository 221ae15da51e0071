for (const button of document.querySelectorAll("button[data-open]")) {
  button.hidden = false;
  button.addEventListener("click", () => {
    const open = button.dataset.open === "yes";
    for (const call of document.querySelectorAll("details.call")) call.open = open;
  });
}

// A click on a legend entry greys out the curves that were not asked for; another click, or Escape, takes it back.
for (const overlay of document.querySelectorAll("svg.curves")) {
  const entries = [...overlay.querySelectorAll(".entry")];
  const curves = [...overlay.querySelectorAll("path")];
  const show = () => {
    const asked = entries.map((entry) => entry.getAttribute("aria-pressed") === "true");
    overlay.classList.toggle("asked", asked.includes(true));
    curves.forEach((curve, place) => curve.classList.toggle("shown", asked[place]));
  };
  const turn = (entry, on) => {
    entry.setAttribute("aria-pressed", String(on));
    show();
  };
  overlay.classList.add("live");
  entries.forEach((entry) => {
    entry.setAttribute("tabindex", "0");
    entry.addEventListener("click", () => turn(entry, entry.getAttribute("aria-pressed") !== "true"));
    entry.addEventListener("keydown", (event) => {
      if (event.key === "Escape") entries.forEach((one) => turn(one, false));
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      turn(entry, entry.getAttribute("aria-pressed") !== "true");
    });
  });
}

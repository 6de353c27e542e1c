// Formulas of the method, set by KaTeX as the page loads; the TeX stays readable without it.
document.addEventListener("DOMContentLoaded", () => {
  for (const place of document.querySelectorAll(".arithmatex")) {
    renderMathInElement(place, { throwOnError: false });
  }
});

// What scripts of the theme add to a page, or take from it, for those who use the keyboard or a screen reader.
new MutationObserver(() => {
  const boxes = ".md-typeset__scrollwrap:not([tabindex]), pre > code:not([tabindex])"
  for (const box of document.querySelectorAll(boxes)) box.tabIndex = 0
  for (const bar of document.querySelectorAll("nav.md-code__nav:not([role])")) bar.role = "group"
  for (const field of document.querySelectorAll("input.md-toggle:not([aria-label])")) field.ariaLabel = "Menu"
}).observe(document.documentElement, {childList: true, subtree: true, attributeFilter: ["tabindex"]})

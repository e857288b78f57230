// The theme creates these elements in the browser: the bars of copy buttons would be landmarks
// without a name, and tables and code wider than the window could not be scrolled by keyboard.
const adapt = () => {
  for (const bar of document.querySelectorAll("nav.md-code__nav")) bar.setAttribute("role", "presentation");
  for (const frame of document.querySelectorAll(".md-typeset__scrollwrap, pre > code")) {
    if (frame.scrollWidth > frame.clientWidth) frame.tabIndex = 0;
    else frame.removeAttribute("tabindex");
  }
};
new MutationObserver(adapt).observe(document.body, { childList: true, subtree: true });
addEventListener("resize", adapt);
adapt();

(() => {
  'use strict';
  const slides = [...document.querySelectorAll('.slide')];
  const here = () => slides.reduce((best, each, at) =>
    Math.abs(each.getBoundingClientRect().top) < Math.abs(slides[best].getBoundingClientRect().top) ? at : best, 0);
  const step = {ArrowRight: 1, ArrowDown: 1, PageDown: 1, ' ': 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1, Home: -1e9, End: 1e9};
  addEventListener('keydown', event => {
    const by = event.key === ' ' && event.shiftKey ? -1 : step[event.key];
    if (!by || event.ctrlKey || event.metaKey || event.altKey || event.target.closest('pre, input, summary')) return;
    event.preventDefault();
    const slide = slides[Math.max(0, Math.min(slides.length - 1, here() + by))];
    slide.scrollIntoView();
    history.replaceState(null, '', '#' + slide.id);
  });
})();

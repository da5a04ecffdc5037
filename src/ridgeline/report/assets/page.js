(() => {
  'use strict';
  const root = document.documentElement, all = (what, inside = document) => [...inside.querySelectorAll(what)];
  root.classList.add('js');

  all('.copy').forEach(button => { button.hidden = false; });
  document.addEventListener('click', async event => {
    const button = event.target.closest('.copy');
    if (!button) return;
    const text = button.parentNode.querySelector('pre');
    try { await navigator.clipboard.writeText(text.textContent); button.textContent = 'copied'; }
    catch { getSelection().selectAllChildren(text); button.textContent = 'selected: press Ctrl-C'; }
    setTimeout(() => { button.textContent = 'copy'; }, 2500);
  });

  const value = (row, at) => row.cells[at].dataset.v ?? row.cells[at].textContent;
  const sort = (table, head, at) => {
    const up = head.getAttribute('aria-sort') !== 'ascending', body = table.tBodies[0];
    all('th', table).forEach(each => each.removeAttribute('aria-sort'));
    head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
    const rows = [...body.rows], full = rows.filter(row => value(row, at)), empty = rows.filter(row => !value(row, at));
    const numbers = full.every(row => !isNaN(value(row, at)));
    full.sort(numbers ? (a, b) => value(a, at) - value(b, at) : (a, b) => value(a, at).localeCompare(value(b, at), undefined, {numeric: true}));
    body.append(...(up ? full : full.reverse()), ...empty);
  };
  for (const table of all('table.sortable')) all('th', table).forEach((head, at) => {
    head.tabIndex = 0;
    head.onclick = () => sort(table, head, at);
    head.onkeydown = event => { if (event.key === 'Enter') sort(table, head, at); };
  });

  const runs = () => all('table.sortable tbody tr'), low = cell => cell.textContent.trim().toLowerCase();
  // `tp 8` asks for that value in the column tp and #12 for that trial; any other word may stand in any cell
  const fits = (row, parts) => {
    const cells = [...row.cells].map(low), heads = [...row.closest('table').tHead.rows[0].cells].map(low);
    for (let at = 0; at < parts.length; at++) {
      const column = at + 1 < parts.length ? heads.indexOf(parts[at]) : -1;
      if (column >= 0 ? cells[column] !== parts[++at] : parts[at][0] === '#' ? cells[0] !== parts[at] : !cells.some(cell => cell.includes(parts[at]))) return false;
    }
    return true;
  };
  for (const tools of all('.tools')) {
    tools.hidden = false;
    const input = tools.querySelector('input'), told = tools.querySelector('span');
    input.oninput = () => {
      const parts = input.value.toLowerCase().split(/\s+/).filter(Boolean), rows = runs();
      let shown = 0;
      for (const row of rows) {
        row.hidden = !fits(row, parts);
        shown += !row.hidden;
      }
      told.textContent = parts.length ? `${shown} of ${rows.length} runs` : '';
      const folded = document.getElementById('confirm-runs');
      if (folded && parts.length) folded.open = all('tbody tr', folded).some(row => !row.hidden);
    };
  }

  // a mark of a figure and the run's row in the table show each other
  const light = (trial, scroll) => {
    all('.lit').forEach(each => each.classList.remove('lit'));
    const found = all(`[data-t="${trial}"]`);
    found.forEach(each => each.classList.add('lit'));
    const row = found.find(each => each.tagName === 'TR');
    if (row) try { history.replaceState(null, '', '#run-' + trial); } catch { /* a sandboxed frame has no address */ }
    if (scroll && row) {
      const fold = row.closest('details');
      if (fold) fold.open = true;
      row.scrollIntoView({block: 'center'});
    }
  };
  document.addEventListener('click', event => {
    const mark = event.target.closest('svg [data-t]'), row = event.target.closest('tr[data-t]');
    if (mark) light(mark.dataset.t, true);
    else if (row && !event.target.closest('a')) light(row.dataset.t, false);
  });
  // an address that ends in #run-12 leads to that run
  const named = () => { const run = /^#run-(\d+)$/.exec(location.hash); if (run) light(run[1], true); };
  addEventListener('hashchange', named);
  named();
  // the value of a mark beside it, sooner than the browser shows its title
  const tip = Object.assign(document.createElement('div'), {className: 'tip', hidden: true});
  document.body.append(tip);
  document.addEventListener('pointerover', event => {
    const mark = event.target.closest?.('svg[role=img] *'), title = mark?.querySelector(':scope > title');
    if (title) { mark.dataset.tip = title.textContent; title.remove(); }
    tip.hidden = !mark?.dataset.tip;
    if (tip.hidden) return;
    tip.textContent = mark.dataset.tip;
    const box = mark.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(box.right + 8, innerWidth - tip.offsetWidth - 8)) + 'px';
    tip.style.top = Math.max(4, box.top - tip.offsetHeight - 6) + 'px';
  });

  // where the reader is, in the contents
  const links = new Map(all('.contents a').map(link => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) {
      all('.contents .here').forEach(each => { each.classList.remove('here'); each.removeAttribute('aria-current'); });
      const link = links.get(entry.target.id);
      link?.classList.add('here');
      link?.setAttribute('aria-current', 'true');
      link?.parentNode.scrollTo({left: link.offsetLeft - 24});
    }
  }, {rootMargin: '-10% 0px -80% 0px'});
  all('main > section').forEach(each => seen.observe(each));
  addEventListener('beforeprint', () => all('details:not(.numbers)').forEach(each => { each.open = true; }));
})();

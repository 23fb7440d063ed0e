// What Gradio's own parts lack for who uses no mouse or cannot see the page.
(() => {
  // Accordions are buttons that do not say whether they are open; a table that can be scrolled
  // must be reached to be scrolled, and one that cannot is no stop for Tab.
  const tend = () => {
    for (const fold of document.querySelectorAll('button.label-wrap')) {
      const open = String(fold.classList.contains('open'));
      if (fold.getAttribute('aria-expanded') !== open) fold.setAttribute('aria-expanded', open);
    }
    // The icons of the footer stand beside their names.
    for (const icon of document.querySelectorAll('footer img:not([alt=""])')) icon.alt = '';
    for (const box of document.querySelectorAll('.ft-rows:not([role]), #card table')) {
      const scrolls = box.scrollWidth > box.clientWidth || box.scrollHeight > box.clientHeight;
      if (scrolls !== box.hasAttribute('tabindex')) {
        if (scrolls) box.tabIndex = 0; else box.removeAttribute('tabindex');
      }
    }
    search();
    differ();
    refused();
    const [gone, refuge] = focused ?? [];
    const next = gone && document.querySelector(refuge);
    if (next?.checkVisibility() && !document.querySelector(gone)?.checkVisibility()) {
      const now = document.activeElement;
      if (now === document.body || !now.checkVisibility()) next.focus({preventScroll: true});
      focused = null;
    }
  };
  // Parts that give way to others, and what gets the focus when one was in them.
  const refuges = [['#setup', '#new-run'], ['#folded', '#train'], ['#all-runs', '#all-runs-again'],
    ['#run-head', '#runs-table .ft-open']];
  let focused = null;
  document.addEventListener('focusin', (event) => {
    focused = refuges.find(([part]) => event.target.closest?.(part)) ?? null;
  });
  let due = 0;
  const soon = () => { due ||= setTimeout(() => { due = 0; tend(); }, 150); };
  for (const what of ['click', 'focusin']) document.addEventListener(what, soon);
  addEventListener('resize', soon);
  // The root, since Gradio may run this before there is a body, or after the page was loaded.
  new MutationObserver(soon).observe(document.documentElement, {childList: true, subtree: true});
  soon();
  // Arrows go from tab to tab (https://www.w3.org/WAI/ARIA/apg/patterns/tabs/).
  document.addEventListener('keydown', (event) => {
    const tab = event.target.closest?.('[role=tab]');
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!tab || !step || event.ctrlKey || event.altKey || event.metaKey) return;
    const all = [...tab.closest('[role=tablist]').querySelectorAll('[role=tab]')];
    go(event, all, tab, step);
  });
  const go = (event, all, from, step) => {
    const next = all[(all.indexOf(from) + step + all.length) % all.length];
    event.preventDefault();
    next.focus();
    next.click();
  };
  // Arrows go from choice to choice: each of Gradio's has a name of its own, so the browser takes
  // them for groups of one.
  document.addEventListener('keydown', (event) => {
    const choice = event.target.closest?.('fieldset input[type=radio]');
    const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
    if (!choice || !step) return;
    go(event, [...choice.closest('fieldset').querySelectorAll('input[type=radio]')], choice, step);
  });

  // The form: a box hides the settings that do not match, and opens Advanced for those that do; what
  // differs from the preset says so, and what was refused is marked.
  const knobs = (within) => [...document.querySelectorAll(`${within} [id^="knob-"]`)];
  const plainly = (text) => text.toLowerCase().replaceAll('_', ' ');
  const search = () => {
    const box = document.querySelector('#find-knob :is(input, textarea)');
    const status = document.querySelector('#knobs-shown p');
    if (!box || !status) return;
    const words = plainly(box.value).split(/\s+/).filter(Boolean);
    const matches = (text) => words.every((word) => plainly(text).includes(word));
    const all = knobs('#setup'), left = all.filter((knob) => matches(knob.textContent));
    for (const knob of all) knob.toggleAttribute('data-left-out', !left.includes(knob));
    const now = `${left.length} / ${all.length}`;
    const count = status.querySelector('b') || status.appendChild(document.createElement('b'));
    if (count.textContent !== now) count.textContent = now;
    status.hidden = !words.length;
    const elsewhere = JSON.parse(status.dataset.elsewhere).some(matches);
    document.querySelector('#knobs-elsewhere')?.toggleAttribute('data-shown', words.length && elsewhere);
    if (words.length) unfold(); // what is folded is not in the document
  };
  const unfold = () => document.querySelector('#advanced > button.label-wrap:not(.open)')?.click();
  const refused = () => {
    const of = (where) => [...document.querySelectorAll(`${where} [data-field]`)].map(
      (problem) => [`knob-${problem.dataset.field}`, problem]);
    const pressed = new Map(of('#train-message')), first = pressed.values().next().value;
    const problems = new Map([...of('#costs'), ...pressed]);
    if ([...pressed.keys()].some((id) => !document.getElementById(id))) unfold();
    for (const knob of knobs('')) {
      const problem = problems.get(knob.id), box = knob.querySelector('input, textarea');
      const text = problem?.querySelector('span').textContent ?? '';
      const warns = problem?.dataset.warns !== undefined;
      if (!box || (text === (knob.dataset.problem ?? '') && warns === ('warns' in knob.dataset))) continue;
      knob.toggleAttribute('data-warns', warns);
      if (!problem) {
        delete knob.dataset.problem;
        for (const name of ['aria-invalid', 'aria-describedby']) box.removeAttribute(name);
        continue;
      }
      problem.id = `problem-${problem.dataset.field}`;
      knob.dataset.problem = text;
      box.setAttribute('aria-invalid', String(!warns));
      box.setAttribute('aria-describedby', problem.id);
      if (problem === first) {
        setTimeout(() => { box.scrollIntoView({block: 'center'}); box.focus(); }, 100);
      }
    }
  };
  const differ = () => {
    const chosen = document.querySelector('#preset input')?.value;
    const kept = [...document.querySelectorAll('[data-preset]')].find((one) => one.textContent === chosen);
    if (!kept) return;
    const preset = JSON.parse(kept.dataset.preset);
    const word = document.querySelector('#preset-word p').textContent;
    for (const one of knobs('')) {
      const name = one.id.slice(5), box = one.querySelector('input, textarea');
      if (!box || !(name in preset)) continue;
      const given = box.type === 'checkbox' ? box.checked : box.value, value = preset[name];
      const same = typeof value === 'number' ? given !== '' && Number(given) === value
        : given === value;
      const says = same ? '' : `\u25cf ${word} ${value === '' ? '\u2013' : value}`;
      if ((one.dataset.differs ?? '') === says) continue;
      if (says) one.dataset.differs = says; else delete one.dataset.differs;
    }
  };
  document.addEventListener('input', (event) => {
    if (event.target.closest?.('#find-knob')) search();
    soon();
  });
  document.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || !event.target.value || !event.target.closest?.('#find-knob')) return;
    event.target.value = '';
    event.target.dispatchEvent(new Event('input', {bubbles: true}));
  });
  // The values at the pointer. A plot carries those of its points; a stop is a place that can be
  // pointed at: an x, and which of the points there (a ROC curve has several above each other).
  // A live chart is drawn anew while it is looked at: what is shown is held by where the plot
  // stands on the page, and shown again on the new one.
  let held = null; // {plot, host, index, x, nth, focused, pointed}
  const read = (plot) => {
    const of = `${plot.dataset.box} ${plot.dataset.lines}`; // a plot may get another run's
    if (plot.ftRead?.of === of) return plot.ftRead;
    const [right, low, high] = plot.dataset.box.split(' ').map(Number);
    const stops = new Map();
    const lines = JSON.parse(plot.dataset.lines).map(({name, x, y, straight}, n) => {
      const line = {name, straight, x: x.split(' ').map(Number), y: y.split(' ')};
      let nth = 0;
      line.x.forEach((at, point) => {
        nth = point && line.x[point - 1] === at ? nth + 1 : 0;
        const key = `${at} ${nth}`;
        if (!straight && !stops.has(key)) stops.set(key, {x: at, nth, at: {}});
        if (!straight) stops.get(key).at[n] = point;
      });
      return line;
    });
    const sorted = [...stops.values()].sort((a, b) => a.x - b.x || a.nth - b.nth);
    return plot.ftRead = {of, right, low, high, lines, stops: sorted};
  };
  const least = (list, far) => list.reduce((best, one) => far(one) < far(best) ? one : best);
  const near = (xs, x) => least([...xs.keys()], (n) => Math.abs(xs[n] - x));
  const between = (line, x) => { // of a straight line
    const [x0, x1] = line.x, [y0, y1] = line.y.map(Number);
    return (y0 + (y1 - y0) * (x - x0) / (x1 - x0)).toFixed(4);
  };
  const plain = (x) => finetune.number(Number.isInteger(x) ? x.toLocaleString('en') : x.toFixed(3));
  const made = (tag, name, text = '') => {
    const one = document.createElement(tag);
    if (name) one.className = name;
    one.textContent = text;
    return one;
  };
  const show = (plot, stop) => {
    const {right, low, high, lines} = read(plot);
    const left = 100 * stop.x / right, over = made('div', 'ft-at'), box = made('div', 'ft-readout');
    const swatches = plot.closest('.ft-chart').querySelectorAll('.ft-legend .ft-swatch');
    const hair = over.appendChild(made('i', 'ft-hair')), {across, epoch, turn} = plot.dataset;
    const turns = epoch ? `, ${turn.replace(/0.00/, finetune.number((stop.x / epoch).toFixed(2)))}` : '';
    const head = `${across} ${plain(stop.x)}${turns}`;
    hair.style.left = `${left}%`;
    box.append(made('b', '', head));
    const told = lines.map((line, n) => {
      const point = stop.at[n] ?? near(line.x, stop.x);
      const value = line.straight ? between(line, stop.x) : line.y[point];
      const written = finetune.number(value);
      const away = !line.straight && line.x[point] !== stop.x ? `(${plain(line.x[point])})` : '';
      const row = box.appendChild(made('span')), swatch = swatches[n].cloneNode(true);
      row.append(swatch, made('span', '', line.name), made('b', '', written));
      if (away) row.append(made('small', '', away));
      else {
        const spot = over.appendChild(made('i', `ft-spot ${swatch.classList[1]}`));
        spot.style.left = `${left}%`;
        spot.style.top = `${100 * (high - Number(value)) / (high - low)}%`;
      }
      return `${line.name} ${written}${away && ` ${away}`}`;
    });
    box.style[left > 50 ? 'left' : 'right'] = '4px';
    over.setAttribute('aria-hidden', 'true'); // it is told as the slider's value
    over.append(box);
    plot.querySelector('.ft-at')?.remove();
    plot.append(over);
    const spoken = `${head}: ${told.join(', ')}`;
    if (plot.getAttribute('aria-valuetext') !== spoken) {
      plot.setAttribute('aria-valuenow', stop.x);
      plot.setAttribute('aria-valuetext', spoken);
    }
    held = {...held, x: stop.x, nth: stop.nth};
  };
  const hold = (plot, how) => {
    if (held?.plot !== plot) {
      letGo();
      const host = plot.closest('[id]');
      held = {plot, host: host.id, index: [...host.querySelectorAll('.ft-plot')].indexOf(plot)};
    }
    Object.assign(held, how);
  };
  const letGo = () => {
    held?.plot.querySelector('.ft-at')?.remove();
    held = null;
  };
  const stay = (plot) => { // at what is held, or as near as the new points allow
    const {stops} = read(plot);
    const x = held.x ?? stops.at(-1).x;
    const close = stops[near(stops.map((one) => one.x), x)].x;
    const there = stops.filter((one) => one.x === close);
    show(plot, there[Math.min(held.nth ?? there.length - 1, there.length - 1)]);
  };
  const readable = (event) => event.target.closest?.('.ft-plot[data-lines]');
  const left = () => { // a tap stays, and so does whoever came by the keyboard
    if (!held?.pointed || held.kept) return;
    if (held.plot.matches(':focus-visible')) held.pointed = false; else letGo();
  };
  let seen = ''; // a browser repeats the last move when what lies under the pointer was replaced
  const point = (event) => {
    const plot = readable(event), where = `${event.clientX} ${event.clientY}`;
    if (!plot) {
      left();
      return;
    }
    if (where === seen && held?.plot === plot && held.pointed) return;
    seen = where;
    const {right, low, high, lines, stops} = read(plot), box = plot.getBoundingClientRect();
    if (!stops.length) return;
    hold(plot, {pointed: true, kept: event.pointerType === 'touch'});
    const x = right * (event.clientX - box.left) / box.width;
    const close = stops[near(stops.map((one) => one.x), x)].x;
    const y = high - (high - low) * (event.clientY - box.top) / box.height;
    const height = ({at}) => Number(lines[Object.keys(at)[0]].y[Object.values(at)[0]]);
    show(plot, least(stops.filter((one) => one.x === close), (one) => Math.abs(height(one) - y)));
  };
  for (const what of ['pointermove', 'pointerover']) document.addEventListener(what, point);
  document.addEventListener('pointerdown', (event) => {
    if (held?.kept && !readable(event)) letGo();
    point(event);
  });
  document.addEventListener('pointerleave', left);
  document.addEventListener('focusin', (event) => {
    const plot = readable(event);
    if (!plot) return;
    hold(plot, {focused: true});
    if (!held.pointed && read(plot).stops.length) stay(plot);
  });
  document.addEventListener('focusout', (event) => {
    const plot = readable(event);
    if (!plot || held?.plot !== plot) return;
    // A plot that is being replaced loses the focus too, and `redrawn` gives it back.
    setTimeout(() => {
      if (held?.plot !== plot || document.activeElement === plot) return;
      if (held.pointed) held.focused = false; else letGo();
    });
  });
  document.addEventListener('keydown', (event) => {
    const plot = readable(event);
    if (!plot || event.ctrlKey || event.altKey || event.metaKey) return;
    const {stops} = read(plot), last = stops.length - 1;
    if (event.key === 'Escape') letGo();
    const leap = Math.max(1, Math.round(last / 10));
    const step = {ArrowRight: 1, ArrowLeft: -1, ArrowUp: 1, ArrowDown: -1, PageUp: leap,
      PageDown: -leap, Home: -Infinity, End: Infinity}[event.key];
    if (!step || last < 0) return;
    event.preventDefault();
    hold(plot, {focused: true, pointed: false, kept: false});
    const now = stops.findIndex((one) => one.x === held.x && one.nth === held.nth);
    show(plot, stops[Math.min(last, Math.max(0, (now < 0 ? last : now) + step))]);
  });
  const redrawn = () => {
    if (!held || held.plot.isConnected) return;
    const plot = document.getElementById(held.host)?.querySelectorAll('.ft-plot')[held.index];
    if (!plot?.dataset.lines || !read(plot).stops.length) { held = null; return; }
    const {focused} = held;
    held.plot = plot;
    stay(plot);
    if (focused && document.activeElement === document.body) plot.focus({preventScroll: true});
  };
  new MutationObserver(redrawn).observe(document.documentElement, {childList: true, subtree: true});
})();
// What the browser alone does in events of the tabs: `js=` and `js_on_load=` in finetune/ui/tabs.
window.finetune = (() => {
  const keep = {__type__: 'update'}; // an output of the event that stays as it is
  // An answer is awaited: it stands where the answer will be, or what the answer clears.
  const pending = '<div class="ft-bar ft-pending" aria-hidden="true"><i class="ft-unknown"></i></div>';

  // Data. The same pairs in both choosers, and nothing left of the former source. Gradio tells of a
  // choice also when a chooser is merely left: then the other one has the same already.
  const otherPairs = (pairs, other, blank) =>
    pairs === other ? [keep, keep, ...blank.map(() => keep)] : [pairs, pending, ...blank];

  // A number as it is written in English, with the separators of the page's language.
  const number = (text) => {
    const marks = document.querySelector('#separators')?.dataset;
    return marks ? text.replace(/[.,]/g, (mark) => mark === ',' ? marks.group : marks.decimal) : text;
  };

  return {otherPairs, number, pending};
})();
// Tells the server the language in which Gradio shows the page, as it writes it into the document.
(() => {
  // In a frame of another site (a Space) a cookie is kept only with these attributes.
  const framed = 'SameSite=None; Secure; Partitioned';
  const attributes = location.protocol === 'https:' ? framed : 'SameSite=Lax';
  const tell = () => {
    const language = document.documentElement.lang;
    document.cookie = `finetune-language=${language}; path=/; ${attributes}`;
  };
  new MutationObserver(tell).observe(
    document.documentElement, {attributes: true, attributeFilter: ['lang']});
  tell();
})();

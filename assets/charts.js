// Charts: the values at the pointer, a chart opened large, and one saved as PNG.
(() => {
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
    const lines = JSON.parse(plot.dataset.lines).map(({name, x, y, straight, style}, n) => {
      const line = {name, straight, style, x: x.split(' ').map(Number), y: y.split(' ')};
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
  const height = (plot, value) => 'log' in plot.dataset ? Math.log10(value) : Number(value);
  // Of many lines the one at the pointer is told, or by the keyboard those that come first.
  const MANY = 8;
  const told = (plot, lines, stop) => {
    const there = lines.map((line, n) => n).filter((n) => stop.at[n] !== undefined);
    if (lines.length <= MANY) return [...lines.keys()];
    if (held?.y === undefined) return there.slice(-MANY);
    return [least(there, (n) => Math.abs(height(plot, lines[n].y[stop.at[n]]) - held.y))];
  };
  const show = (plot, stop) => {
    const {right, low, high, lines} = read(plot);
    const swatches = plot.closest('.ft-chart').querySelectorAll('.ft-legend .ft-swatch');
    const left = 100 * stop.x / right, over = made('div', 'ft-at'), box = made('div', 'ft-readout');
    const hair = over.appendChild(made('i', 'ft-hair')), {across, epoch, turn} = plot.dataset;
    const turns = epoch ? `, ${turn.replace(/0.00/, finetune.number((stop.x / epoch).toFixed(2)))}` : '';
    const head = `${across} ${plain(stop.x)}${turns}`;
    hair.style.left = `${left}%`;
    box.append(made('b', '', head));
    const texts = told(plot, lines, stop).map((n) => {
      const line = lines[n], swatch = swatches[n]?.cloneNode(true) ?? made('i', `ft-key ft-${line.style}`);
      const point = stop.at[n] ?? near(line.x, stop.x);
      const value = line.straight ? between(line, stop.x) : line.y[point];
      const written = finetune.number(value);
      const away = !line.straight && line.x[point] !== stop.x ? `(${plain(line.x[point])})` : '';
      const row = box.appendChild(made('span'));
      row.append(swatch, made('span', '', line.name), made('b', '', written));
      if (away) row.append(made('small', '', away));
      else {
        const spot = over.appendChild(made('i', `ft-spot ft-${line.style}`));
        spot.style.left = `${left}%`;
        spot.style.top = `${100 * (high - height(plot, value)) / (high - low)}%`;
      }
      return `${line.name} ${written}${away && ` ${away}`}`;
    });
    box.style[left > 50 ? 'left' : 'right'] = '4px';
    over.setAttribute('aria-hidden', 'true'); // it is told as the slider's value
    over.append(box);
    plot.querySelector('.ft-at')?.remove();
    plot.append(over);
    const spoken = `${head}: ${texts.join(', ')}`;
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
    held.y = y;
    const first = ({at}) => height(plot, lines[Object.keys(at)[0]].y[Object.values(at)[0]]);
    show(plot, least(stops.filter((one) => one.x === close), (one) => Math.abs(first(one) - y)));
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
    hold(plot, {focused: true, pointed: false, kept: false, y: undefined});
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

  // A chart opened large: a copy in a dialog, which follows the chart that it was made of.
  let large = null; // {dialog, host, index}
  const source = () => document.getElementById(large.host)?.querySelectorAll('.ft-chart')[large.index];
  const copy = () => {
    const chart = source();
    if (!chart) { large.dialog.close(); return; }
    if (large.drawn === chart) return;
    large.drawn = chart;
    const one = chart.cloneNode(true);
    for (const part of one.querySelectorAll('.ft-at, details, [data-chart=large]')) part.remove();
    large.dialog.querySelector('#large-chart').replaceChildren(one);
  };
  const open = (chart) => {
    const host = chart.closest('[id]'), dialog = document.createElement('dialog');
    const close = made('button', 'ft-button', '\u2715');
    dialog.className = 'ft-large';
    dialog.setAttribute('aria-label', chart.getAttribute('aria-label'));
    close.type = 'button';
    close.setAttribute('aria-label', chart.querySelector('[data-chart=large]').dataset.close);
    close.addEventListener('click', () => dialog.close());
    dialog.append(close, made('div'));
    dialog.lastChild.id = 'large-chart';
    dialog.addEventListener('click', (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener('close', () => { large = null; dialog.remove(); });
    large = {dialog, host: host.id, index: [...host.querySelectorAll('.ft-chart')].indexOf(chart)};
    copy();
    (document.querySelector('.gradio-container') ?? document.body).append(dialog);
    dialog.showModal();
  };
  new MutationObserver(() => { if (large && !large.drawn?.isConnected) copy(); }).observe(
    document.documentElement, {childList: true, subtree: true});

  // A chart as a picture, in the colours of the page.
  const picture = (chart) => {
    const plot = chart.querySelector('.ft-plot'), canvas = document.createElement('canvas');
    const width = 1000, tall = 560, at = {x: 90, y: 90, width: 880, height: 400};
    canvas.width = 2 * width;
    canvas.height = 2 * tall;
    const ink = canvas.getContext('2d'), style = (part) => getComputedStyle(part);
    const font = style(chart).fontFamily;
    const write = (text, x, y, {size = 16, weight = 400, align = 'left', color = style(chart).color} = {}) => {
      Object.assign(ink, {font: `${weight} ${size}px ${font}`, textAlign: align, fillStyle: color, textBaseline: 'middle'});
      ink.fillText(text, x, y);
      return ink.measureText(text).width;
    };
    ink.scale(2, 2);
    ink.fillStyle = style(chart).backgroundColor;
    ink.fillRect(0, 0, width, tall);
    write(chart.querySelector('figcaption b').textContent, 20, 28, {size: 20, weight: 700});
    let x = 20;
    for (const one of chart.querySelectorAll('.ft-legend > span')) {
      const {stroke, opacity} = style(one.querySelector('line'));
      Object.assign(ink, {fillStyle: stroke, globalAlpha: Number(opacity)});
      ink.fillRect(x, 58, 22, 4);
      ink.globalAlpha = 1;
      x += 28 + write(one.textContent.trim(), x + 28, 60) + 20;
    }
    const soft = style(chart.querySelector('.ft-axis')).color;
    const share = (part, side, length) => parseFloat(part.style[side]) / 100 * length;
    for (const tick of plot.querySelectorAll('.ft-y')) {
      write(tick.textContent, at.x - 10, at.y + share(tick, 'top', at.height), {align: 'right', color: soft});
    }
    for (const tick of plot.querySelectorAll('.ft-x')) {
      write(tick.textContent, at.x + share(tick, 'left', at.width), at.y + at.height + 20, {align: 'center', color: soft});
    }
    for (const row of plot.querySelectorAll('.ft-levels')) {
      const y = at.y + at.height * (1 - parseFloat(row.style.bottom) / 100) - 10;
      let end = at.x + at.width;
      for (const one of [...row.children].reverse()) {
        end -= write(one.textContent, end, y, {size: 14, align: 'right', color: style(one).color}) + 12;
      }
    }
    const across = chart.querySelector('.ft-axis').textContent;
    write(across, at.x + at.width / 2, at.y + at.height + 46, {align: 'center', color: soft});
    for (const path of plot.querySelectorAll('svg path')) {
      const drawn = new Path2D(), {stroke, strokeWidth, strokeDasharray, opacity} = style(path);
      const place = new DOMMatrix([at.width / 100, 0, 0, at.height / 100, at.x, at.y]);
      drawn.addPath(new Path2D(path.getAttribute('d')), place);
      ink.setLineDash(strokeDasharray === 'none' ? [] : strokeDasharray.split(',').map(parseFloat));
      Object.assign(ink, {strokeStyle: stroke, lineWidth: parseFloat(strokeWidth), globalAlpha: Number(opacity), lineJoin: 'round'});
      ink.stroke(drawn);
    }
    ink.globalAlpha = 1;
    for (const dot of plot.querySelectorAll(':scope > .ft-dot')) {
      ink.fillStyle = style(dot).color;
      ink.beginPath();
      ink.arc(at.x + share(dot, 'left', at.width), at.y + share(dot, 'top', at.height), 4.5, 0, 7);
      ink.fill();
    }
    return canvas;
  };
  document.addEventListener('click', (event) => {
    const button = event.target.closest?.('[data-chart]'), chart = button?.closest('.ft-chart');
    if (!chart) return;
    if (button.dataset.chart === 'large') { open(chart); return; }
    picture(chart).toBlob((blob) => {
      const link = document.createElement('a');
      link.href = URL.createObjectURL(blob);
      link.download = `${chart.querySelector('figcaption b').textContent}.png`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    });
  });
})();

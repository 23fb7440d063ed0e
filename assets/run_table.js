// The table of runs: `js_on_load` of its gr.HTML, which knows `element`, `props`, `trigger`, `watch`.
// A click is sent with its time, which grows: requests may arrive in any order. A comparison's clicks
// are counted with the table's.
element.addEventListener('click', (event) => {
  const part = event.target.closest('button[data-do]');
  if (part) trigger('click', {do: part.dataset.do, what: part.dataset.what, at: performance.now()});
});

// The boxes are this page's own: a table that is drawn anew is ticked as the old one was.
const ticked = new Set();
let ticks; // what the server counts up once the ticked are compared or deleted
const show = () => { // a bundle's box is ticked if those of all its runs are
  for (const box of element.querySelectorAll('input[data-do=choose]')) {
    box.checked = box.dataset.what.split(' ').every((run) => ticked.has(run));
  }
};
const offer = () => { // to compare or delete the ticked runs
  const words = element.querySelector('[data-runs]').dataset;
  const change = (n, few, many, least, most) => ({__type__: 'update', interactive: n >= least && n <= most,
    value: n >= least ? many.replace('{n}', n) : few});
  finetune.ticked = [[...ticked].join(' '), change(ticked.size, words.compare, words.compareN, 2, props.most),
    change(ticked.size, words.delete, words.deleteN, 1, Infinity)];
  trigger('select', {});
};
element.addEventListener('change', (event) => {
  if (event.target.dataset.column) {
    const chosen = [...element.querySelectorAll('[data-column]:checked')];
    const what = chosen.map((one) => one.dataset.column).join(' ');
    trigger('click', {do: 'columns', what, at: performance.now()});
  }
  const box = event.target.closest('input[data-do=choose]');
  if (!box) return;
  for (const run of box.dataset.what.split(' ')) ticked[box.checked ? 'add' : 'delete'](run);
  show();
  offer();
});
watch('value', () => {
  const table = element.querySelector('[data-runs]');
  if (!table) return;
  const runs = new Set(table.dataset.runs.split(/[ |]/)), before = ticked.size;
  if (ticks !== table.dataset.ticks) ticked.clear();
  ticks = table.dataset.ticks;
  for (const run of ticked) if (!runs.has(run)) ticked.delete(run); // it was deleted
  if (ticked.size < before) offer();
  show();
});

// The chooser of columns stays open while the table is drawn anew.
let choosing = false;
element.addEventListener('toggle', ({target}) => {
  if (target.matches('.ft-picker') && target.isConnected) choosing = target.open;
}, true);
watch('value', () => {
  const picker = element.querySelector('.ft-picker');
  if (picker) picker.open = choosing;
  for (const box of element.querySelectorAll('[data-column]')) box.checked = box.hasAttribute('checked');
});

// Keeps the keyboard's focus and the place scrolled to when the table is drawn anew.
let focused = null, left = 0;
const selector = (part) => part && part.dataset && part.dataset.do
  ? `[data-do="${part.dataset.do}"][data-what="${part.dataset.what}"]` : null;
element.addEventListener('focusin', (event) => { focused = selector(event.target); });
element.addEventListener('focusout', (event) => { if (event.relatedTarget) focused = null; });
element.addEventListener('scroll', (event) => { left = event.target.scrollLeft || 0; }, true);
watch('value', () => {
  const box = element.querySelector('.ft-runs');
  if (box) box.scrollLeft = left;
  const now = document.activeElement;
  // Lost, or in the row that came into the place of the one it was in.
  const lost = !now || now === document.body || (element.contains(now) && selector(now) !== focused);
  const part = focused && lost ? element.querySelector(focused) : null;
  if (part) part.focus({preventScroll: true});
});

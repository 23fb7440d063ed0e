// A run's evaluation. The slider moves the scores in the browser, which has all of them.
const ofRun = () => element.querySelector('[data-run]')?.dataset.run ?? '';
const panel = () => element.querySelector('.ft-threshold');
function put(root, value, scores, exact) {
  root.dataset.now = exact;
  const digits = exact === String(value) ? 3 : 2;
  root.querySelector('output').textContent = finetune.number(value.toFixed(digits));
  for (const [name, score] of Object.entries(scores)) {
    root.querySelector(`[data-score="${name}"]`).textContent =
      score === null ? '–' : finetune.number(score.toFixed(3));
  }
  const cursor = element.querySelector('#panel-thresholds .ft-cursor');
  if (cursor) cursor.style.left = `${100 * value}%`;
}
let moved = null; // where the slider stands, not saved yet: {run, to}
function move(to) {
  const root = panel(), sweep = JSON.parse(root.dataset.sweep), best = sweep.best, scores = {};
  moved = {run: ofRun(), to};
  element.querySelector('#threshold-slider').value =
    to === 'best' ? Math.round(100 * best.threshold) : to;
  if (to === 'best') {
    put(root, best.threshold, best.values, String(best.threshold));
    return;
  }
  for (const [name, list] of Object.entries(sweep.values)) scores[name] = list[to];
  put(root, sweep.thresholds[to], scores, sweep.thresholds[to].toFixed(2));
}
element.addEventListener('input', (event) => {
  if (event.target.id === 'threshold-slider') move(Number(event.target.value));
  if (!event.target.matches('[data-sure]')) return;
  const old = '#sure-offered, #sure-refused, #sure-refused + button';  // of another level
  element.querySelectorAll(old).forEach((part) => { part.hidden = true; });
});
element.addEventListener('click', (event) => {
  const button = event.target.closest('[data-do]');
  if (!button) return;
  if (button.dataset.do === 'best') {
    move('best');
    return;
  }
  if (button.dataset.do === 'sure') {
    const chosen = {do: 'sure', run: ofRun(), per_class: false};
    for (const field of element.querySelectorAll('[data-sure]'))
      chosen[field.dataset.sure] = field.type === 'checkbox' ? field.checked : Number(field.value);
    if (button.dataset.what) chosen.error = Number(button.dataset.what);  // the level offered
    trigger('click', chosen);
    return;
  }
  if (['save', 'forget'].includes(button.dataset.do)) moved = null;
  const root = panel();
  const now = root ? root.dataset.now || String(JSON.parse(root.dataset.sweep).now) : '';
  trigger('click', {do: button.dataset.do, run: ofRun(),
    what: button.dataset.do === 'save' ? now : button.dataset.what || ''});
});
watch('value', () => {
  if (moved?.run === ofRun() && panel()) move(moved.to); else moved = null;
});

// Shows one run and asks for its news. The value is the run's id; the app is asked with the mark of
// each part that is shown, and answers with the parts that have changed. `submit` tells Gradio that
// the run's state is another, `select` that a button of the view was pressed.
let run = '', marks = {}, pending = false, wait = 1000, view = {}, read = false;
// view: how charts are drawn; read: the log was opened, which shows its end first
const part = (name) => element.querySelector(`[data-part="${name}"]`);
const show = (name, content) => {
  const box = part(name);
  if (name !== 'log') {
    const focused = box.contains(document.activeElement);
    box.innerHTML = content;
    if (focused) (box.querySelector('button, a, [tabindex]') ?? element.querySelector('[role=tab]')).focus({preventScroll: true});
    return;
  }
  const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 8;
  box.value = content;
  if (atEnd) box.scrollTop = box.scrollHeight;
};
async function ask() {
  if (!run || pending || document.hidden || element.offsetParent === null) return;
  pending = true;
  const asked = run;
  try {
    const answer = await fetch(`finetune/watch/${asked}?${new URLSearchParams({...marks, ...view})}`);
    part('gone').hidden = true;
    if (asked !== run) return;
    if (answer.status === 404) { run = ''; trigger('submit'); }
    wait = Number(answer.headers.get('x-wait')) || wait;
    if (answer.status !== 200) return;
    for (const [name, [mark, content]] of Object.entries(await answer.json())) {
      const before = marks[name];
      marks[name] = mark;
      if (name !== 'state') show(name, content);
      else if (before !== undefined) trigger('submit');
      // Over the page, until it is closed: nothing that is being looked at moves.
      if (name === 'verdict' && content && before !== undefined) part(name).classList.add('ft-arrived');
    }
    element.querySelector('.ft-live').toggleAttribute('data-empty', false);
  } catch (error) {
    part('gone').hidden = false;
  } finally {
    pending = false;
    if (asked !== run) ask();
  }
}
const change = () => {
  if (run === String(props.value || '')) return;
  run = String(props.value || '');
  marks = {};
  read = false;
  part('verdict')?.classList.remove('ft-arrived');
  element.querySelector('.ft-live')?.toggleAttribute('data-empty', true); // until this run is drawn
  ask();
};
watch('value', change);
change();
document.addEventListener('keydown', ({key}) => {
  if (key === 'Escape') part('verdict')?.classList.remove('ft-arrived');
});
element.addEventListener('click', (event) => {
  if (event.target.closest('[data-part=verdict] button')) part('verdict').classList.remove('ft-arrived');
  const button = event.target.closest('[data-do]');
  if (!button || button.ariaDisabled === 'true' || event.detail > 1) return; // a double click is one
  if (button.dataset.busy) { // said at once; the server draws it so, too
    button.ariaDisabled = 'true';
    button.textContent = button.dataset.busy;
  }
  trigger('select', {do: button.dataset.do, what: button.dataset.what, run});
});
element.addEventListener('click', ({target}) => {
  const log = part('log');
  if (read || !target.closest('[data-part=log-tab]')) return;
  read = true;
  setTimeout(() => { log.scrollTop = log.scrollHeight; });
});
element.addEventListener('change', ({target}) => {
  if (!target.dataset.view) return;
  view[target.dataset.view] = target.type === 'checkbox' ? Number(target.checked) : target.value;
  ask();
});
document.addEventListener('visibilitychange', ask);
const repeat = () => { ask(); setTimeout(repeat, wait); };
setTimeout(repeat, wait);

// Shows one run and asks for its news. The value is the run's id; the app is asked with the mark of
// each part that is shown, and answers with the parts that have changed. `submit` tells Gradio that
// the run's state is another. What is shown while there is no run is asked for once, in the
// reader's language.
let run = '', marks = {}, pending = false, wait = 1000;
const part = (name) => element.querySelector(`[data-part="${name}"]`);
const showsNoRun = part('status').textContent !== '';
const show = (name, content) => {
  const box = part(name);
  if (name !== 'log') { box.innerHTML = content; return; }
  const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 8;
  box.value = content;
  if (atEnd) box.scrollTop = box.scrollHeight;
};
async function ask() {
  if (pending || document.hidden || element.offsetParent === null) return;
  if (!run && (!showsNoRun || marks.status !== undefined)) return;
  pending = true;
  const asked = run;
  try {
    const answer = await fetch(`finetune/watch/${asked}?${new URLSearchParams(marks)}`);
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
    }
  } catch (error) {
    part('gone').hidden = false;
  } finally {
    pending = false;
    if (asked !== run) ask();
  }
}
const change = () => { run = String(props.value || ''); marks = {}; ask(); };
watch('value', change);
change();
document.addEventListener('visibilitychange', ask);
const repeat = () => { ask(); setTimeout(repeat, wait); };
setTimeout(repeat, wait);

// A run's examples: pages are turned and labels corrected. An older answer that comes last would
// take a correction from the screen: then the server is asked again.
const ofRun = () => element.querySelector('[data-run]')?.dataset.run ?? '';
element.addEventListener('click', (event) => {
  const button = event.target.closest('[data-do]');
  if (button) trigger('click', {do: button.dataset.do, what: button.dataset.what, run: ofRun()});
});
element.addEventListener('change', (event) => {
  const row = event.target.dataset.row;
  if (row === undefined) return;
  trigger('click', {do: 'label', what: row, label: event.target.value, run: ofRun()});
});
let latest = 0;
watch('value', () => {
  const at = Number(element.querySelector('[data-at]')?.dataset.at ?? 0);
  if (at < latest) trigger('submit', {});
  latest = at < latest ? 0 : at;
});

// A run's examples: pages are turned and labels corrected.
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

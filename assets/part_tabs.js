// Tabs of an evaluation (macros.html: tabs): one panel in sight, arrow keys move, and the choice
// outlives another drawing.
let shownTab = '';
const tabs = () => [...element.querySelectorAll('[role=tab]')];
function showTab(id) {
  const all = tabs(), selected = all.find((tab) => tab.id === id) ?? all[0];
  for (const tab of all) {
    tab.setAttribute('aria-selected', tab === selected);
    tab.tabIndex = tab === selected ? 0 : -1;
    element.querySelector(`#${tab.getAttribute('aria-controls')}`).hidden = tab !== selected;
  }
}
element.addEventListener('click', (event) => {
  const tab = event.target.closest('[role=tab]');
  if (tab) showTab(shownTab = tab.id);
});
element.addEventListener('keydown', (event) => {
  const all = tabs(), at = all.indexOf(event.target), last = all.length - 1;
  if (at < 0) return;
  const to = {ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: last}[event.key];
  if (to === undefined) return;
  event.preventDefault();
  const tab = all[(to + all.length) % all.length];
  showTab(shownTab = tab.id);
  tab.focus();
});
watch('value', () => showTab(shownTab));

// Tabs of a part of the page (macros.html: tabs): one panel in sight, and the choice outlives another
// drawing. page.js moves between them by the arrow keys.
let shownTab = '';
const showTab = (id) => {
  const all = [...element.querySelectorAll('[role=tab]')], selected = all.find((tab) => tab.id === id) ?? all[0];
  for (const tab of all) {
    tab.setAttribute('aria-selected', tab === selected);
    tab.tabIndex = tab === selected ? 0 : -1;
    element.querySelector(`#${tab.getAttribute('aria-controls')}`).hidden = tab !== selected;
  }
};
element.addEventListener('click', (event) => {
  const tab = event.target.closest('[role=tab]');
  if (tab) showTab(shownTab = tab.id);
});
watch('value', () => showTab(shownTab));

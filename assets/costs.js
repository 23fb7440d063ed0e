// What is unfolded stays so when the form is changed.
let open = false;
element.addEventListener('toggle', (event) => {
  if (event.target.matches('.ft-costs')) open = event.target.open;
}, true);
// What an empty box comes to for these pairs. Boxes that are folded away are drawn once unfolded.
const tell = () => {
  const told = element.querySelector('[data-automatic]');
  for (const [name, text] of Object.entries(JSON.parse(told?.dataset.automatic || '{}'))) {
    const box = document.querySelector(`#knob-${name} :is(input, textarea)`);
    if (box) box.placeholder = text;
  }
};
const unfolded = new MutationObserver(tell);
watch('value', () => {
  tell();
  const advanced = document.querySelector('#advanced');
  if (advanced) unfolded.observe(advanced, { childList: true, subtree: true });
  const costs = element.querySelector('.ft-costs');
  if (costs && costs.open !== open) costs.open = open;
});

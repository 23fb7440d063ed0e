// What is unfolded stays so when the form is changed.
let open = false;
element.addEventListener('toggle', (event) => {
  if (event.target.matches('.ft-costs')) open = event.target.open;
}, true);
watch('value', () => {
  // What an empty box comes to for these pairs.
  const told = element.querySelector('[data-automatic]');
  for (const [name, text] of Object.entries(JSON.parse(told?.dataset.automatic || '{}'))) {
    const box = document.querySelector(`#knob-${name} :is(input, textarea)`);
    if (box) box.placeholder = text;
  }
  const costs = element.querySelector('.ft-costs');
  if (costs && costs.open !== open) costs.open = open;
});

// What is unfolded stays so when the form is changed.
let open = false;
element.addEventListener('toggle', (event) => {
  if (event.target.matches('.ft-costs')) open = event.target.open;
}, true);
watch('value', () => {
  const costs = element.querySelector('.ft-costs');
  if (costs && costs.open !== open) costs.open = open;
});

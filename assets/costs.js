// The command stays unfolded when the form is changed.
let open = false;
element.addEventListener('toggle', (event) => {
  if (event.target.matches('.ft-command')) open = event.target.open;
}, true);
watch('value', () => {
  const command = element.querySelector('.ft-command');
  if (command && command.open !== open) command.open = open;
});

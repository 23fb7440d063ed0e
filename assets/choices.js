// Sends what a button in an HTML part chooses (macros.html: choice), or all that the choosers beside
// it hold. Its part is drawn anew by the answer: the keyboard's focus then goes to the button in the
// same place.
let part = null;
element.addEventListener('click', (event) => {
  const button = event.target.closest('button:is([data-field], [data-all])');
  if (!button) return;
  part = button.closest('[data-kind]')?.dataset.kind ?? null;
  button.setAttribute('aria-busy', 'true');
  if (button.dataset.field)
    return trigger('select', {field: button.dataset.field, value: JSON.parse(button.dataset.value)});
  const choosers = [...button.parentElement.querySelectorAll('select')];
  trigger('select', {values: Object.fromEntries(choosers.map(({name, value}) => [name, value]))});
});
watch('value', () => {
  for (const button of element.querySelectorAll('[aria-busy]')) button.removeAttribute('aria-busy');
  const now = document.activeElement;
  if (part && (!now || now === document.body))
    element.querySelector(`[data-kind="${part}"] :is(button[data-field], summary)`)?.focus();
});

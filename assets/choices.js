// Sends what a button in an HTML part chooses (macros.html: choice). Its part is drawn anew by the
// answer: the keyboard's focus then goes to the button in the same place.
let part = null;
element.addEventListener('click', (event) => {
  const button = event.target.closest('button:is([data-field], [data-mend])');
  if (!button) return;
  if (button.dataset.mend !== undefined) {
    const [old, now, free] = button.parentElement.querySelectorAll('[data-old], [data-new], input');
    const label = now.selectedOptions[0].dataset.free === undefined ? now.value : free.value.trim();
    if (!label && now.value) { free.focus(); return; } // it is yet to be typed
    trigger('select', {mend: old.value, label});
    return;
  }
  if (button.hasAttribute('aria-pressed')) // one of several, which stay as they are
    for (const one of element.querySelectorAll('[aria-pressed]')) one.setAttribute('aria-pressed', one === button);
  else button.setAttribute('aria-busy', 'true');
  part = button.closest('[data-kind]')?.dataset.kind ?? null;
  trigger('select', {field: button.dataset.field, value: JSON.parse(button.dataset.value)});
});
element.addEventListener('change', ({target}) => { // a new label is typed only where one is asked for
  if (target.dataset.new === undefined) return;
  target.parentElement.querySelector('input').hidden = target.selectedOptions[0].dataset.free === undefined;
});
element.addEventListener('input', ({target}) => { // where scores are cut into two classes
  if (!target.dataset.cuts) return;
  const [cut, rows] = JSON.parse(target.dataset.cuts)[target.value];
  const button = target.parentElement.querySelector('button');
  button.dataset.value = JSON.stringify(String(cut));
  button.textContent = target.dataset.words.replace('{cut}', cut).replace('{rows}', rows);
});
watch('value', () => {
  for (const button of element.querySelectorAll('[aria-busy]')) button.removeAttribute('aria-busy');
  const now = document.activeElement;
  if (part && (!now || now === document.body))
    element.querySelector(`[data-kind="${part}"] :is(button[data-field], summary)`)?.focus();
});

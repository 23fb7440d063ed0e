// A question of a labelling (label.html: card): answered by a press, or by the keys that it shows.
// One answer is sent at a time; the next card ends the wait.
let sent = false, asked = false, tallest = 0, shown = 0;
const send = (event) => {
  if (sent) return false;
  sent = true;
  setTimeout(() => { sent = false; }, 2000); // an answer that was refused draws no card
  const card = element.querySelector('[data-item]');
  trigger('select', {item: JSON.parse(card?.dataset.item ?? '[]'), ...event});
  return true;
};
const pressed = () =>
  [...element.querySelectorAll('[aria-pressed="true"]')].map((one) => one.dataset.label);
const press = (button) => {
  const several = element.querySelector('[data-several]');
  const {label} = button.dataset;
  if (label === undefined) {
    const action = button.dataset.do;
    const box = element.querySelector('.ft-add input');
    if (action !== 'add') send({do: action, labels: pressed()});
    else if (box.value.trim() && send({do: action, label: box.value.trim()})) {
      box.value = '';
      box.blur(); // the keys answer again
    }
  } else if (several) button.setAttribute('aria-pressed', button.ariaPressed !== 'true');
  else send({do: 'answer', labels: [label]});
};
element.addEventListener('click', (event) => {
  const button = event.target.closest('button');
  if (button && event.detail) button.blur(); // space and Enter are the card's, not a clicked button's
  if (button) press(button);
});
element.addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && event.target.matches('input'))
    press(element.querySelector('[data-do="add"]'));
});
document.addEventListener('keydown', (event) => {
  const {key, target} = event;
  if (!element.offsetParent || event.ctrlKey || event.metaKey || event.altKey) return;
  if (target.closest('input, textarea, select, [contenteditable]')) return;
  if ((key === ' ' || key === 'Enter') && target.closest('button, a, summary, [role]')) return;
  const names = [...element.querySelectorAll('[data-label]')];
  const keys = {' ': 'skip', z: 'undo', Enter: 'answer'};
  const button = names[Number(key) - 1] ?? element.querySelector(`[data-do="${keys[key]}"]`);
  if (!button || event.repeat) return;
  event.preventDefault();
  press(button);
});
watch('value', () => {
  sent = false;
  const texts = element.querySelector('.ft-asked'); // shorter ones leave the buttons where they are
  if (texts?.childElementCount !== shown) tallest = 0; // of another labelling
  shown = texts?.childElementCount;
  tallest = Math.max(tallest, texts?.offsetHeight ?? 0);
  if (texts) texts.style.minHeight = `${tallest}px`;
  if (!element.querySelector('[data-item]')) asked = false;
  else if (!asked) {
    asked = true; // the first question of a labelling comes into view, once what is above it is gone
    setTimeout(() => {
      const {top, bottom} = element.getBoundingClientRect();
      if (top < 0 || bottom > innerHeight) element.scrollIntoView({block: 'center'});
    }, 200);
  }
});
